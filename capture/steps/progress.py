"""Progress: the running step of this process, the open blocks of each thread, and how many blocks have begun."""

import itertools
import threading
from typing import TYPE_CHECKING, Any, Final, Protocol

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.native import MODULE

if TYPE_CHECKING:
    from collections.abc import Callable


class OpenStep(Protocol):
    """The interface of a running step, `ranklake.capture.steps.step.Step`."""

    number: int
    span_id: int
    start: int | None
    spent: list[int]

    def put(self, name: str, value: float) -> None:
        """Set a number in the step's row."""

    def fill(self, scalars: dict[Any, Any]) -> bool:
        """Set floats of a row without floats so far, if all values are plain numbers. Return whether they were set."""

    def put_late(self, name: str, value: float) -> None:
        """Set a number that arrived from a GPU."""

    def spend_late(self, column: int, duration: int) -> None:
        """Add GPU time in ns to a phase."""

    def put_memory(self, allocated_bytes: int, reserved_bytes: int) -> None:
        """Set the GPU memory in use at the end of the step."""


class Frame:
    """An open block: a step, or one use of a phase.

    Attributes
    ----------
    parent
        The enclosing frame in the same thread.
    owner
        The handle that was entered.
    step
        The step itself, or the nearest enclosing step.
    number, spent
        Only for steps: the number, and nanoseconds by phase.
    start
        Monotonic ns; None if it began before a fork, so that the parent records it.
    inner
        Time of the phases directly within, which is not counted for this frame.
    span_id
        Id of the span, unique in the process.
    adds
        Whether it runs in the thread of its step, so that its time is part of the step's time.
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
        """Remove the innermost frame of an owner from the calling thread's stack and return it; None without one.

        It is not always the top frame, because coroutines that share a thread end their blocks in any order.
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
    """The progress of one run.

    Attributes
    ----------
    stack
        The innermost open step or phase of each thread.
    current
        The running step, in any thread.
    at
        Number of the step that values belong to: the running step, or between steps the last one.
    latest
        Number of the step that began last; ABSENT before the first.
    first
        Number of the step that began first; ABSENT before it.
    on_again
        Called with the first step's number when it is repeated after other steps.
    span_ids
        Counter of span ids, unique in the process.
    on_begin, on_end
        Called with a step when it begins, and shortly before it ends.
    on_settled
        Called with a step after its rows were written, its duration in ns, and whether it failed.
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
        """Make a step the current one, to which later values belong."""
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
        """Set `first`, and remove this callback, so that later steps do not pay for it."""
        if step.number != ABSENT:
            self.first = step.number
            self.on_begin = tuple(callback for callback in self.on_begin if callback != self._begin_first)

    def end(self, around: OpenStep | None) -> None:
        """End the current step. Later values belong to the enclosing step; without one, to the ended step."""
        if self.on_end and self.current is not None:
            for callback in self.on_end:
                callback(self.current)
        self.current = around
        self.at = self.latest if around is None else around.number

    def begun(self) -> int:
        """Return the number of steps and phases begun in this process, from the counter of span ids."""
        return int(repr(self.span_ids)[_COUNT:-1]) - 1

    def latest_step(self) -> int | None:
        """Return the number of the step that began last; None before the first."""
        return None if self.latest == ABSENT else self.latest

    def after_fork(self) -> None:
        """Mark open blocks in a forked child, because the parent began them and records them."""
        self.current = None
        frame = self.stack.top
        while frame is not None:
            frame.start = None
            frame = frame.parent
