"""``ranklake replay``."""

from contextlib import ExitStack
from dataclasses import asdict
from datetime import date, datetime

import click

from ranklake.commands.completing import complete_tables
from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, spool_option
from ranklake.context import Context
from ranklake.lake.ingest.replay.run import replay as run_replay
from ranklake.lake.plans.workers import InProcess, Workers
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.tell import tell

_DAY = click.DateTime(["%Y-%m-%d"])


@click.command()
@click.option(
    "--table",
    required=True,
    shell_complete=complete_tables,
    help="Table to rebuild: one that ranks record, or a rollup.",
)
@click.option("--from", "first", required=True, type=_DAY, help="First date (UTC).")
@click.option("--to", "last", required=True, type=_DAY, help="Last date (UTC).")
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt, and from what; change nothing.")
@lake_option
@spool_option
@dask_option
@json_option
@with_context
def replay(context: Context, table: str, first: datetime, last: datetime, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild dates of a table from segments that the spool still has, and rollups from their inputs.

    The result has the same rows as before. Rows that retention removed or a check quarantined do not come back. If
    segments are gone, or the result would differ, nothing changes.
    """
    lake, spool = context.open_lake(), context.spool()
    days = (first.date(), last.date())
    # Looked at first, so that no cluster starts for what cannot be done, nor for rollups, which need none.
    done = run_replay(lake, spool, InProcess(), table, days, dry_run=True)
    if done.partitions and not dry_run:
        with ExitStack() as stack:
            workers: Workers = InProcess()
            if done.segments:
                workers = stack.enter_context(context.workers())
            progress = stack.enter_context(progress_bar("replay"))
            done = run_replay(lake, spool, workers, table, days, progress=progress)
    if as_json:
        show_json({**asdict(done), "dry_run": dry_run})
        return
    if done.kept:
        tell(f"{table}: {', '.join(done.kept)} stay as they are: retention took what they were made of")
    if not done.partitions:
        tell(f"{table} has nothing to rebuild from {days[0]} to {days[1]}; nothing was changed")
        return
    made_of = f"{done.segments} segments" if done.segments else "their inputs"
    verb = "would be rebuilt" if dry_run else "rebuilt"
    tell(
        f"{table}: {_dates(done.partitions)} {verb} from {made_of}: {done.rows:,} rows, "
        f"{done.files_before} files before{'' if dry_run else f', {done.files_after} after'}"
    )


def _dates(names: tuple[str, ...]) -> str:
    days = [date.fromisoformat(name) for name in names]
    return f"{days[0]}" if len(days) == 1 else f"{len(days)} dates from {days[0]} to {days[-1]}"
