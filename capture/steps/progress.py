"""Progress: which step runs in this process, which blocks each thread is in, and how many have begun."""

import itertools
from typing import TYPE_CHECKING, Final

from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.steps.stack import OpenStep, Stack

if TYPE_CHECKING:
    from collections.abc import Callable

_COUNT: Final = len("count(")


def _nobody(number: int) -> None:
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
        self.on_again: Callable[[int], object] = _nobody
        self.span_ids = itertools.count(1)
        self.on_begin: tuple[Callable[[OpenStep], object], ...] = (self._begin_first,)
        self.on_end: tuple[Callable[[OpenStep], object], ...] = ()
        self.on_settled: tuple[Callable[[OpenStep, int, bool], object], ...] = ()

    def begin(self, step: OpenStep) -> None:
        """Take note that a step begins: values logged from here on are its."""
        self.current = step
        self.at = number = step.number
        if number > self.latest:
            self.latest = number
        elif number != ABSENT:
            if number == self.first and number < self.latest:
                self.on_again(number)
            self.latest = number
        for told in self.on_begin:
            told(step)

    def _begin_first(self, step: OpenStep) -> None:
        """Note the first number; what is called once costs later steps nothing."""
        if step.number != ABSENT:
            self.first = step.number
            self.on_begin = tuple(told for told in self.on_begin if told != self._begin_first)

    def end(self, around: OpenStep | None) -> None:
        """Take note that a step ends: what is logged now belongs to the step around it, or to the one that ended."""
        if self.on_end and self.current is not None:
            for told in self.on_end:
                told(self.current)
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
