"""Flow runs that have lost their process, and runs that became due while ``ranklake up`` was down.

The process of a run has the run's id in its environment. A run that is Pending or Running on the server and has no
process is lost: it is marked Crashed with its tasks and sub-flows, and its deployment is unblocked.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import psutil
from prefect.client.schemas.actions import GlobalConcurrencyLimitUpdate
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterId,
    FlowRunFilterParentFlowRunId,
    FlowRunFilterParentTaskRunId,
    FlowRunFilterState,
    FlowRunFilterStateType,
    TaskRunFilter,
    TaskRunFilterState,
    TaskRunFilterStateType,
)
from prefect.client.schemas.objects import State, StateType

from ranklake.flows.one_driver import delete_runs, overdue_runs

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

RUN_ID: Final = "PREFECT__FLOW_RUN_ID"
_MOST: Final = 200
_BEGUN: Final = [StateType.PENDING, StateType.RUNNING, StateType.CANCELLING]


def running_ids(mark: str, value: str) -> set[str]:
    """Return the ids of flow runs whose processes have an environment variable `mark` with this value."""
    result = set()
    for item in psutil.process_iter():
        try:
            environment = item.environ()
        except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
            continue
        if environment.get(mark) == value:
            result.add(environment.get(RUN_ID, ""))
    return result - {""}


async def begun(client: "PrefectClient", deployments: Iterable[UUID]) -> list[Any]:
    """Return the runs of some deployments that have started and not ended, according to the server."""
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=list(deployments)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN)),
        ),
        limit=_MOST,
    )


async def left_below(client: "PrefectClient") -> list[Any]:
    """Return ended runs that were cut off and have active tasks or sub-flows.

    Prefect's worker reports the end of a killed run, but not of its tasks and sub-flows.
    """
    cut_off = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED, StateType.CANCELLED]))
    tasks = await client.read_task_runs(
        flow_run_filter=FlowRunFilter(state=cut_off),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_BEGUN))),
        limit=_MOST,
    )
    parents = {task.flow_run_id for task in tasks if task.flow_run_id is not None}
    subflows = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            parent_task_run_id=FlowRunFilterParentTaskRunId(is_null_=False),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN)),
        ),
        limit=_MOST,
    )
    for subflow in subflows:
        assert subflow.parent_task_run_id is not None
        parent_id = (await client.read_task_run(subflow.parent_task_run_id)).flow_run_id
        if parent_id is not None:
            parents.add(parent_id)
    if not parents:
        return []
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(parents)), state=cut_off), limit=_MOST
    )


async def end(client: "PrefectClient", run: Any, kind: StateType, message: str) -> None:  # noqa: ANN401 - Prefect's
    """Force a lost run, its sub-flows and their tasks into an end state."""
    run_ids = [run.id]
    below = [run.id]
    while below:
        parents = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=below))
        below = [child.id for child in await client.read_flow_runs(flow_run_filter=parents, limit=_MOST)]
        run_ids += below
    tasks = await client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=run_ids)),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_BEGUN))),
        limit=_MOST,
    )
    for task in tasks:
        await client.set_task_run_state(task.id, State(type=kind, message=message), force=True)
    for run_id in reversed(run_ids):
        result = await client.read_flow_run(run_id)
        if result.state is not None and not result.state.is_final():
            await client.set_flow_run_state(run_id, State(type=kind, message=message), force=True)


async def collapse_overdue(client: "PrefectClient", deployments: Iterable[UUID]) -> tuple[int, set[UUID]]:
    """Delete all overdue runs of each deployment, except the newest.

    Returns the number of deleted runs, and the deployments with a waiting run.
    """
    deleted, waiting = 0, set()
    for deployment in deployments:
        overdue = await overdue_runs(client, deployment)
        await delete_runs(client, overdue[:-1])
        deleted += len(overdue[:-1])
        if overdue:
            waiting.add(deployment)
    return deleted, waiting


async def free_limits(client: "PrefectClient") -> None:
    """Release the slots that killed runs hold of limits. Only call it while no run is active and leases are deleted."""
    for limit in await client.read_global_concurrency_limits(limit=_MOST):
        if limit.active_slots:
            await client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=0))
