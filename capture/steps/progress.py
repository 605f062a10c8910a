"""Progress: which step runs in this process, which blocks each thread is in, and how many have begun."""

import itertools
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.native import MODULE

if TYPE_CHECKING:
    from collections.abc import Callable


class OpenStep(Protocol):
    """A training step as others see it: `ranklake.capture.steps.step.Step`."""

    number: int
    span_id: int
    start: int | None
    spent: list[int]

    def put(self, name: str, value: float) -> None:
        """Set one of the row's numbers."""

    def fill(self, scalars: dict[Any, Any]) -> bool:
        """Set several of the row's floats that were not set before; False, and none is set, if that is not so plain."""

    def put_late(self, name: str, value: float) -> None:
        """Set a number that arrived from a device."""

    def spend_late(self, column: int, duration: int) -> None:
        """Add device time, in ns, to a phase."""

    def put_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Set what the device's memory held as it ended."""


class Frame:
    """An open stretch of time: a step, or one passage through a phase.

    Attributes
    ----------
    parent
        The frame around it in the same thread.
    owner
        The handle that was entered.
    step
        The nearest step around or itself.
    number, spent
        Of a step alone: its number, and nanoseconds by phase.
    start
        Monotonic ns; None if it began in the parent of a fork, whose time it is.
    inner
        Time of the phases directly within, which is theirs and not this one's.
    span_id
        Unique in the process.
    adds
        Whether it runs in its step's own thread, so that its time is part of the step's.
    """

    __slots__ = ("adds", "inner", "number", "owner", "parent", "span_id", "spent", "start", "step")

    parent: "Frame | None"
    owner: object
    step: OpenStep | None
    start: int | None
    inner: int
    span_id: int
    adds: bool
    number: int
    spent: list[int]


class Stack(threading.local):
    """The innermost open frame of each thread."""

    top: Frame | None = None

    def leave(self, owner: object) -> Frame | None:
        """Take the innermost frame of an owner off the calling thread's stack; None if it has none there.

        It need not be the top: coroutines that share a thread leave their blocks in any order.
        """
        frame = self.top
        if frame is None:
            return None
        if frame.owner is owner:
            self.top = frame.parent
            return frame
        while (outer := frame.parent) is not None:
            if outer.owner is owner:
                frame.parent = outer.parent
                return outer
            frame = outer
        return None


if MODULE is not None and not TYPE_CHECKING:
    Frame, Stack = MODULE.Frame, MODULE.Stack


_COUNT: Final = len("count(")


def _no_listener(number: int) -> None:
    del number


class Progress:
    """How far one run is.

    Attributes
    ----------
    stack
        The innermost open step or phase of each thread.
    current
        The step that runs, in whichever thread.
    at
        Number of the step that values belong to: the running one's, or between steps that of the one that ended last.
    latest
        Number of the step that began last; ABSENT before the first.
    first
        Number of the step that began first; ABSENT before it.
    on_again
        Called with the first step's number when it comes again after others.
    span_ids
        Gives each span its number, unique in the process.
    on_begin, on_end
        Called with a step when it begins, and before it is no longer the current one.
    on_settled
        Called with a step whose rows are written, its duration in ns, and whether it failed.
    """

    def __init__(self) -> None:
        self.stack = Stack()
        self.current: OpenStep | None = None
        self.at = self.latest = self.first = ABSENT
        self.on_again: Callable[[int], object] = _no_listener
        self.span_ids = itertools.count(1)
        self.on_begin: tuple[Callable[[OpenStep], object], ...] = (self._begin_first,)
        self.on_end: tuple[Callable[[OpenStep], object], ...] = ()
        self.on_settled: tuple[Callable[[OpenStep, int, bool], object], ...] = ()

    def begin(self, step: OpenStep) -> None:
        """Note that a step begins: values logged from here on are its."""
        self.current = step
        self.at = number = step.number
        if number > self.latest:
            self.latest = number
        elif number != ABSENT:
            if number == self.first and number < self.latest:
                self.on_again(number)
            self.latest = number
        for callback in self.on_begin:
            callback(step)

    def _begin_first(self, step: OpenStep) -> None:
        """Note the first number; what is called once costs later steps nothing."""
        if step.number != ABSENT:
            self.first = step.number
            self.on_begin = tuple(callback for callback in self.on_begin if callback != self._begin_first)

    def end(self, around: OpenStep | None) -> None:
        """Note that a step ends: what is logged now belongs to the step around it, or to the one that ended."""
        if self.on_end and self.current is not None:
            for callback in self.on_end:
                callback(self.current)
        self.current = around
        self.at = self.latest if around is None else around.number

    def begun(self) -> int:
        """Return how many steps and phases have begun in this process. Costs them nothing: it is read off a counter."""
        return int(repr(self.span_ids)[_COUNT:-1]) - 1

    def latest_step(self) -> int | None:
        """Return the number of the step that began last; None before the first."""
        return None if self.latest == ABSENT else self.latest

    def after_fork(self) -> None:
        """In a forked child: blocks that are open began in the parent, which records them."""
        self.current = None
        frame = self.stack.top
        while frame is not None:
            frame.start = None
            frame = frame.parent
