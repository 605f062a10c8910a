"""Flow ``ranklake-catalog``."""

import asyncio
from typing import Any

from prefect import flow, task

from ranklake.flows.calls import Settings, catalog_once
from ranklake.flows.retrying import RETRIES


@task(name="catalog", **RETRIES)
async def catalog_task(settings: Settings) -> dict[str, Any]:
    """Call `ranklake.flows.calls.catalog_once` off the event loop."""
    return await asyncio.to_thread(catalog_once, settings)


@flow(name="ranklake-catalog")
async def catalog_flow(settings: Settings) -> dict[str, Any]:
    """Bring the catalog's tables up to date."""
    return await catalog_task(settings)
