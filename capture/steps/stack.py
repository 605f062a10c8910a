"""Stack: which step and which phases each thread is in."""

import threading
from typing import TYPE_CHECKING, Any, Protocol

from ranklake.capture.common.native import MODULE


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
