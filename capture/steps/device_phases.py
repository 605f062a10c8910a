"""Device phases: how long a GPU worked on a phase, timed by events on its stream that are read once they have happened.

    with run.phase("forward", on_device=True): ...

    host     ├ enter ─ launches kernels ─ exit ┤                     the span, written at the exit as ever
    stream            ● begin ── kernels ── end ●                    its child on stream "cuda", written when `end` has
                                                                     happened; the step's column gets its duration

Nobody waits for the device. A process that is killed in between has the host's span and no device time: NULL in the
step's column, which is never filled with the host's time instead.
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
_TOO_MANY: Final = "too many under way"


class Event(Protocol):
    """A place in the device's stream of work."""

    def query(self) -> bool:
        """Whether the device has passed it."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 - another of its kind
        """Return the milliseconds from here to an event; both must have happened."""


Mark = Callable[[], Event | None]


def cuda_in_use() -> bool:
    """Whether this process has begun to use a GPU by torch."""
    torch: Any = sys.modules.get("torch")
    return torch is not None and bool(torch.cuda.is_initialized())


def mark_cuda() -> Event | None:
    """Put an event behind all work that was given to the current CUDA stream; None if that cannot be timed.

    CUDA is not initialised, say, or the stream is being captured into a graph, which may run never or often.
    """
    torch: Any = sys.modules.get("torch")
    if not cuda_in_use() or torch.cuda.is_current_stream_capturing():
        return None
    event: Event = torch.cuda.Event(enable_timing=True)
    event.record()  # type: ignore[attr-defined]  # torch's
    return event


@dataclass(slots=True)
class DevicePassage:
    """One passage through a phase, as the device sees it.

    Attributes
    ----------
    around
        The passage that it lies in, whose own time it is no part of.
    start_ns, span_id, number
        Of the host's span, and its step's.
    step
        Whose column the time adds to; None if to none.
    inner_ns
        Device time of the passages within.
    """

    begin: Event
    around: "DevicePassage | None"
    start_ns: int
    span_id: int
    step: OpenStep | None
    number: int
    inner_ns: int = 0


class DeviceTimer:
    """Times what a device works on: events in its stream, read when they have happened.

    Attributes
    ----------
    mark
        Puts an event into the stream of the calling thread.
    open
        Passages that the device works on now.
    """

    def __init__(self, spans: Spans, values: DeviceValues) -> None:
        self.spans = spans
        self.mark: Mark = mark_cuda
        self.open: dict[Frame, DevicePassage] = {}
        self._values = values

    def refuse(self, why: str) -> None:
        """Count a span that could not be timed."""
        self.spans.sink.refuse("spans", DEVICE_VALUE, why)

    def expect(self, begin: Event, end: Event, deliver: Callable[[float], None]) -> None:
        """Have the milliseconds between two events delivered when they have happened."""
        if not self._values.expect(end, DeviceSpan(begin, end), deliver, "spans"):
            self.refuse(_TOO_MANY)


class DevicePhase:
    """A phase that a GPU works on. Entered again and again like `Phase`, whose span it also records.

    Parameters
    ----------
    host
        The handle of the same name, which adds to no column.
    name
        Number of the span's name on the device's stream.
    column
        Of the step that the device's time adds to; -1 for none.
    """

    __slots__ = ("_column", "_device", "_host", "_name")

    def __init__(self, device: DeviceTimer, host: Phase, name: int, column: int) -> None:
        self._device, self._host, self._name, self._column = device, host, name, column

    def __enter__(self) -> Self:
        self._host.__enter__()
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._device.refuse(repr_of(error))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frame = self._frame()
        passage = self._device.open.pop(frame, None) if frame is not None else None
        try:
            end = None if passage is None else self._device.mark()
        except Exception as trouble:  # noqa: BLE001 - a device in trouble must not be ours
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
        open_ones = self._device.open
        around, outer = None, frame.parent
        while outer is not None and around is None:
            around, outer = open_ones.get(outer), outer.parent
        step = frame.step if frame.adds else None
        number = ABSENT if frame.step is None else frame.step.number
        open_ones[frame] = DevicePassage(begin, around, frame.start, frame.span_id, step, number)

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
    """What the current CUDA stream waits for a collective, seen from a thread that is not the step's, as autograd's is.

    Where a phase of the step is timed on the device, its time is that phase's no longer, and adds to the step's
    ``collective``.
    """

    def __init__(self, device: DeviceTimer) -> None:
        self._device = device

    def __enter__(self) -> Self:
        device = self._device
        self._start, self._begin, self._step = now(), device.mark(), device.spans.progress.current
        mine = [at for at in list(device.open.values()) if at.step is not None and at.step is self._step]
        self._around = max(mine, key=lambda passage: passage.span_id, default=None)
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
    """What a pair of events is worth once the second has happened."""

    begin: Event
    end: Event

    def item(self) -> float:
        """Return the milliseconds between them."""
        return self.begin.elapsed_time(self.end)
