"""Drives plans of every kind, and reports their units of work to a watcher.

Before its own work, each driver finishes an unfinished plan of any kind. The work is divided into units:

    carry_out(Unit("check", "steps", dates), work) ──▶ the watcher of the current context ──▶ work()
                                                        (without a watcher: work() directly)

Commands have no watcher. In a flow, the watcher runs each unit as a Prefect task (`ranklake.flows.watching`).
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
        """Carry out a plan; must be repeatable. Returns one row for each of its segments; None if it has none.

        Raises `ranklake.lake.tables.commit.LostRaceError` if a concurrent driver of the same plan was faster.
        """


@dataclass(frozen=True, slots=True)
class DriveResult:
    """Result of `drive`.

    Attributes
    ----------
    plan
        The plan that this call composed and finished; None if there was nothing to do.
    outcomes
        For each ingest plan that this call finished, also of other processes: one row per segment, by plan number.
    """

    plan: Plan | None
    outcomes: dict[int, list[dict[str, Any]]]


def drive(
    lake: "Lake", compose: Callable[[int], Plan | None], workers: "Workers", progress: Progress | None = None
) -> DriveResult:
    """Finish an unfinished plan, compose the next plan, and carry it out.

    Raises `ranklake.lake.plans.plan.RefusedPlanError` if the unfinished plan must not be carried out.
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
    """Finish the unfinished plan if it has this kind. Another process may be working on a plan of another kind."""
    waiting = read_plan(lake.store, last_finished(lake.tables) + 1)
    if waiting is not None and waiting.kind == kind.name:
        drive(lake, lambda _: None, workers)


Result = TypeVar("Result")

SPOOL: Final = "spool"
"""Name of the spool among the tables in `Unit.reads`."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of work. It is idempotent, so that it can be repeated after any failure.

    Attributes
    ----------
    action
        A verb: ``plan``, ``write``, ``commit``, ``check``, ``compute``, ``merge``.
    table
        Table whose rows or files are read or written; empty for several tables.
    dates
        Partitions of the table.
    detail
        Further text that identifies the unit, such as ``plan 12, 48 tasks``.
    reads
        Input tables, or `SPOOL`.
    writes
        Whether the unit changes the table if it succeeds.
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
    """Return dates as text: a single date, or first date, last date and number of dates."""
    days = sorted(set(dates))
    if not days:
        return ""
    return str(days[0]) if len(days) == 1 else f"{days[0]}…{days[-1]} ({len(days)} dates)"


class Watcher(Protocol):
    """Runs the units of work of a context."""

    def carry_out(self, unit: Unit, work: Callable[[], Result]) -> Result:
        """Call `work`, perhaps with retries. Returns its result or raises its error."""


_WATCHER: Final[ContextVar[Watcher | None]] = ContextVar("ranklake_watcher", default=None)


def carry_out(unit: Unit, work: Callable[[], Result]) -> Result:
    """Run a unit of work through the watcher of the current context. Returns its result or raises its error.

    Units must not be nested. A new thread has the watcher only if it runs in a copy of the context.
    """
    current = _WATCHER.get()
    return work() if current is None else current.carry_out(unit, work)


def watcher() -> Watcher | None:
    """Return the watcher of the current context; None if it has none."""
    return _WATCHER.get()


@contextmanager
def watched_by(new_watcher: Watcher) -> Iterator[None]:
    """Set the watcher of the current context, and of copies of it, until the block ends."""
    token = _WATCHER.set(new_watcher)
    try:
        yield
    finally:
        _WATCHER.reset(token)
