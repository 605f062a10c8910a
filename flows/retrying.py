"""When a task is worth trying again: an outage passes, a mistake does not.

A unit that fails is tried again once, soon; the stage around it some times more, over a minute. A stage that is begun
again finds what is done and goes on from there.
"""

from typing import Any, Final

import httpx
from prefect.task_engine import TaskRunTimeoutError

from ranklake.errors import RanklakeError
from ranklake.lake.plans.dask_tasks import ClusterLostError
from ranklake.lake.plans.dask_workers import ClusterNotStartedError
from ranklake.lake.store.reachability import LakeUnreachableError

_STAYS: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def lost_server(error: BaseException) -> httpx.HTTPError | None:
    """Return what Prefect's client raised where its server does not answer, or is too busy to; else None.

    Prefect raises errors of its own from it. The lake's stores are not reached through httpx.
    """
    reason: BaseException | None = error
    while reason is not None:
        if isinstance(reason, httpx.TransportError):
            return reason
        if isinstance(reason, httpx.HTTPStatusError) and reason.response.is_server_error:
            return reason
        reason = reason.__cause__
    return None


def is_transient(error: BaseException) -> bool:
    """Return whether an error may pass by itself: a store, a network, a server or a cluster was away for a moment."""
    if lost_server(error) is not None:
        return True
    if isinstance(error, RanklakeError):
        return isinstance(error, (LakeUnreachableError, ClusterLostError, ClusterNotStartedError))
    return isinstance(error, OSError) and not isinstance(error, _STAYS)


async def may_pass(task: Any, run: Any, state: Any) -> bool:  # noqa: ANN401 - Prefect hands over objects of its own
    """Return whether the error that a task's run ended with may pass. A task that took too long would again."""
    del task, run
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, Exception) and not isinstance(error, TaskRunTimeoutError) and is_transient(error)


RETRIES: Final[dict[str, Any]] = {
    "retries": 3,
    "retry_delay_seconds": [1, 10, 60],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": may_pass,
}
"""Of a stage."""
UNIT_RETRIES: Final[dict[str, Any]] = {**RETRIES, "retries": 1, "retry_delay_seconds": 2}
