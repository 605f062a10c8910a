"""Flow ``ranklake-ingest``: one task that drives a Dask client."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, ingest_once, refuse_damage
from ranklake.flows.retrying import RETRIES


@task(name="ingest", **RETRIES)
async def ingest_task(settings: Settings) -> dict[str, Any]:
    """Call `ranklake.flows.calls.ingest_once` off the event loop."""
    return await asyncio.to_thread(ingest_once, settings)


@flow(name="ranklake-ingest")
async def ingest_flow(settings: Settings) -> dict[str, Any]:
    """Bring new segments from the spool into the lake, exactly once.

    Raises `ranklake.flows.calls.DamageError`, so that the flow ends Failed, where the command exits 1.
    """
    return refuse_damage(await ingest_task(settings))
