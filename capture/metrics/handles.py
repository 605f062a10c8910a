"""Handles: shared parts of the objects that are created once per metric name and then reused."""

from collections.abc import Callable
from typing import Any, Final, Protocol

from ranklake.capture.common.gaps import NOT_STARTED, NOWHERE, Gaps
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, repr_of

Define = Callable[[], int]
"""Returns the number of a handle's series; raises `RefusedError`."""

Late = Callable[[Any], None]
Failed = Callable[[str, object, Exception, Late], None]
"""Called for a value that cannot be recorded now: name, value, error, and the callback for a late value."""

_LONGEST_S: Final = 86_400.0


class BadStepError(BadValueError):
    """The value is not the number of a step."""


class Handle(Protocol):
    """The interface of handles that a run needs."""

    def after_fork(self) -> None:
        """Drop unfinished rows in a forked child, because they belong to the parent."""


class NullHandle:
    """The handle of a run that records nothing, and of an unpickled handle.

    Parameters
    ----------
    table
        Table for which rows are counted.
    idle
        Counts the rows; None if the user disabled recording.
    """

    def __init__(self, name: str, table: str = "scalars", idle: Gaps | None = NOWHERE) -> None:
        self.name, self._table, self._idle = name, table, idle

    def add(self, *_: object, **__: object) -> None:
        """Count a row that is not recorded."""
        if self._idle is not None:
            self._idle.count(self._table, NOT_STARTED, 1, self.name)

    record = add

    def __reduce__(self) -> tuple[Any, ...]:
        return NullHandle, (self.name, self._table) if self._idle is not None else (self.name, self._table, None)


def step_of(step: object) -> int:
    """Return a step's number as an int; `ABSENT` for None. Raises `BadStepError`."""
    if step is None:
        return ABSENT
    if type(step) is int and ABSENT < step < -ABSENT:
        return step
    try:
        return integer(step)
    except (BadValueError, DeviceValueError) as error:
        raise BadStepError(repr_of(step)) from error


def interval_ns(every_s: object) -> int:
    """Return an interval in ns, at most a day. Raises the errors of `float`, and `ValueError` if it is not above 0."""
    seconds = float(every_s)  # type: ignore[arg-type]  # its errors are the caller's
    if not seconds > 0:
        raise ValueError("an interval is longer than 0 s")
    return int(min(seconds, _LONGEST_S) * 1e9)
