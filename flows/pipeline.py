"""Flow ``ranklake-pipeline``: ingest, check, rollup, check again and the catalog, in order."""

from collections.abc import Sequence
from typing import Any

from prefect import flow

from ranklake.flows.calls import FACTS, ROLLUPS, ChecksFailedError, Settings
from ranklake.flows.catalog import catalog_flow
from ranklake.flows.check import check_flow
from ranklake.flows.ingest import ingest_flow
from ranklake.flows.rollup import rollup_flow
from ranklake.quality.results import together


@flow(name="ranklake-pipeline")
async def pipeline_flow(settings: Settings) -> dict[str, Any]:
    """Run the flows in order: facts are checked before they are rolled up, and then what came of them.

    A failed check stops nothing: it is a finding about the data. But the flow ends Failed for it, by
    `ChecksFailedError`, once all is done.
    """
    ingested = await ingest_flow(settings)
    facts = await _checked(settings, FACTS)
    rolled_up = await rollup_flow(settings)
    rollups = await _checked(settings, ROLLUPS)
    cataloged = await catalog_flow(settings)
    checked = together(facts, rollups)
    done = {"ingest": ingested, "check": checked, "rollup": rolled_up, "catalog": cataloged}
    if not checked["passed"]:
        raise ChecksFailedError(done, checked)
    return done


async def _checked(settings: Settings, kinds: Sequence[str]) -> dict[str, Any]:
    """Return what a check found, also where it ends Failed."""
    try:
        return await check_flow(settings, kinds)
    except ChecksFailedError as error:
        return error.done
