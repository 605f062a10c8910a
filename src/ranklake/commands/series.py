"""``ranklake series``."""

from datetime import UTC, datetime

import click

from ranklake.commands.completing import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import contracts_option, lake_option
from ranklake.context import Context
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.caveats import caveats
from ranklake.insight.runs.find import find_run
from ranklake.lake.rollups.life.register import of_column
from ranklake.lake.rollups.life.select import select
from ranklake.lake.rollups.life.series import lives_with, select_distributions
from ranklake.lake.rollups.life.series import series as series_of
from ranklake.views.result_set import as_csv, as_json, as_table
from ranklake.views.tell import tell

_FORMATS = {"table": as_table, "csv": as_csv, "json": as_json}
_READ = ("scalars", "steps", "step_rollup")
_MOMENT = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])


@click.command()
@click.argument("metric")
@click.option("--from", "begin", type=_MOMENT, metavar="DATE|TIME", help="First moment, UTC.")
@click.option("--to", "end", type=_MOMENT, metavar="DATE|TIME", help="Moment before which it ends, UTC.")
@click.option("--run", shell_complete=complete_runs, help="Only this run.")
@click.option("--format", "chosen", type=click.Choice([*_FORMATS]), default="table", show_default=True)
@click.option("--distributions", is_flag=True, help="Its histograms: count, sum, mean, least and greatest value.")
@click.option("--sql", "as_sql", is_flag=True, help="Print the SELECT instead, for a dashboard.")
@lake_option
@contracts_option
@with_context
def series(
    context: Context,
    metric: str,
    begin: datetime | None,
    end: datetime | None,
    run: str | None,
    chosen: str,
    *,
    distributions: bool,
    as_sql: bool,
) -> None:
    """Show the values of METRIC in its unit, from one step to the next, under whatever names they were recorded.

    METRIC may be a column of steps, too: loss is train/loss.

    Of what two names have of one step, the newer counts. Column source says where a value is from. A step that lacks a
    part of what was split has no value, and reason says so. Of rows that were downsampled come the means of intervals.
    """
    moments = [None if one is None else one.replace(tzinfo=UTC) for one in (begin, end)]
    lake = context.open_lake()
    if as_sql:
        every = lives_with(lake, metric, of_distributions=distributions)
        metric = metric if metric in every else of_column(lake, metric)
        tell(select_distributions(every, metric) if distributions else select(lake, every, metric, intervals=True))
        return
    chosen_run = None if run is None else find_run(asking(lake), run)
    result = series_of(lake, metric, moments[0], moments[1], chosen_run, of_distributions=distributions)
    click.echo(_FORMATS[chosen](result.rows), color=True)  # noqa: TID251 - a document, as it is
    title = f"{metric} in {result.life.unit or 'an unknown unit'}, {result.life.status}"
    against = caveats(asking(lake), (chosen_run,)).failed.get(chosen_run, ()) if chosen_run else ()
    tell(*(f"in doubt: {check.about} fails" for check in against if check.table in _READ), err=True)
    tell(title if result.life.since is None else f"{title} since {result.life.since:%Y-%m-%d}")
