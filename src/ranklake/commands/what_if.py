"""``ranklake what-if``: how much faster a run would have been, and what slowed it."""

from pathlib import Path

import click

from ranklake.commands.completion import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.insight.diagnosis.run_spans import read_spans, trace_of
from ranklake.insight.diagnosis.what_if import slowdowns, write_timeline
from ranklake.insight.diagnosis.what_if import what_if as analyse
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.find import NoSuchRunError, find_run
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.views.json_output import show_json
from ranklake.views.slowdowns import show_slowdowns
from ranklake.views.tell import tell


@click.command(name="what-if")
@click.argument("run", shell_complete=complete_runs)
@click.option("--attempt", type=click.IntRange(min=0), help="Default: the last attempt with spans.")
@click.option(
    "--timeline",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="Write the ideal timeline for Perfetto (.json or .json.gz).",
)
@json_option
@lake_option
@with_context
def what_if(context: Context, run: str, attempt: int | None, timeline: Path | None, *, as_json: bool) -> None:
    """Estimate how much faster RUN would have been without stragglers, and which operations and ranks slowed it.

    RUN may be the beginning of a name, or a display name.

    Simulates the run's steps from their spans: as recorded but without launch delays, and with ideal durations for all
    operations but some.
    """
    lake = context.open_lake()
    whole = _whole_name(lake, run)
    chosen, rows, notes = read_spans(lake, whole, attempt)
    analysis = analyse(trace_of(rows, notes))
    result = slowdowns(whole, chosen, analysis)
    if as_json:
        show_json(result)
    else:
        show_slowdowns(result)
    if timeline is not None:
        count = write_timeline(analysis, timeline)
        tell(f"{counted(count, 'event')} written to {timeline}; open it at https://ui.perfetto.dev", err=True)


def _whole_name(lake: Lake, run: str) -> str:
    """Return a run's full name; unchanged if no summary has it, since spans need no summary."""
    try:
        return find_run(asking(lake), run)
    except NoSuchRunError as error:
        if error.is_ambiguous:
            raise
        return run
