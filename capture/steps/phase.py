"""Phase: a named interval. Its handle is created once and entered any number of times, by any thread.

Times are read from the monotonic clock, as the last action of ``__enter__`` and the first of ``__exit__``. The row is
written when the block ends, and survives a kill after ``__exit__`` has returned.
"""

from types import TracebackType
from typing import Final, Self

from ranklake.capture.common.gaps import BEGUN_BEFORE_FORK, NOT_BEGUN, closest_name
from ranklake.capture.common.layouts import ABSENT, MARK, PHASES, SPANS
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.native import MODULE
from ranklake.capture.steps.progress import Frame
from ranklake.capture.steps.spans import Spans

_pack_span: Final = SPANS.packer.pack_into

_PHASE_OF: Final = {name: index for index, name in enumerate(PHASES)} | {"eval": PHASES.index("evaluation")}
_KIND_OF: Final = {name: name if name in {"collective", "checkpoint", "evaluation"} else "phase" for name in PHASES} | {
    "eval": "evaluation"
}


class Phase:
    """A named interval, recorded as a span. Within a step it also adds to the step's column of that name.

    Time in a nested phase counts only for the inner phase, so the phases of a step never sum to more than the step.

    Notes
    -----
    The state of an open block is in a frame, not in the handle, so a handle can be open in several threads and within
    itself. Frames of ended blocks are reused. Popping a frame from the list and appending one are atomic, so two
    threads never get the same frame.
    """

    __slots__ = (
        "_column",
        "_free_frames",
        "_lane",
        "_microbatch",
        "_name",
        "_next_id",
        "_progress",
        "_sequence",
        "_sink",
        "_size",
        "_stack",
    )

    def __init__(self, spans: Spans, name: int, column: int, size: int, microbatch: int, sequence: int = 0) -> None:
        self._sink, self._progress, self._lane = spans.sink, spans.progress, spans.lane
        self._stack, self._next_id = spans.progress.stack, spans.next_id
        self._name, self._column, self._size, self._microbatch = name, column, size, microbatch
        self._sequence = sequence
        self._free_frames: list[Frame] = []

    def __enter__(self) -> Self:
        try:
            frame = self._free_frames.pop()
        except IndexError:
            frame = Frame()
            frame.owner = self
        stack = self._stack
        parent = frame.parent = stack.top
        if parent is None:
            # This may be another thread than the step's, such as one of a backward hook. Its spans belong to the
            # running step, but its time adds to no column of the step.
            frame.step, frame.adds = self._progress.current, False
        else:
            frame.step, frame.adds = parent.step, parent.adds
        frame.inner = 0
        frame.span_id = self._next_id()
        stack.top = frame
        frame.start = now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = now()
        frame = self._stack.leave(self)
        if frame is None:
            self._sink.refuse("spans", NOT_BEGUN)
            return
        parent, step, start = frame.parent, frame.step, frame.start
        if start is None:
            self._sink.refuse("spans", BEGUN_BEFORE_FORK)
            return
        duration = end - start
        parent_id = number = ABSENT
        if parent is not None:
            parent.inner += duration
            parent_id = parent.span_id
        if step is not None:
            number = step.number
            column = self._column
            if parent is None:
                parent_id = step.span_id
            elif column >= 0 and frame.adds:
                spent = step.spent
                before = spent[column]
                spent[column] = duration - frame.inner + (0 if before == ABSENT else before)
                step.spent = spent  # the hot path in C returns copies
        lane, span_id, size, microbatch, name = self._lane, frame.span_id, self._size, self._microbatch, self._name
        sequence = self._sequence
        try:
            view, take = lane.pair
            fields = (start, duration, number, span_id, parent_id, size, microbatch, sequence, name)
            _pack_span(view, take(), *fields, MARK)
        except Exception:  # noqa: BLE001 - the file is full or was closed: use the slow path
            lane.put(_pack_span, start, duration, number, span_id, parent_id, size, microbatch, sequence, name)
        frame.parent = frame.step = None
        self._free_frames.append(frame)


def phase_handle(spans: Spans, name: int, column: int, size: int = ABSENT, microbatch: int = -1) -> Phase:
    """Return a handle of a phase, in C if that was built.

    Parameters
    ----------
    name
        Number of the span's name.
    column
        Index of the step's column that the phase adds to; -1 for none.
    size, microbatch
        Bytes, and number of the micro-batch; ABSENT and -1 for none.
    """
    if MODULE is None:
        return Phase(spans, name, column, size, microbatch)
    progress, refuse = spans.progress, spans.sink.refuse
    lane, slow, next_id = spans.lane, spans.put, spans.next_id
    phase: Phase = MODULE.Phase(progress, refuse, progress.stack, lane, slow, next_id, name, column, size, microbatch)
    return phase


def similar_phase(name: str) -> str:
    """Return the phase with a column whose name is similar to a misspelt one; empty if there is none."""
    return "" if name in _PHASE_OF else closest_name(name, _PHASE_OF)


def phase_column(name: str) -> tuple[int, str]:
    """Return the index of the step's column that a phase adds to (-1 for none), and the kind of its span."""
    return _PHASE_OF.get(name, -1), _KIND_OF.get(name, "other")
