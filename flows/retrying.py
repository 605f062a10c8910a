"""Retries of tasks: only errors that may be temporary are retried.

A unit is retried once, after seconds; its stage up to three times within a minute. A stage that runs again continues
from the committed state.
"""

from typing import Any, Final

import httpx
from prefect.task_engine import TaskRunTimeoutError

from ranklake.errors import RanklakeError
from ranklake.lake.plans.dask_tasks import ClusterLostError
from ranklake.lake.plans.dask_workers import ClusterNotStartedError
from ranklake.lake.store.reachability import LakeUnreachableError

_LASTING: Final = (FileNotFoundError, FileExistsError, PermissionError, IsADirectoryError, NotADirectoryError)


def lost_server(error: BaseException) -> httpx.HTTPError | None:
    """Return the error of Prefect's client if the server does not answer or returns a server error; else None.

    Prefect wraps the error. Stores of the lake are not accessed through httpx.
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
    """Return whether an error may be temporary: an unreachable store, network, server or cluster."""
    if lost_server(error) is not None:
        return True
    if isinstance(error, RanklakeError):
        return isinstance(error, (LakeUnreachableError, ClusterLostError, ClusterNotStartedError))
    return isinstance(error, OSError) and not isinstance(error, _LASTING)


async def may_pass(task: Any, run: Any, state: Any) -> bool:  # noqa: ANN401 - Prefect hands over objects of its own
    """Return whether a task run's error may be temporary. A timeout is not: the task would take as long again."""
    del task, run
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, Exception) and not isinstance(error, TaskRunTimeoutError) and is_transient(error)


RETRIES: Final[dict[str, Any]] = {
    "retries": 3,
    "retry_delay_seconds": [1, 10, 60],
    "retry_jitter_factor": 0.5,
    "retry_condition_fn": may_pass,
}
"""Retries of a stage."""
UNIT_RETRIES: Final[dict[str, Any]] = {**RETRIES, "retries": 1, "retry_delay_seconds": 2}
