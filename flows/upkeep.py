"""Flow ``ranklake-upkeep``: for a schedule of its own, such as once a day; the pipeline's ingest merges by itself."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, refuse_damage, upkeep_once
from ranklake.flows.retrying import RETRIES


@task(name="upkeep", **RETRIES)
async def upkeep_task(settings: Settings, *, with_scrub: bool = False) -> dict[str, Any]:
    """Call `ranklake.flows.calls.upkeep_once` off the event loop."""
    return await asyncio.to_thread(upkeep_once, settings, with_scrub=with_scrub)


@flow(name="ranklake-upkeep")
async def upkeep_flow(settings: Settings, *, with_scrub: bool = False) -> dict[str, Any]:
    """Merge small files, shorten the logs, and purge what nobody can want any more.

    With a scrub, for a schedule of its own such as once a week, every data file is read first. Raises
    `ranklake.flows.calls.DamageError`, so that the flow ends Failed, where the command exits 1.
    """
    return refuse_damage(await upkeep_task(settings, with_scrub=with_scrub))
