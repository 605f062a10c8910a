"""Flow ``ranklake-pipeline``: ingest, check, rollup, check again and the catalog, in order."""

from collections.abc import Awaitable
from typing import Any

from prefect import flow

from ranklake.flows.calls import FACTS, ROLLUPS, ChecksFailedError, DamageError, Settings, refuse_damage
from ranklake.flows.catalog import catalog_flow
from ranklake.flows.check import check_flow
from ranklake.flows.ingest import ingest_flow
from ranklake.flows.rollup import rollup_flow
from ranklake.quality.results import together


@flow(name="ranklake-pipeline")
async def pipeline_flow(settings: Settings) -> dict[str, Any]:
    """Run the flows in order: facts are checked before they are rolled up, and then what came of them.

    A failed check stops nothing, nor does a damaged file: they are findings about the data. But the flow ends Failed
    for them, by `ChecksFailedError` or `DamageError`, once all is done.
    """
    ingested = await _done(ingest_flow(settings))
    facts = await _done(check_flow(settings, FACTS))
    rolled_up = await _done(rollup_flow(settings))
    rollups = await _done(check_flow(settings, ROLLUPS))
    cataloged = await catalog_flow(settings)
    checked = together(facts, rollups)
    done = {"ingest": ingested, "check": checked, "rollup": rolled_up, "catalog": cataloged}
    if not checked["passed"]:
        raise ChecksFailedError(done, checked)
    return refuse_damage(done)


async def _done(call: Awaitable[dict[str, Any]]) -> dict[str, Any]:
    """Return what a flow did, also where it ends Failed for what it found."""
    try:
        return await call
    except (ChecksFailedError, DamageError) as error:
        return error.done
