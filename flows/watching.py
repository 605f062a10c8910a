"""Units of work as tasks of the flow run: the task graph shows each part, its duration and its failure.

    room ── carry_out(unit, work) ──▶ Watching ── sync task run in the room's own thread ──▶ work()

A unit that writes a table materializes the table's asset (`ranklake.flows.lineage`). A task has no result in Prefect:
the work's result returns directly to the room.
"""

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

from prefect import Task
from prefect.cache_policies import NO_CACHE
from prefect.client.schemas import State
from prefect.context import FlowRunContext
from prefect.tasks import MaterializingTask

from ranklake.errors import RanklakeError
from ranklake.flows.lineage import Lineage
from ranklake.flows.retrying import UNIT_RETRIES
from ranklake.lake.plans.driver import Unit

if TYPE_CHECKING:
    from uuid import UUID

Result = TypeVar("Result")
_LOG: Final = logging.getLogger(__name__)

MOST_TASKS: Final = 200
"""Maximum number of task runs of one stage; later units are only in its log."""
UNIT_S: Final = 3600.0
"""Time limit of a unit in seconds. Python code is interrupted; a blocking call ends first."""


class UnitTimeoutError(RanklakeError):
    """A unit took longer than `UNIT_S` and was stopped."""


class Watching:
    """Makes a task run of each of the first `MOST_TASKS` units of a stage."""

    def __init__(self, lineage: Lineage) -> None:
        self._lineage = lineage
        self._runs = 0
        self._last: State | None = None
        self._wrote: dict[str, State] = {}
        self.shown: dict[str, UUID] = {}
        """The last task run about each table."""

    def carry_out(self, unit: Unit, work: Callable[[], Result]) -> Result:
        """Run a unit as a task; temporary errors are retried. Raises the errors of the work.

        Raises `UnitTimeoutError` if it takes longer than `UNIT_S`.
        """
        self._runs += 1
        if self._runs > MOST_TASKS:
            if self._runs == MOST_TASKS + 1:
                _LOG.info("more than %s units; the others are told by the log alone", MOST_TASKS)
            _LOG.info("%s", unit.name)
            return work()
        result: list[Result] = []
        failed: list[Exception] = []

        def run() -> None:
            failed.clear()  # of an earlier attempt
            try:
                result.append(work())
            except Exception as error:
                failed.append(error)
                raise

        # Prefect would take the tasks that this one waits for as inputs of its asset; the unit declares its inputs
        # itself.
        if context := FlowRunContext.get():
            context.task_run_assets.clear()
        state = self._task(unit, run)(return_state=True, wait_for=self._preceding_runs(unit))
        if not state.is_completed():
            self._last = None
            raise failed[-1] if failed else UnitTimeoutError(f"{unit.name}: {state.message}")
        self._last = state
        if unit.table and state.state_details.task_run_id:
            self.shown[unit.table] = state.state_details.task_run_id
        if unit.writes:
            self._wrote[unit.table] = state
        return result[-1]

    def _preceding_runs(self, unit: Unit) -> list[State]:
        """Return the task runs that a unit depends on: the writers of its inputs, or else the previous run."""
        writers = [self._wrote[table] for table in unit.reads if table in self._wrote]
        return writers or ([self._last] if self._last else [])

    def _task(self, unit: Unit, run: Callable[[], None]) -> "Task[[], None]":
        written = self._lineage.written(unit)
        if written is None:
            return Task(run, **_options(unit))
        reads = self._lineage.read(unit)
        return MaterializingTask(run, assets=[written], asset_deps=reads, materialized_by="ranklake", **_options(unit))


def _options(unit: Unit) -> dict[str, Any]:
    tags = {"ranklake", f"unit:{unit.action}"} | ({f"table:{unit.table}"} if unit.table else set())
    return {
        "name": unit.action,
        "task_run_name": unit.name.replace("{", "{{").replace("}", "}}"),
        "tags": tags,
        "timeout_seconds": UNIT_S,
        "cache_policy": NO_CACHE,
        "persist_result": False,
        **UNIT_RETRIES,
    }
