"""Device phases: the time that a GPU works on a phase, measured by events on its stream that are read later.

    with run.phase("forward", on_device=True): ...

    host     ├ enter ─ launches kernels ─ exit ┤                     the phase's span, written at its exit
    stream            ● begin ── kernels ── end ●                    a child span on stream "cuda", written after `end`
                                                                     has occurred; it fills the step's column

The host never waits for the GPU. If the process is killed in between, the host's span is recorded without GPU time. The
step's column is then NULL, never the host's time.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Final, Protocol, Self

from ranklake.capture.common.gaps import DEVICE_VALUE
from ranklake.capture.common.layouts import ABSENT, PHASES
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import repr_of
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.phase import Phase
from ranklake.capture.steps.progress import Frame, OpenStep
from ranklake.capture.steps.spans import Spans

_COLLECTIVE: Final = PHASES.index("collective")
NO_STREAM: Final = "no CUDA stream to time"
_TOO_MANY: Final = "too many pending"


class Event(Protocol):
    """An event in a CUDA stream."""

    def query(self) -> bool:
        """Whether the GPU has reached the event."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 - another event
        """Return the milliseconds between this event and `end`; both must have occurred."""


Mark = Callable[[], Event | None]


def cuda_in_use() -> bool:
    """Whether torch has initialized CUDA in this process."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def mark_cuda() -> Event | None:
    """Record an event in the current CUDA stream and return it; None if the stream cannot be timed.

    That is so if CUDA is not initialized, or while the stream is captured into a graph, which may run any number of
    times.
    """
    torch: Any = sys.modules.get("torch")
    if not cuda_in_use() or torch.cuda.is_current_stream_capturing():
        return None
    event: Event = torch.cuda.Event(enable_timing=True)
    event.record()  # type: ignore[attr-defined]  # torch's
    return event


@dataclass(slots=True)
class DevicePassage:
    """One use of a phase on the GPU.

    Attributes
    ----------
    begin
        Event at the start.
    around
        The enclosing passage; its time excludes this one.
    start_ns, span_id, number
        Start and id of the host's span, and number of its step.
    step
        Step whose column the time is added to; None for no column.
    inner_ns
        GPU time of nested passages.
    """

    begin: Event
    around: "DevicePassage | None"
    start_ns: int
    span_id: int
    step: OpenStep | None
    number: int
    inner_ns: int = 0


class DeviceTimer:
    """Times work on a GPU by events in its stream, which are read after they have occurred.

    Attributes
    ----------
    mark
        Records an event in the calling thread's stream and returns it.
    open
        Passages whose host blocks are open, by frame.
    """

    def __init__(self, spans: Spans, values: DeviceValues) -> None:
        self.spans = spans
        self.mark: Mark = mark_cuda
        self.open: dict[Frame, DevicePassage] = {}
        self._values = values

    def refuse(self, why: str) -> None:
        """Count a span that could not be timed as a gap."""
        self.spans.sink.refuse("spans", DEVICE_VALUE, why)

    def expect(self, begin: Event, end: Event, deliver: Callable[[float], None]) -> None:
        """Call `deliver` with the milliseconds between two events after both have occurred."""
        if not self._values.expect(end, DeviceSpan(begin, end), deliver, "spans"):
            self.refuse(_TOO_MANY)


class DevicePhase:
    """A phase that is timed on the host and on the GPU. Like `Phase`, it can be entered repeatedly.

    Parameters
    ----------
    host
        Handle that records the host's span, without a column.
    name
        Number of the name of the GPU's span.
    column
        Index of the step's column for the GPU time; -1 for none.
    """

    __slots__ = ("_column", "_device", "_host", "_name")

    def __init__(self, device: DeviceTimer, host: Phase, name: int, column: int) -> None:
        self._device, self._host, self._name, self._column = device, host, name, column

    def __enter__(self) -> Self:
        self._host.__enter__()
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._device.refuse(repr_of(error))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frame = self._frame()
        passage = self._device.open.pop(frame, None) if frame is not None else None
        try:
            end = None if passage is None else self._device.mark()
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._device.refuse(repr_of(trouble))
            passage = None
        self._host.__exit__(kind, error, trace)
        if passage is None:
            return
        if end is None:
            self._device.refuse(NO_STREAM)
        else:
            self._device.expect(passage.begin, end, self._deliverer(passage))

    def _begin(self) -> None:
        frame, begin = self._frame(), self._device.mark()
        if frame is None or begin is None or frame.start is None:
            self._device.refuse(NO_STREAM)
            return
        open_passages = self._device.open
        around, outer = None, frame.parent
        while outer is not None and around is None:
            around, outer = open_passages.get(outer), outer.parent
        step = frame.step if frame.adds else None
        number = ABSENT if frame.step is None else frame.step.number
        open_passages[frame] = DevicePassage(begin, around, frame.start, frame.span_id, step, number)

    def _frame(self) -> Frame | None:
        frame = self._device.spans.progress.stack.top
        while frame is not None and frame.owner is not self._host:
            frame = frame.parent
        return frame

    def _deliverer(self, passage: DevicePassage) -> Callable[[float], None]:
        def deliver(elapsed_ms: float) -> None:
            spans = self._device.spans
            duration = max(0, round(elapsed_ms * 1e6))
            span_id = spans.next_id()
            fields = (passage.start_ns, duration, passage.number, span_id, passage.span_id, ABSENT, -1, 0, self._name)
            spans.put(*fields)
            if passage.around is not None:
                passage.around.inner_ns += duration
            if passage.step is not None and self._column >= 0:
                passage.step.spend_late(self._column, duration - passage.inner_ns)

        return deliver


class StreamWait:
    """Times the wait of the current CUDA stream for a collective, in a thread other than the step's.

    If a phase of the step is timed on the GPU, the wait is subtracted from that phase and added to the step's
    ``collective``.
    """

    def __init__(self, device: DeviceTimer) -> None:
        self._device = device

    def __enter__(self) -> Self:
        device = self._device
        self._start, self._begin, self._step = now(), device.mark(), device.spans.progress.current
        passages = [item for item in list(device.open.values()) if item.step is not None and item.step is self._step]
        self._around = max(passages, key=lambda passage: passage.span_id, default=None)
        return self

    def __exit__(self, *_: object) -> None:
        device, spans = self._device, self._device.spans
        number = spans.number("collective", "collective", stream="cuda", device_time=1)
        begin, end = self._begin, device.mark()
        if begin is None or end is None or number is None:
            device.refuse(NO_STREAM)
            return
        step = ABSENT if self._step is None else self._step.number
        parent = self._around.span_id if self._around is not None else ABSENT

        def deliver(elapsed_ms: float) -> None:
            duration = max(0, round(elapsed_ms * 1e6))
            fields = (self._start, duration, step, spans.next_id(), parent, ABSENT, -1, 0, number)
            spans.put(*fields)
            if self._around is not None and self._around.step is not None:
                self._around.inner_ns += duration
                self._around.step.spend_late(_COLLECTIVE, duration)

        device.expect(begin, end, deliver)


@dataclass(frozen=True, slots=True)
class DeviceSpan:
    """The time between two events, available after the second one has occurred."""

    begin: Event
    end: Event

    def item(self) -> float:
        """Return the milliseconds between the events."""
        return self.begin.elapsed_time(self.end)
