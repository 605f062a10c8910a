"""Flow ``ranklake-upkeep``: for a schedule of its own, such as once a day; the pipeline's ingest merges by itself."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, upkeep_once
from ranklake.flows.retrying import RETRIES


@task(name="upkeep", **RETRIES)
async def upkeep_task(settings: Settings) -> dict[str, Any]:
    """Call `ranklake.flows.calls.upkeep_once` off the event loop."""
    return await asyncio.to_thread(upkeep_once, settings)


@flow(name="ranklake-upkeep")
async def upkeep_flow(settings: Settings) -> dict[str, Any]:
    """Merge small files, shorten the logs, and purge what nobody can want any more."""
    return await upkeep_task(settings)
