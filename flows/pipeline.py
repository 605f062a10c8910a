"""Flow ``ranklake-pipeline``: ingest, check, rollup and the catalog, in order."""

from typing import Any

from prefect import flow

from ranklake.flows.calls import Settings
from ranklake.flows.catalog import catalog_flow
from ranklake.flows.check import check_flow
from ranklake.flows.ingest import ingest_flow
from ranklake.flows.rollup import rollup_flow


@flow(name="ranklake-pipeline")
async def pipeline_flow(settings: Settings) -> dict[str, Any]:
    """Run the four flows in order.

    A failed check does not stop the rollups: it is a finding about the data, reported in the result, and not a fault
    of the run.
    """
    ingested = await ingest_flow(settings)
    checked = await check_flow(settings)
    rolled_up = await rollup_flow(settings)
    cataloged = await catalog_flow(settings)
    return {"ingest": ingested, "check": checked, "rollup": rolled_up, "catalog": cataloged}
