"""Step: what `run.step` returns.

Only the monotonic clock is read here, first thing at the end and last thing at the beginning. A row is written when
its block ends: once ``__exit__`` has returned, the row survives the process.
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


_BEYOND: Final = 1 << 63


class Values(Protocol):
    """What takes the values of steps that go into no row: `ranklake.capture.metrics.value_log.ValueLog`.

    Attributes
    ----------
    fast
        Records values by name, in the step that runs.
    """

    fast: Callable[..., None]

    def add(self, name: str, value: float, step: int) -> None:
        """Record one value whose number and step are in order already."""


class Steps:
    """What all steps of one run have in common.

    Parameters
    ----------
    lane
        Their rows.
    own
        Where numbers that an overlay adds stand in a row; None where it adds none.
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
        self.progress.on_again = self._tell_again

    def number(self, raw: object) -> int:
        """Return a step's number that is no plain one; None is one more than the last. Raises what `integer` raises."""
        if raw is None:
            latest = self.progress.latest
            return 0 if latest == ABSENT else latest + 1
        whole = integer(raw)
        if whole < 0:
            self.sink.misuse("step below 0", f"step {whole} is below 0: its row will be refused when it is ingested")
        return whole

    def _tell_again(self, number: int) -> None:
        problem = f"step {number} came again in this process, after others"
        hint = "number steps over all epochs, or leave the number out"
        self.sink.misuse("step again", f"{problem}: rows of one step are there more than once; {hint}")


_pack_step: Final = STEPS.packer.pack_into
_pack_float: Final = struct.Struct("<d").pack_into
_INTEGER: Final = struct.Struct("<q")
_PRESENT: Final = struct.Struct("<I")
_MEMORY: Final = struct.Struct("<qq")

_DATA: Final = PHASES.index("data")
_NO_WAIT: Final = (ABSENT, 0)
_put_step: Final[Any] = None if MODULE is None else MODULE.put_step  # writes both rows of a step, if that is all plain
_NO_FLOATS: Final = (0.0,) * len(STEP_FLOATS)
_DONE: Final = 1 << 30  # uses of a step whose block has ended


