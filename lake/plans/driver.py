"""Drives plans of every kind: any driver first finishes an unfinished plan, whatever its own task.

A piece of work consists of units, in the room's own words, for whoever watches it:

    room ── carry_out(Unit("check", "steps", dates), work) ──▶ the watcher of this context ──▶ work()
                                                                 (none: work() at once)

A command watches nothing, and pays nothing for it. A flow makes a task of each unit (`ranklake.flows.watching`).
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, cast

from ranklake.lake.plans.kinds import KINDS, PlanKind, resolve
from ranklake.lake.plans.plan import Plan, Progress, last_finished, read_plan, write_and_carry_out
from ranklake.lake.plans.verification import authorise

if TYPE_CHECKING:
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake


class Executor(Protocol):
    """Carries out plans of a kind."""

    def __call__(
        self, lake: "Lake", plan: Plan, workers: "Workers", progress: Progress | None, /
    ) -> list[dict[str, Any]] | None:
        """Carry out a plan, again if need be; return the account of its segments, where it names any.

        Raises `ranklake.lake.tables.commit.LostRaceError` where another driver carries it out and was faster.
        """


@dataclass(frozen=True, slots=True)
class DriveResult:
    """What was done about plans.

    Attributes
    ----------
    plan
        The plan that was composed and finished, or None where there was nothing to compose.
    outcomes
        For each plan of segments that was finished here, whoever composed it: the account of its segments.
    """

    plan: Plan | None
    outcomes: dict[int, list[dict[str, Any]]]


def drive(
    lake: "Lake", compose: Callable[[int], Plan | None], workers: "Workers", progress: Progress | None = None
) -> DriveResult:
    """Finish what is unfinished, compose the next plan, and carry it out.

    Raises `ranklake.lake.plans.plan.RefusedPlanError` where what is unfinished must not be carried out.
    """
    outcomes: dict[int, list[dict[str, Any]]] = {}

    def carry_out(plan: Plan) -> None:
        execute = cast("Executor", resolve(KINDS[plan.kind].execute))
        outcome = execute(lake, plan, workers, progress)
        if outcome is not None:
            outcomes[plan.number] = outcome

    plan = write_and_carry_out(lake, compose, carry_out, partial(authorise, lake))
    return DriveResult(plan, outcomes)


def finish(lake: "Lake", kind: PlanKind, workers: "Workers") -> None:
    """Finish the unfinished plan if it is of a kind; one of another kind may be somebody's who is at it right now."""
    waiting = read_plan(lake.store, last_finished(lake.tables) + 1)
    if waiting is not None and waiting.kind == kind.name:
        drive(lake, lambda _: None, workers)


Result = TypeVar("Result")

SPOOL: Final = "spool"
"""Among what a unit reads, where that is no table: what recorders sent."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work: idempotent, so that it can run again after any failure.

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
        return " ".join(part for part in (self.action, self.table, date_span(self.dates), self.detail) if part)


def date_span(dates: Iterable[date]) -> str:
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
    watching = _WATCHER.get()
    return work() if watching is None else watching.carry_out(unit, work)


def watcher() -> Watcher | None:
    """Return who watches the units of this context now."""
    return _WATCHER.get()


@contextmanager
def watched_by(watching: Watcher) -> Iterator[None]:
    """Let somebody watch all units until the context ends, in this thread and in copies of its context."""
    token = _WATCHER.set(watching)
    try:
        yield
    finally:
        _WATCHER.reset(token)
