"""Units: what a piece of work consists of, in the room's own words, for whoever watches it.

    room ── carry_out(Unit("check", "steps", dates), work) ──▶ the watcher of this context ──▶ work()
                                                                 (none: work() at once)

A command watches nothing, and pays nothing for it. A flow makes a task of each unit (`ranklake.flows.watching`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from typing import Final, Protocol, TypeVar

Result = TypeVar("Result")

SPOOL: Final = "spool"
"""Among what a unit reads, where that is no table: what recorders sent."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work: it can be carried out again, whole, whatever became of the first time.

    Attributes
    ----------
    action
        A verb: ``plan``, ``write``, ``commit``, ``check``, ``compute``, ``merge``.
    table
        Whose rows or files it is about; empty for several.
    dates
        Partitions of the table.
    detail
        What else tells it from others, such as ``plan 12, 48 tasks``.
    reads
        Tables that it is computed from, or `SPOOL`.
    writes
        Whether the table is another afterwards, if it succeeds.
    """

    action: str
    table: str = ""
    dates: tuple[date, ...] = ()
    detail: str = ""
    reads: tuple[str, ...] = ()
    writes: bool = False

    @property
    def name(self) -> str:
        """The unit in one line, such as ``check steps 2026-11-21…2026-11-22 (2 dates)``."""
        return " ".join(part for part in (self.action, self.table, spanned(self.dates), self.detail) if part)


def spanned(dates: Iterable[date]) -> str:
    """Return dates as text: one, or first and last and how many."""
    days = sorted(set(dates))
    if not days:
        return ""
    return str(days[0]) if len(days) == 1 else f"{days[0]}…{days[-1]} ({len(days)} dates)"


class Watcher(Protocol):
    """Sees every unit of work in a context."""

    def carry_out(self, unit: Unit, work: Callable[[], Result]) -> Result:
        """Carry out a unit, again where that may help; return its result, raise its error."""


_WATCHER: Final[ContextVar[Watcher | None]] = ContextVar("ranklake_watcher", default=None)


def carry_out(unit: Unit, work: Callable[[], Result]) -> Result:
    """Do a unit of work, before the eyes of whoever watches; return its result, raise its error.

    Units do not lie within one another. A thread that a room starts is watched only in a copy of the context.
    """
    watcher = _WATCHER.get()
    return work() if watcher is None else watcher.carry_out(unit, work)


@contextmanager
def watched_by(watcher: Watcher) -> Iterator[None]:
    """Let somebody watch all units until the context ends, in this thread and in copies of its context."""
    token = _WATCHER.set(watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
