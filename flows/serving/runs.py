"""Flow runs that nobody carries out any more, and runs that came due while nobody was there.

A run is carried out by a process that has its id in its environment. So one that the server calls Pending or Running
and that has no process is lost: it is marked Crashed, with what it had begun, and its deployment's slot is free again.
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
    """Return the ids of flow runs that processes with a mark in their environment carry out."""
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
    """Return the runs of some deployments that the server believes are begun and not ended."""
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=list(deployments)),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN)),
        ),
        limit=_MOST,
    )


async def left_below(client: "PrefectClient") -> list[Any]:
    """Return runs that have tasks or sub-flows which are begun, and that were themselves cut off.

    Whoever reports a killed run's end, as Prefect's worker does, says nothing of what is below it.
    """
    cut = FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.CRASHED, StateType.CANCELLED]))
    tasks = await client.read_task_runs(
        flow_run_filter=FlowRunFilter(state=cut),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_BEGUN))),
        limit=_MOST,
    )
    above = {one.flow_run_id for one in tasks if one.flow_run_id is not None}
    subflows = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            parent_task_run_id=FlowRunFilterParentTaskRunId(is_null_=False),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=_BEGUN)),
        ),
        limit=_MOST,
    )
    for subflow in subflows:
        assert subflow.parent_task_run_id is not None
        parent = (await client.read_task_run(subflow.parent_task_run_id)).flow_run_id
        if parent is not None:
            above.add(parent)
    if not above:
        return []
    return await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=list(above)), state=cut), limit=_MOST
    )


async def end(client: "PrefectClient", run: Any, kind: StateType, message: str) -> None:  # noqa: ANN401 - Prefect's
    """Put a lost run, its sub-flows and their tasks into an end state; the state is not asked whether it may change."""
    family = [run.id]
    below = [run.id]
    while below:
        parents = FlowRunFilter(parent_flow_run_id=FlowRunFilterParentFlowRunId(any_=below))
        below = [one.id for one in await client.read_flow_runs(flow_run_filter=parents, limit=_MOST)]
        family += below
    tasks = await client.read_task_runs(
        flow_run_filter=FlowRunFilter(id=FlowRunFilterId(any_=family)),
        task_run_filter=TaskRunFilter(state=TaskRunFilterState(type=TaskRunFilterStateType(any_=_BEGUN))),
        limit=_MOST,
    )
    for task in tasks:
        await client.set_task_run_state(task.id, State(type=kind, message=message), force=True)
    for item in reversed(family):
        result = await client.read_flow_run(item)
        if result.state is not None and not result.state.is_final():
            await client.set_flow_run_state(item, State(type=kind, message=message), force=True)


async def collapse_overdue(client: "PrefectClient", deployments: Iterable[UUID]) -> tuple[int, set[UUID]]:
    """Leave the newest of the runs of each deployment that came due while nobody was there.

    Returns how many were deleted, and which deployments have one that waits.
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
    """Give back what killed runs hold of limits. Only where nothing runs: their leases must be gone already."""
    for limit in await client.read_global_concurrency_limits(limit=_MOST):
        if limit.active_slots:
            await client.update_global_concurrency_limit(limit.name, GlobalConcurrencyLimitUpdate(active_slots=0))
