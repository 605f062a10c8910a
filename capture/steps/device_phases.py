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
from typing import TYPE_CHECKING, Any, Final, Protocol, Self

from ranklake.capture.common.gaps import DEVICE_VALUE
from ranklake.capture.common.layouts import ABSENT, PHASES, SPANS
from ranklake.capture.common.values import repr_of
from ranklake.capture.steps.phases import now
from ranklake.capture.steps.stack import Frame

if TYPE_CHECKING:
    from ranklake.capture.steps.phases import Phase
    from ranklake.capture.steps.steps import Step
    from ranklake.capture.training.run import Run

_pack_span: Final = SPANS.packer.pack_into
_COLLECTIVE: Final = PHASES.index("collective")
_NO_STREAM: Final = "no CUDA stream to time"


class Event(Protocol):
    """A place in the device's stream of work."""

    def query(self) -> bool:
        """Say whether the device has passed it."""

    def elapsed_time(self, end: Any) -> float:  # noqa: ANN401 - another of its kind
        """Return the milliseconds from here to an event; both must have happened."""


Mark = Callable[[], Event | None]


def cuda_in_use() -> bool:
    """Say whether this process has begun to use a GPU by torch."""
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
class Passage:
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
    around: "Passage | None"
    start_ns: int
    span_id: int
    step: "Step | None"
    number: int
    inner_ns: int = 0


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
    mark
        Puts an event into the stream of the calling thread.
    """

    __slots__ = ("_column", "_host", "_mark", "_name", "_run")

    def __init__(self, run: "Run", host: "Phase", name: int, column: int, mark: Mark) -> None:
        self._run, self._host, self._name, self._column, self._mark = run, host, name, column, mark

    def __enter__(self) -> Self:
        self._host.__enter__()
        try:
            self._begin()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._run.refuse("spans", DEVICE_VALUE, repr_of(error))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        frame = self._frame()
        passage = self._run.on_device.pop(frame, None) if frame is not None else None
        try:
            end = None if passage is None else self._mark()
        except Exception as trouble:  # noqa: BLE001 - a device in trouble must not be ours
            self._run.refuse("spans", DEVICE_VALUE, repr_of(trouble))
            passage = None
        self._host.__exit__(kind, error, trace)
        if passage is not None:
            self._send(passage, end)

    def _begin(self) -> None:
        frame, begin = self._frame(), self._mark()
        if frame is None or begin is None or frame.start is None:
            self._run.refuse("spans", DEVICE_VALUE, _NO_STREAM)
            return
        open_ones = self._run.on_device
        around, outer = None, frame.parent
        while outer is not None and around is None:
            around, outer = open_ones.get(outer), outer.parent
        step = frame.step if frame.adds else None
        number = ABSENT if frame.step is None else frame.step.number
        open_ones[frame] = Passage(begin, around, frame.start, frame.span_id, step, number)

    def _frame(self) -> Frame | None:
        frame = self._run.stack.top
        while frame is not None and frame.owner is not self._host:
            frame = frame.parent
        return frame

    def _send(self, passage: Passage, end: Event | None) -> None:
        if end is None or not self._run.expect(end, Elapsed(passage.begin, end), self._deliverer(passage), "spans"):
            self._run.refuse(
                "spans", DEVICE_VALUE, "too many under way" if end is not None else "no CUDA stream to time"
            )

    def _deliverer(self, passage: Passage) -> Callable[[float], None]:
        def deliver(elapsed_ms: float) -> None:
            run = self._run
            duration = max(0, round(elapsed_ms * 1e6))
            span_id = next(run.span_ids)
            fields = (passage.start_ns, duration, passage.number, span_id, passage.span_id, ABSENT, -1, 0, self._name)
            run.spans.put(_pack_span, *fields)
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

    def __init__(self, run: "Run") -> None:
        self._run = run

    def __enter__(self) -> Self:
        self._start, self._begin, self._step = now(), self._run.mark(), self._run.current
        mine = [at for at in list(self._run.on_device.values()) if at.step is not None and at.step is self._step]
        self._around = max(mine, key=lambda passage: passage.span_id, default=None)
        return self

    def __exit__(self, *_: object) -> None:
        run = self._run
        number = run.span_number("collective", "collective", stream="cuda", device_time=1)
        begin, end = self._begin, run.mark()
        if begin is None or end is None or number is None:
            run.refuse("spans", DEVICE_VALUE, _NO_STREAM)
            return
        step = ABSENT if self._step is None else self._step.number
        parent = self._around.span_id if self._around is not None else ABSENT

        def deliver(elapsed_ms: float) -> None:
            duration = max(0, round(elapsed_ms * 1e6))
            fields = (self._start, duration, step, next(run.span_ids), parent, ABSENT, -1, 0, number)
            run.spans.put(_pack_span, *fields)
            if self._around is not None and self._around.step is not None:
                self._around.inner_ns += duration
                self._around.step.spend_late(_COLLECTIVE, duration)

        if not run.expect(end, Elapsed(begin, end), deliver, "spans"):
            run.refuse("spans", DEVICE_VALUE, "too many under way")


@dataclass(frozen=True, slots=True)
class Elapsed:
    """What a pair of events is worth once the second has happened."""

    begin: Event
    end: Event

    def item(self) -> float:
        """Return the milliseconds between them."""
        return self.begin.elapsed_time(self.end)
