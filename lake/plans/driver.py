"""Drives plans of every kind: whoever finds one unfinished finishes it, whatever it came to do itself."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ranklake.lake.ingest import ingest_plan
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.plan import Plan, Progress, last_finished, propose_and_carry_out, read_plan
from ranklake.lake.plans.verification import authorise

if TYPE_CHECKING:
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.storage.store import Lake


@dataclass(frozen=True, slots=True)
class Driven:
    """What was done about plans.

    Attributes
    ----------
    plan
        The plan that was composed and finished, or None where there was nothing to compose.
    outcomes
        For each ingest plan that was finished here, whoever composed it: the account of its segments.
    """

    plan: Plan | None
    outcomes: dict[int, list[dict[str, Any]]]


def drive(
    lake: "Lake", compose: Callable[[int], Plan | None], workers: "Workers", progress: Progress | None = None
) -> Driven:
    """Finish what is unfinished, compose the next plan, and carry it out.

    Raises `ranklake.lake.plans.plan.RefusedPlanError` where what is unfinished must not be carried out.
    """
    outcomes: dict[int, list[dict[str, Any]]] = {}

    def carry_out(plan: Plan) -> None:
        if plan.kind == ingest_plan.KIND:
            outcomes[plan.number] = ingest_plan.execute(lake, plan, workers, progress)
        else:
            action_plan.execute(lake, plan)

    plan = propose_and_carry_out(lake, compose, carry_out, partial(authorise, lake))
    return Driven(plan, outcomes)


def finish(lake: "Lake", kind: str, workers: "Workers") -> None:
    """Finish the unfinished plan if it is of a kind; one of another kind may be somebody's who is at it right now."""
    waiting = read_plan(lake, last_finished(lake) + 1)
    if waiting is not None and waiting.kind == kind:
        drive(lake, lambda _: None, workers)
