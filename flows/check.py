"""Flow ``ranklake-check``."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, check_once
from ranklake.flows.retrying import RETRIES


@task(name="check", **RETRIES)
async def check_task(settings: Settings) -> dict[str, Any]:
    """Call `ranklake.flows.calls.check_once` off the event loop."""
    return await asyncio.to_thread(check_once, settings)


@flow(name="ranklake-check")
async def check_flow(settings: Settings) -> dict[str, Any]:
    """Run the contracts' checks on new partitions."""
    return await check_task(settings)
