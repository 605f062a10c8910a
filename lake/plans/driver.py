"""Drives plans of every kind: any driver first finishes an unfinished plan, whatever its own task."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, cast

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
