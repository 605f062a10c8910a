"""One driver per lake, by a global concurrency limit of Prefect's; and deletion of superseded runs.

Plans form one sequence, so a second driver would only wait or repeat work. The lake is safe under two drivers
(compare-and-swap); the limit saves work. A killed holder loses its lease within `LEASE_S` seconds. Without a registered
limit, drivers do not wait.
"""

import contextlib
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from hashlib import sha256
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
from prefect.concurrency.asyncio import concurrency
from prefect.context import FlowRunContext
from prefect.exceptions import ObjectNotFound, PrefectException

if TYPE_CHECKING:
    from prefect.client.orchestration import PrefectClient

LEASE_S: Final = 60.0
_HELD: Final[ContextVar[frozenset[str]]] = ContextVar("_HELD", default=frozenset())


def limit_name(lake: str) -> str:
    """Return the name of a lake's limit, a digest, so that it does not reveal the URI."""
    return f"ranklake-lake-{sha256(lake.encode()).hexdigest()[:16]}"


@asynccontextmanager
async def one_driver(lake: str) -> AsyncIterator[None]:
    """Hold the lake's limit in the block; wait while another run holds it. Nested flows share the holder's limit."""
    name = limit_name(lake)
    if name in _HELD.get() or not await _is_registered(name):
        yield
        return
    async with concurrency(name, lease_duration=LEASE_S, raise_on_lease_renewal_failure=False):
        token = _HELD.set(_HELD.get() | {name})
        try:
            yield
        finally:
            _HELD.reset(token)


async def _is_registered(name: str) -> bool:
    async with get_client() as client:
        try:
            await client.read_global_concurrency_limit_by_name(name)
        except ObjectNotFound:
            return False
    return True


_MOST: Final = 200


async def overdue_runs(client: "PrefectClient", deployment: UUID) -> list[Any]:
    """Return the scheduled runs that are due and have not started, oldest first."""
    runs = await client.read_flow_runs(
        flow_run_filter=FlowRunFilter(
            deployment_id=FlowRunFilterDeploymentId(any_=[deployment]),
            state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.SCHEDULED])),
        ),
        limit=_MOST,
    )
    now = datetime.now(UTC)
    due = [(run.expected_start_time, run) for run in runs if run.auto_scheduled and run.expected_start_time is not None]
    return [run for start, run in sorted(due, key=lambda pair: pair[0]) if start < now]


async def delete_runs(client: "PrefectClient", runs: list[Any]) -> None:
    """Delete runs that have not started; runs that no longer exist are ignored."""
    for run in runs:
        with contextlib.suppress(ObjectNotFound):
            await client.delete_flow_run(run.id)


async def delete_superseded() -> None:
    """Delete the other overdue runs of the current run's deployment, since this run does their work.

    Does nothing outside of a deployment. If the server refuses or does not answer, the run continues; the next run
    deletes the rest.
    """
    context = FlowRunContext.get()
    run = context.flow_run if context is not None else None
    if run is None or run.deployment_id is None:
        return
    with contextlib.suppress(httpx.HTTPError, PrefectException):
        async with get_client() as client:
            overdue = await overdue_runs(client, run.deployment_id)
            await delete_runs(client, [other for other in overdue if other.id != run.id])
