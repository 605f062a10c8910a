"""Step: the context that `run.step` returns.

Times are read from the monotonic clock, as the last action of ``__enter__`` and the first of ``__exit__``. The row is
written when the block ends, and survives a kill after ``__exit__`` has returned.
"""

import contextlib
import struct
from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol, Self

from ranklake.capture.common.gaps import (
    BAD_STEP,
    BAD_VALUE,
    BEGUN_BEFORE_FORK,
    BEGUN_TWICE,
    NOT_BEGUN,
)
from ranklake.capture.common.layouts import ABSENT, METRIC_OF, PHASES, STEP_COUNTS, STEP_FLOATS, STEPS
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.native import MODULE
from ranklake.capture.common.values import PLAIN, BadValueError, DeviceValueError, integer, repr_of, text
from ranklake.capture.lanes.shards import AnyLane
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.events import Events, note_step
from ranklake.capture.steps.own_columns import OwnNumbers, pack
from ranklake.capture.steps.progress import Frame
from ranklake.capture.steps.spans import Spans
from ranklake.capture.steps.waits import Waits

if TYPE_CHECKING:
    from ranklake.capture.lanes.slots import Place


_INT64_END: Final = 1 << 63


class Values(Protocol):
    """Records values of steps as metrics: the interface of `ranklake.capture.metrics.value_log.ValueLog`.

    Attributes
    ----------
    fast
        Records values by name, in the running step.
    """

    fast: Callable[..., None]

    def add(self, name: str, value: float, step: int) -> None:
        """Record one value. `value` and `step` must be valid."""


class Steps:
    """Objects that all steps of one run share.

    Parameters
    ----------
    lane
        Lane of the steps' rows.
    own
        Numbers that an overlay adds to a row; None if it adds none.
    """

    def __init__(
        self,
        spans: Spans,
        waits: Waits,
        device: DeviceValues,
        events: Events,
        values: Values,
        lane: AnyLane,
        own: OwnNumbers | None = None,
    ) -> None:
        self.sink, self.progress, self.stack = spans.sink, spans.progress, spans.progress.stack
        self.spans, self.waits, self.device = spans, waits, device
        self.events, self.values, self.lane, self.own = events, values, lane, own
        self.progress.on_again = self._report_repetition

    def number(self, raw: object) -> int:
        """Convert a step's number; None means the last number plus 1. Raises the errors of `integer`."""
        if raw is None:
            latest = self.progress.latest
            return 0 if latest == ABSENT else latest + 1
        whole = integer(raw)
        if whole < 0:
            self.sink.misuse("step below 0", f"step {whole} is below 0: its row will be refused by ingest")
        return whole

    def _report_repetition(self, number: int) -> None:
        problem = f"step {number} was repeated in this process, after other steps"
        hint = "number steps over all epochs, or omit the number"
        self.sink.misuse("step again", f"{problem}: a step then has several rows; {hint}")


_pack_step: Final = STEPS.packer.pack_into
_pack_float: Final = struct.Struct("<d").pack_into
_INTEGER: Final = struct.Struct("<q")
_PRESENT: Final = struct.Struct("<I")
_MEMORY: Final = struct.Struct("<qq")

_DATA: Final = PHASES.index("data")
_NO_WAIT: Final = (ABSENT, 0)
_put_step: Final[Any] = (
    None if MODULE is None else MODULE.put_step
)  # writes both rows of a step if all values are plain
_NO_FLOATS: Final = (0.0,) * len(STEP_FLOATS)
_ENDED: Final = 1 << 30  # value of `_uses` after the block has ended


