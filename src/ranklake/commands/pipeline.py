"""``ranklake pipeline``."""

from dataclasses import replace

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, new_option, spool_option
from ranklake.context import Context
from ranklake.pipeline.calls import damage_in, unreadable_in
from ranklake.pipeline.stages import pipeline_once
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell, tell_broken, tell_damaged
from ranklake.views.words import counted


@click.command()
@lake_option
@spool_option
@dask_option
@new_option
@json_option
@with_context
def pipeline(context: Context, *, is_new: bool, as_json: bool) -> int:
    """Ingest, check facts, roll up, check rollups and refresh the catalog, once, in order.

    Exits 1 if a check failed, a segment could not be read, data files are damaged, or a section of the report that
    [report] out asks for cannot be made.
    """
    done = pipeline_once(replace(context, is_new=is_new))
    unreadable = unreadable_in(done["ingest"])
    if as_json:
        show_json(done)
    else:
        ingested, checked = done["ingest"], done["check"]
        written = sum(len(result["partitions"]) for result in done["rollup"]["rollups"])
        tell(f"ingest  {ingested['rows_stored']:,} rows stored, {ingested['rows_rejected']:,} quarantined")
        outcomes = ", ".join(f"{count:,} {status}" for status, count in checked["checks"].items())
        if unreadable:
            line = f"{counted(unreadable, 'segment')} could not be read; 'ranklake status' says why"
            tell(f"        {line}", err=True)
        for reason, count in ingested["refused"].items():
            tell(f"        {count} segments refused: {reason}", err=True)
        tell(f"check   {outcomes or 'nothing new'}")
        tell(f"rollup  {written:,} partitions written")
    found, broken = damage_in(done), done.get("report", {}).get("broken")
    tell_damaged(found)
    if broken:
        tell_broken(done["report"])
    return 0 if done["check"]["passed"] and not found and not broken and not unreadable else 1
