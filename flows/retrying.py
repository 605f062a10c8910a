"""When a task is worth trying again: an outage passes, a mistake does not."""

from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.storage.store import LakeUnreachableError


async def may_pass(task: Any, run: Any, state: Any) -> bool:  # noqa: ANN401 - Prefect hands over objects of its own
    """Return whether the error may pass: it is an outage, or not one of ours."""
    del task, run
    error = await state.aresult(raise_on_failure=False)
    return isinstance(error, LakeUnreachableError) or not isinstance(error, RanklakeError)


RETRIES: Final[dict[str, Any]] = {"retries": 3, "retry_delay_seconds": [1, 10, 60], "retry_condition_fn": may_pass}