class Step(Frame):
    """One training step: a row of ``steps``, and a span that is the parent of its phases' spans.

    The row is written at the end of the block. If the block raises, the step has no row: its span and an event
    ``step_failed`` are written, and its values go to ``scalars``. The thread's wait for data before the step is part of
    the step; see `ranklake.capture.steps.waits`.
    """

    __slots__ = ("_counts", "_floats", "_place", "_raw", "_scalars", "_stack", "_steps", "_uses", "_waited")

    def __init__(self, steps: Steps, raw: object, tokens: object, samples: object, scalars: dict[str, object]) -> None:
        self.owner = self
        self._steps, self._stack = steps, steps.stack
        self._raw, self._scalars = raw, scalars
        self.number = ABSENT
        if MODULE is None:  # the frame in C starts with this value
            self.spent = [ABSENT] * len(PHASES)
        self._counts = counts = {"tokens": ABSENT, "samples": ABSENT}
        self._floats: dict[str, float] = {}
        self._place: Place | None = None
        self._uses = 0
        self._waited = _NO_WAIT
        # Plain integers need no conversion: a function call would cost more than this check.
        if type(tokens) is int and 0 <= tokens < _INT64_END:
            counts["tokens"] = tokens
        elif tokens is not None:
            self._count("tokens", tokens)
        if samples is not None:
            self._count("samples", samples)

    def _count(self, name: str, value: object) -> None:
        try:
            self._counts[name] = integer(value)
        except (BadValueError, DeviceValueError) as error:
            self._steps.sink.refuse("scalars", BAD_VALUE, f"{name}={error}")

    def __enter__(self) -> Self:
        self._uses += 1
        if self._uses > 1:  # counted when the second block ends
            return self
        steps, raw = self._steps, self._raw
        if type(raw) is int and 0 <= raw < _INT64_END:
            self.number = raw
        else:
            try:
                self.number = steps.number(raw)
            except Exception:  # noqa: BLE001 - counted when the step ends
                self.number = ABSENT
        stack = self._stack
        self.parent = stack.top
        self.step = self
        self.adds = True
        self.inner = self.start = 0
        self.span_id = steps.spans.next_id()
        stack.top = self
        steps.progress.begin(self)  # last: a signal handler with its own step restores the step on the stack
        if steps.device.queue.waiting:
            steps.device.deliver()
        if len(steps.waits):
            self._claim_waits()
        self.start = now()
        if self._scalars:
            steps.values.fast(self._scalars)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        end = now()
        if self._uses != 1:
            self._misused()
            return
        self._uses = _ENDED
        parent = self.parent
        stack = self._stack
        if stack.top is self or self._is_on_stack():  # also removes phases within that were not ended
            stack.top = parent
        self._steps.progress.end(None if parent is None else parent.step)
        try:
            self._end(end, error)
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._steps.sink.trouble("ending a step", trouble, "steps")

    def abandon(self) -> None:
        """End the block without a row and without a failure; its values become metrics.

        Hooks of frameworks use it, because they begin a step before they know whether there is another one.
        """
        if self._uses != 1:
            return
        self._uses = _ENDED
        parent = self.parent
        if self._is_on_stack():
            self._stack.top = parent
        self._steps.progress.end(None if parent is None else parent.step)
        self._log_as_metrics()

    def _claim_waits(self) -> None:
        try:
            self._waited = self._steps.waits.claim(self)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._steps.sink.trouble("claiming waits", error, "spans")
            return
        spent = self.spent
        spent[_DATA] = self._waited[1]
        self.spent = spent  # the hot path in C returns copies

    def _misused(self) -> None:
        for table in ("steps", "spans"):
            self._steps.sink.refuse(table, BEGUN_TWICE if self._uses else NOT_BEGUN)
        self._uses = max(0, self._uses - 1)

    def _end(self, end: int, error: BaseException | None) -> None:
        steps, start = self._steps, self.start
        if start is None:
            steps.sink.refuse("steps", BEGUN_BEFORE_FORK)
            steps.sink.refuse("spans", BEGUN_BEFORE_FORK)
            return
        begun, waited = self._waited
        if begun == ABSENT:
            begun = start
        duration = end - start + waited
        if self.parent is not None:
            self.parent.inner += duration
        spans = steps.spans
        name = spans.step_number()
        is_plain = error is None and self.number != ABSENT
        place: Place | Literal[False] | None = None
        if is_plain and name is not None and _put_step is not None and steps.own is None:
            tokens, samples = self._counts.values()
            place = _put_step(
                self, spans.lane, steps.lane, name, begun, end - begun, duration, tokens, samples, *self._numbers()
            )
        if place:
            self._place = place
        else:
            if place is None and name is not None:
                parent_id = ABSENT if self.parent is None else self.parent.span_id
                spans.put(begun, end - begun, self.number, self.span_id, parent_id, ABSENT, -1, 0, name)
            if error is not None:
                self._fail(error)
            elif self.number == ABSENT:
                steps.sink.refuse("steps", BAD_STEP, repr_of(self._raw))
                self._log_as_metrics()
            else:
                self._write(begun, duration)
        for callback in steps.progress.on_settled:
            callback(self, duration, error is not None)

    def _numbers(self) -> tuple[tuple[float, ...], int]:
        """Return the row's floats, and the bits of those that are set."""
        floats = self._floats
        if not floats:
            return _NO_FLOATS, 0
        numbers, present = list(_NO_FLOATS), 0
        for bit, name in enumerate(STEP_FLOATS):
            if name in floats:
                numbers[bit] = floats[name]
                present |= 1 << bit
        return tuple(numbers), present

    def _write(self, start: int, duration: int) -> None:
        floats, counts = self._floats, self._counts
        numbers, present = self._numbers()
        fields = (start, duration, self.number, *self.spent, counts["tokens"], counts["samples"], *numbers)
        own = self._steps.own
        if own is None:
            self._place = self._steps.lane.put(_pack_step, *fields, ABSENT, ABSENT, present)
        else:
            self._place = self._steps.lane.put(pack, *fields, ABSENT, ABSENT, present, *own.fields(floats))

    def _fail(self, error: BaseException) -> None:
        """Record that the step failed. The run may continue, because the caller may handle the exception."""
        self._log_as_metrics()
        step = None if self.number == ABSENT else self.number
        if step is not None:
            note_step(error, step)
        self._steps.events.add(
            "step_failed",
            message=f"{type(error).__name__}: {text(error, 4096)}",
            severity="warning",
            step=step,
            exception=type(error).__name__,
        )

    def _log_as_metrics(self) -> None:
        """Record the values of a step without a row as metrics."""
        for name, value in self._floats.items():
            self._steps.values.add(METRIC_OF.get(name, name), value, self.number)
        for name, count in self._counts.items():
            if count != ABSENT:
                self._steps.values.add(METRIC_OF[name], float(count), self.number)

    def put(self, name: str, value: float) -> None:
        """Set a number in the row. A previous number is recorded as a metric, so that it is not lost."""
        if name in STEP_COUNTS:
            count = int(value)
            before, self._counts[name] = self._counts[name], count
            if before != ABSENT:
                self._steps.values.add(METRIC_OF[name], float(before), self.number)
            return
        floats, self._floats = self._floats, {}  # a signal handler may put numbers into the new dict meanwhile
        replaced = floats.get(name)
        floats[name] = value
        meanwhile, self._floats = self._floats, floats
        if meanwhile:
            self._put_all(meanwhile)
        if replaced is not None:
            self._steps.values.add(METRIC_OF.get(name, name), replaced, self.number)

    def _put_all(self, floats: dict[str, float]) -> None:
        """Set numbers that a signal handler put while the row's dict was replaced."""
        for name, value in floats.items():
            self.put(name, value)

    def fill(self, scalars: dict[Any, Any]) -> bool:
        """Set floats of a row without floats so far, if all values are plain numbers. Return whether they were set."""
        if self._floats or not PLAIN.issuperset(map(type, scalars.values())):
            return False
        try:
            floats = {name: float(value) for name, value in scalars.items()}
        except OverflowError:
            return False
        meanwhile, self._floats = self._floats, floats
        if meanwhile:
            self._put_all(meanwhile)
        return True

    def put_late(self, name: str, value: float) -> None:
        """Set a number that arrived from a GPU in the written row.

        If the row is sealed, or has another number already, record it as a metric.
        """
        if name in STEP_COUNTS:
            try:
                value = integer(value)
            except BadValueError as error:
                self._steps.sink.refuse("scalars", BAD_VALUE, f"{name}={error}")
                return
        if self._is_on_stack():
            self.put(name, value)
            return
        if self._place is not None:
            with contextlib.suppress(TypeError, ValueError):  # the view was released for sealing
                own = self._steps.own
                fill = own.fill if own is not None and name in own else _fill
                if fill(*self._place, name, value):
                    return
        self._steps.values.add(METRIC_OF.get(name, name), float(value), self.number)

    def spend_late(self, column: int, duration: int) -> None:
        """Add GPU time in ns to a phase in the written row; as a metric if the row is sealed."""
        place = self._place
        if place is None:  # the step is still open, or failed and has no row
            spent = self.spent
            spent[column] = duration + (0 if spent[column] == ABSENT else spent[column])
            self.spent = spent  # the hot path in C returns copies
            return
        view, offset = place
        at = offset + STEPS.offset(f"{PHASES[column]}_ns")
        try:
            before = _INTEGER.unpack_from(view, at)[0]
            _INTEGER.pack_into(view, at, duration + (0 if before == ABSENT else before))
        except (TypeError, ValueError):  # the view was released for sealing
            self._steps.values.add(f"phase/{PHASES[column]}", duration / 1e9, self.number)

    def put_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Set the GPU memory in the written row; do nothing if there is no row, or it is sealed."""
        if self._place is not None:
            view, offset = self._place
            with contextlib.suppress(TypeError, ValueError):  # the view was released for sealing
                _MEMORY.pack_into(
                    view, offset + STEPS.offset("memory_allocated_bytes"), allocated_bytes, reserved_bytes
                )

    def _is_on_stack(self) -> bool:
        frame = self._stack.top
        while frame is not None and frame is not self:
            frame = frame.parent
        return frame is self


def _fill(view: memoryview, offset: int, name: str, value: float) -> bool:
    """Set a number in a written row; False if it has one already. Raises `ValueError` if the file was retired."""
    at = offset + STEPS.offset(name)
    if name in STEP_COUNTS:
        if _INTEGER.unpack_from(view, at)[0] != ABSENT:
            return False
        _INTEGER.pack_into(view, at, value)
        return True
    present_at, bit = offset + STEPS.offset("present"), 1 << STEP_FLOATS.index(name)
    present = _PRESENT.unpack_from(view, present_at)[0]
    if present & bit:
        return False
    _pack_float(view, at, value)
    _PRESENT.pack_into(view, present_at, present | bit)
    return True
