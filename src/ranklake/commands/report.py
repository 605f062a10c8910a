"""``ranklake report``: pages about the lake, as a site of HTML that needs no server."""

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.flows.calls import report_once
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import counted


@click.group()
def report() -> None:
    """Write pages about the lake: HTML that opens from a disk or a bucket, without a network."""


@report.command()
@click.option(
    "--out", default="", metavar="URI", help="Folder or URI to write the site to.  [default: [report] out, or report]"
)
@lake_option
@json_option
@with_context
def quality(context: Context, out: str, *, as_json: bool) -> int:
    """Write the pages of data quality: what fails, worst first, by table, check and partition.

    Reads the results of earlier checks; run 'ranklake check' first. Writes only the pages that changed. Exits 0
    whatever the state is; 'ranklake check' is what tells a script.
    """
    place = out or context.config.report.out or "report"
    done = report_once(Context.of(context.config, {"report.out": place}))
    if as_json:
        show_json(done)
    else:
        told, wrote = done["quality"]["headline"], done["published"]
        tell(f"{told}; {counted(wrote['pages'], 'page')}, {wrote['written']:,} written: {wrote['out']}/index.html")
    return 0
