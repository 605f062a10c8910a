"""``ranklake pipeline``."""

import json
from dataclasses import asdict

import click

from ranklake.commands.options import configuration, dask_option, json_option, lake_option, spool_option
from ranklake.commands.tell import tell_damaged
from ranklake.flows.calls import Settings, damage_in, pipeline_once


@click.command()
@lake_option
@spool_option
@dask_option
@json_option
@click.pass_context
def pipeline(ctx: click.Context, lake: str, spool: str, dask: str | None, *, as_json: bool) -> int:
    """Ingest, check facts, roll up, check rollups and refresh the catalog, once, in order.

    Exits 1 if a check failed, or data files are damaged.
    """
    config = configuration(ctx)
    settings = Settings(
        lake,
        spool,
        f"file:{config.file}" if config.storage else "",
        dask or config.dask.address,
        config.dask.workers,
        config.dask.memory_limit,
        config.contracts.overlay,
        config.encryption_key,
        config.cost.prices,
        config.dask.tls,
        config.spool.prefixes,
        asdict(config.ingest),
        config.trust.audit_witness,
        config.trust.plans_key,
        config.trust.require_signed_plans,
    )
    done = pipeline_once(settings)
    if as_json:
        click.echo(json.dumps(done, default=str))
    else:
        ingested, checked = done["ingest"], done["check"]
        written = sum(len(result["partitions"]) for result in done["rollup"]["rollups"])
        click.echo(f"ingest  {ingested['rows_stored']:,} rows stored, {ingested['rows_rejected']:,} quarantined")
        outcomes = ", ".join(f"{count:,} {status}" for status, count in checked["checks"].items())
        for reason, count in ingested["refused"].items():
            click.echo(f"        {count} segments refused: {reason}", err=True)
        click.echo(f"check   {outcomes or 'nothing new'}")
        click.echo(f"rollup  {written:,} partitions written")
    found = damage_in(done)
    tell_damaged(found)
    return 0 if done["check"]["passed"] and not found else 1