class Step(Frame):
    """One training step: a row of ``steps``, and a span that its phases hang on.

    The row is written at the end of the block. If the block raises, the step did not happen: its span and a
    ``step_failed`` event are written, and what was logged in it goes to ``scalars``. What its thread waited for data
    before it is part of it, see `ranklake.capture.steps.waits`.
    """

    __slots__ = ("_counts", "_floats", "_place", "_raw", "_scalars", "_stack", "_steps", "_uses", "_waited")

    def __init__(self, steps: Steps, raw: object, tokens: object, samples: object, scalars: dict[str, object]) -> None:
        self.owner = self
        self._steps, self._stack = steps, steps.stack
        self._raw, self._scalars = raw, scalars
        self.number = ABSENT
        if MODULE is None:  # C's begins so
            self.spent = [ABSENT] * len(PHASES)
        self._counts = counts = {"tokens": ABSENT, "samples": ABSENT}
        self._floats: dict[str, float] = {}
        self._place: Place | None = None
        self._uses = 0
        self._waited = _NO_WAIT
        # integers are taken as they are: what is called at every step costs more than it does
        if type(tokens) is int and 0 <= tokens < _BEYOND:
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
        if self._uses > 1:  # counted when that block ends
            return self
        steps, raw = self._steps, self._raw
        if type(raw) is int and 0 <= raw < _BEYOND:
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
        steps.progress.begin(self)  # behind that: a signal handler that has a step of its own puts this one back
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
        self._uses = _DONE
        parent = self.parent
        stack = self._stack
        if stack.top is self or self._stack_has_me():  # and with it go phases within that were never ended
            stack.top = parent
        self._steps.progress.end(None if parent is None else parent.step)
        try:
            self._end(end, error)
        except Exception as trouble:  # noqa: BLE001 - telemetry never raises into training
            self._steps.sink.trouble("ending a step", trouble, "steps")

    def abandon(self) -> None:
        """Leave the block as if it had not been: no row, no failure, and what was logged in it becomes metrics.

        For steps that are begun before it is known whether there is one, as frameworks' hooks do.
        """
        if self._uses != 1:
            return
        self._uses = _DONE
        parent = self.parent
        if self._stack_has_me():
            self._stack.top = parent
        self._steps.progress.end(None if parent is None else parent.step)
        self._spill()

    def _claim_waits(self) -> None:
        try:
            self._waited = self._steps.waits.claim(self)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._steps.sink.trouble("claiming waits", error, "spans")
            return
        spent = self.spent
        spent[_DATA] = self._waited[1]
        self.spent = spent  # the hot path in C gives copies

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
                self._spill()
            else:
                self._write(begun, duration)
        for callback in steps.progress.on_settled:
            callback(self, duration, error is not None)

    def _numbers(self) -> tuple[tuple[float, ...], int]:
        """Return the row's floats, and which of them are there."""
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
        """Tell that the step did not happen. Whether that ends the run is not known yet: somebody may handle it."""
        self._spill()
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

    def _spill(self) -> None:
        """Record what was logged in a step that has no row as metrics."""
        for name, value in self._floats.items():
            self._steps.values.add(METRIC_OF.get(name, name), value, self.number)
        for name, count in self._counts.items():
            if count != ABSENT:
                self._steps.values.add(METRIC_OF[name], float(count), self.number)

    def put(self, name: str, value: float) -> None:
        """Set one of the row's numbers; one that was set before is kept as a metric, so that nothing is lost."""
        if name in STEP_COUNTS:
            count = int(value)
            before, self._counts[name] = self._counts[name], count
            if before != ABSENT:
                self._steps.values.add(METRIC_OF[name], float(before), self.number)
            return
        floats, self._floats = self._floats, {}  # a signal handler that puts something meanwhile puts it there
        replaced = floats.get(name)
        floats[name] = value
        meanwhile, self._floats = self._floats, floats
        if meanwhile:
            self._put_again(meanwhile)
        if replaced is not None:
            self._steps.values.add(METRIC_OF.get(name, name), replaced, self.number)

    def _put_again(self, meanwhile: dict[str, float]) -> None:
        """Put what a signal handler has put while the row's numbers were elsewhere."""
        for name, value in meanwhile.items():
            self.put(name, value)

    def fill(self, scalars: dict[Any, Any]) -> bool:
        """Set several of the row's floats that were not set before; False, and none is set, if that is not so plain."""
        if self._floats or not PLAIN.issuperset(map(type, scalars.values())):
            return False
        try:
            floats = {name: float(value) for name, value in scalars.items()}
        except OverflowError:
            return False
        meanwhile, self._floats = self._floats, floats
        if meanwhile:
            self._put_again(meanwhile)
        return True

    def put_late(self, name: str, value: float) -> None:
        """Set a number that arrived from a device: in the row that was written, or as a metric once that is sealed.

        A metric, too, if the row has another number there.
        """
        if name in STEP_COUNTS:
            try:
                value = integer(value)
            except BadValueError as error:
                self._steps.sink.refuse("scalars", BAD_VALUE, f"{name}={error}")
                return
        if self._stack_has_me():
            self.put(name, value)
            return
        if self._place is not None:
            with contextlib.suppress(TypeError, ValueError):  # released: sealed just now
                own = self._steps.own
                fill = own.fill if own is not None and name in own else _fill
                if fill(*self._place, name, value):
                    return
        self._steps.values.add(METRIC_OF.get(name, name), float(value), self.number)

    def spend_late(self, column: int, duration: int) -> None:
        """Add device time, in ns, to a phase: in the row that was written, or as a metric once that is sealed."""
        place = self._place
        if place is None:  # still open, or it failed: then nobody asks
            spent = self.spent
            spent[column] = duration + (0 if spent[column] == ABSENT else spent[column])
            self.spent = spent  # the hot path in C gives copies
            return
        view, offset = place
        at = offset + STEPS.offset(f"{PHASES[column]}_ns")
        try:
            before = _INTEGER.unpack_from(view, at)[0]
            _INTEGER.pack_into(view, at, duration + (0 if before == ABSENT else before))
        except (TypeError, ValueError):  # released: sealed just now
            self._steps.values.add(f"phase/{PHASES[column]}", duration / 1e9, self.number)

    def put_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Set what the device's memory held, in the row that was written; nothing where there is none, or no more."""
        if self._place is not None:
            view, offset = self._place
            with contextlib.suppress(TypeError, ValueError):  # released: sealed just now
                _MEMORY.pack_into(
                    view, offset + STEPS.offset("memory_allocated_bytes"), allocated_bytes, reserved_bytes
                )

    def _stack_has_me(self) -> bool:
        frame = self._stack.top
        while frame is not None and frame is not self:
            frame = frame.parent
        return frame is self


def _fill(view: memoryview, offset: int, name: str, value: float) -> bool:
    """Set a number in a row that was written; False if there is one. Raises `ValueError` if the file was ended."""
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
