"""Flow ``ranklake-check``."""

import asyncio
from collections.abc import Sequence
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import ChecksFailedError, Settings, check_once
from ranklake.flows.retrying import RETRIES
from ranklake.quality.check import KINDS


@task(name="check", **RETRIES)
async def check_task(settings: Settings, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Call `ranklake.flows.calls.check_once` off the event loop."""
    return await asyncio.to_thread(check_once, settings, None, kinds)


@flow(name="ranklake-check")
async def check_flow(settings: Settings, kinds: Sequence[str] = KINDS) -> dict[str, Any]:
    """Run the contracts' checks on new partitions of tables of some kinds.

    Raises `ChecksFailedError`, so that the flow ends Failed, where the command ``ranklake check`` exits 1.
    """
    found = await check_task(settings, kinds)
    if not found["passed"]:
        raise ChecksFailedError(found, found)
    return found
