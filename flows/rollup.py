"""Flow ``ranklake-rollup``."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, refuse_damage, rollup_once
from ranklake.flows.retrying import RETRIES


@task(name="rollup", **RETRIES)
async def rollup_task(settings: Settings) -> dict[str, Any]:
    """Call `ranklake.flows.calls.rollup_once` off the event loop."""
    return await asyncio.to_thread(rollup_once, settings)


@flow(name="ranklake-rollup")
async def rollup_flow(settings: Settings) -> dict[str, Any]:
    """Recompute the rollups whose inputs changed.

    Raises `ranklake.flows.calls.DamageError`, so that the flow ends Failed, where the command exits 1.
    """
    return refuse_damage(await rollup_task(settings))
