"""Steps and phases: what `run.step` and `run.phase` return, and which of them a thread is in.

Only the monotonic clock is read here, first thing at the end and last thing at the beginning. A row is written when
its block ends: once ``__exit__`` has returned, the row survives the process.
"""

import struct
import sys
import threading
import time
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.capture.gaps import BAD_STEP, BAD_VALUE, BEGUN_BEFORE_FORK
from ranklake.capture.layouts import ABSENT, MARK, PHASES, SPANS, STEP_FLOATS, STEPS
from ranklake.capture.values import BadValueError, DeviceValueError, integer, repr_of

if TYPE_CHECKING:
    from ranklake.capture.run import Run
    from ranklake.capture.slots import Place

now: Final = time.monotonic_ns
_pack_step: Final = STEPS.packer.pack_into
_pack_span: Final = SPANS.packer.pack_into
_pack_float: Final = struct.Struct("<d").pack_into
_PRESENT: Final = struct.Struct("<I")

STEP_COUNTS: Final = frozenset({"tokens", "samples"})
STEP_NAMES: Final = {
    **{name: name for name in (*STEP_FLOATS, *STEP_COUNTS)},
    **{f"train/{name}": name for name in STEP_FLOATS},
}
"""What `run.log` puts into the row of the running step, by the names it takes for it."""

METRIC_OF: Final = {name: f"train/{name}" for name in (*STEP_FLOATS, *STEP_COUNTS)}
"""The same values as metrics, for when no step is running."""

_PHASE_OF: Final = {name: index for index, name in enumerate(PHASES)} | {"eval": PHASES.index("evaluation")}
_KIND_OF: Final = {name: name if name in {"collective", "checkpoint", "evaluation"} else "phase" for name in PHASES} | {
    "eval": "evaluation"
}


class Stack(threading.local):
    """The innermost open frame of each thread."""

    top: "Frame | None" = None


class Frame:
    """An open stretch of time: a step or a phase.

    Attributes
    ----------
    start
        Monotonic ns; None if it began in the parent of a fork, whose time it is.
    inner
        Time of the phases directly within, which is theirs and not this one's.
    step
        The nearest step around or itself.
    adds
        Whether it runs in its step's own thread, so that its time is part of the step's.
    """

    __slots__ = ("_run", "_stack", "adds", "inner", "parent", "span_id", "start", "step")

    _run: "Run"
    _stack: Stack
    parent: "Frame | None"
    step: "Step | None"
    start: int | None
    inner: int
    span_id: int
    adds: bool


class Phase(Frame):
    """A named stretch of time, recorded as a span; within a step it also adds to the step's column of that name.

    Time in a phase within a phase is the inner one's alone, so the phases of a step never sum to more than the step.
    """

    __slots__ = ("_column", "_microbatch", "_name", "_size")

    def __init__(self, run: "Run", name: int, column: int, size: int, microbatch: int) -> None:
        self._run, self._stack = run, run.stack
        self._name, self._column, self._size, self._microbatch = name, column, size, microbatch

    def __enter__(self) -> Self:
        stack = self._stack
        parent = self.parent = stack.top
        if parent is None:
            # Perhaps another thread than the step's (a backward hook's, say): its spans belong to the step that runs
            # meanwhile, but its time is no part of the step's own and adds to no column.
            self.step, self.adds = self._run.current, False
        else:
            self.step, self.adds = parent.step, parent.adds
        self.inner = 0
        self.span_id = next(self._run.span_ids)
        stack.top = self
        self.start = now()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = now()
        parent, step, start = self.parent, self.step, self.start
        self._stack.top = parent
        if start is None:
            self._run.refuse("spans", BEGUN_BEFORE_FORK)
            return
        duration = end - start
        parent_id = ABSENT
        if parent is not None:
            parent.inner += duration
            parent_id = parent.span_id
        number = ABSENT
        if step is not None:
            number = step.number
            column = self._column
            if parent is None:
                parent_id = step.span_id
            elif column >= 0 and self.adds:
                spent = step.spent
                before = spent[column]
                spent[column] = duration - self.inner + (0 if before == ABSENT else before)
        lane = self._run.spans
        fields = (start, duration, number, self.span_id, parent_id, self._size, self._microbatch, 0, self._name)
        try:
            view, take = lane.pair
            _pack_span(view, take(), *fields, MARK)
        except Exception:  # noqa: BLE001 - the file is full, or cut just now: the slow way sorts it out
            lane.put(_pack_span, *fields)


