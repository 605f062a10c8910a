"""Runs of a deployment that came due while another was in flight, or while no worker ran.

One run makes up for all of them, since it goes on from what the lake has. So the others are deleted: a dozen runs that
ended Cancelled would look like a dozen faults.
"""

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import (
    FlowRunFilter,
    FlowRunFilterDeploymentId,
    FlowRunFilterState,
    FlowRunFilterStateType,
)
from prefect.client.schemas.objects import StateType
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

_MOST: Final = 200


async def overdue_runs(client: "PrefectClient", deployment: UUID) -> list[Any]:
    """Return the runs that a schedule made, that came due, and that have not begun; oldest first."""
    runs = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        ),
        limit=_MOST,
    )
    now = datetime.now(UTC)
    due = [(run.expected_start_time, run) for run in runs if run.auto_scheduled and run.expected_start_time is not None]
    return [run for at, run in sorted(due, key=lambda pair: pair[0]) if at < now]


async def delete_runs(client: "PrefectClient", runs: list[Any]) -> None:
    """Delete runs that have not begun; one that is gone already is no error."""
    for run in runs:
        with contextlib.suppress(ObjectNotFound):
            await client.delete_flow_run(run.id)


async def delete_superseded() -> None:
    """Delete the overdue runs of the deployment whose run this is, since this run does their work.

    Does nothing outside of a deployment. A server that refuses or does not answer is no reason to end the run: what
    stays is deleted by the next one.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is None:
        return
    with contextlib.suppress(httpx.HTTPError, PrefectException):
        async with get_client() as client:
            overdue = await overdue_runs(client, run.deployment_id)
            await delete_runs(client, [other for other in overdue if other.id != run.id])