class Step(Frame):
    """One training step: a row of ``steps``, and a span that its phases hang on.

    The row is written at the end of the block. If the block raises, the step did not happen: its span and a
    ``failure`` event are written, and what was logged in it goes to ``scalars``.
    """

    __slots__ = ("_counts", "_floats", "_place", "_raw", "_scalars", "number", "spent")

    def __init__(self, run: "Run", raw: object, counts: dict[str, object], scalars: dict[str, object]) -> None:
        self._run, self._stack = run, run.stack
        self._raw, self._scalars = raw, scalars
        self.number = ABSENT
        self.spent = [ABSENT] * len(PHASES)
        self._counts = {"tokens": ABSENT, "samples": ABSENT}
        self._floats: dict[str, float] = {}
        self._place: Place | None = None
        for name, value in counts.items():
            self._count(name, value)

    def _count(self, name: str, value: object) -> None:
        if value is None:
            return
        try:
            self._counts[name] = integer(value)
        except (BadValueError, DeviceValueError) as error:
            self._run.refuse("scalars", BAD_VALUE, f"{name}={error}")

    def __enter__(self) -> Self:
        run, raw = self._run, self._raw
        try:
            self.number = run.step_number(raw)
        except Exception:  # noqa: BLE001 - counted when the step ends
            self.number = ABSENT
        run.enter_step(self)
        stack = self._stack
        self.parent = stack.top
        self.step = self
        self.adds = True
        self.inner = 0
        self.span_id = next(run.span_ids)
        stack.top = self
        self.start = now()
        if self._scalars:
            run.log(self._scalars)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = now()
        parent = self.parent
        self._stack.top = parent
        self._run.leave_step(None if parent is None else parent.step)
        try:
            self._end(end, error)
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._run.trouble("ending a step", trouble, "steps")

    def _end(self, end: int, error: BaseException | None) -> None:
        run, start = self._run, self.start
        if start is None:
            run.refuse("steps", BEGUN_BEFORE_FORK)
            run.refuse("spans", BEGUN_BEFORE_FORK)
            return
        duration = end - start
        if self.parent is not None:
            self.parent.inner += duration
        parent_id = ABSENT if self.parent is None else self.parent.span_id
        name = run.step_span()
        if name is not None:
            span = (start, duration, self.number, self.span_id, parent_id, ABSENT, -1, 0, name)
            run.spans.put(_pack_span, *span)
        if error is not None:
            self._fail(error)
        elif self.number == ABSENT:
            run.refuse("steps", BAD_STEP, repr_of(self._raw))
            self._spill()
        else:
            self._write(start, duration)

    def _write(self, start: int, duration: int) -> None:
        floats = self._floats
        present = sum(1 << bit for bit, name in enumerate(STEP_FLOATS) if name in floats)
        self._place = self._run.steps.put(
            _pack_step,
            start,
            duration,
            self.number,
            *self.spent,
            self._counts["tokens"],
            self._counts["samples"],
            *(floats.get(name, 0.0) for name in STEP_FLOATS),
            ABSENT,
            ABSENT,
            present,
        )

    def _fail(self, error: BaseException) -> None:
        self._spill()
        self._run.event(
            "failure",
            message=f"{type(error).__name__}: {error}",
            severity="error",
            step=None if self.number == ABSENT else self.number,
            exception=type(error).__name__,
        )

    def _spill(self) -> None:
        """Record what was logged in a step that has no row as metrics."""
        for name, value in self._floats.items():
            self._run.add_metric(METRIC_OF[name], value, self.number)
        for name, count in self._counts.items():
            if count != ABSENT:
                self._run.add_metric(METRIC_OF[name], float(count), self.number)

    def put(self, name: str, value: float) -> None:
        """Set one of the row's numbers; one that was set before is kept as a metric, so that nothing is lost."""
        if name in STEP_COUNTS:
            before, self._counts[name] = self._counts[name], int(value)
            if before != ABSENT:
                self._run.add_metric(METRIC_OF[name], float(before), self.number)
            return
        if name in self._floats:
            self._run.add_metric(METRIC_OF[name], self._floats[name], self.number)
        self._floats[name] = value

    def put_late(self, name: str, value: float) -> None:
        """Set a number that arrived from a device: in the row that was written, or as a metric once that is sealed."""
        if self._stack_has_me():
            self.put(name, value)
            return
        place = self._place
        if place is not None:
            view, offset = place
            try:
                at = offset + STEPS.offset("present")
                _pack_float(view, offset + STEPS.offset(name), value)
                present = _PRESENT.unpack_from(view, at)[0] | 1 << STEP_FLOATS.index(name)
                _PRESENT.pack_into(view, at, present)
            except (TypeError, ValueError):  # released: sealed just now
                pass
            else:
                return
        self._run.add_metric(METRIC_OF[name], value, self.number)

    def _stack_has_me(self) -> bool:
        frame = self._stack.top
        while frame is not None and frame is not self:
            frame = frame.parent
        return frame is self


class Nothing:
    """What a run that records nothing gives for a step, a phase or a count."""

    flops: None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


NOTHING: Final = Nothing()


def phase_column(name: object) -> tuple[int, str]:
    """Return the step's column that a phase adds to (-1 for none) and the kind of its span."""
    try:
        return _PHASE_OF[name], _KIND_OF[name]  # type: ignore[index]  # a name of another type is not found
    except (KeyError, TypeError):
        return -1, "other"


def devices_alive() -> bool:
    """Say whether values may be on a device, where reading them would make training wait."""
    modules = sys.modules
    if "jax" in modules:
        return True
    torch: Any = modules.get("torch")
    if torch is None:
        return False
    try:
        return bool(torch.cuda.is_initialized() or torch.backends.mps.is_available() or torch.xpu.is_initialized())
    except AttributeError:  # half imported, or an older torch
        return False
