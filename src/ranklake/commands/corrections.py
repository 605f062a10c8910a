"""``ranklake replay``, ``disown`` and ``renumber``: corrections of wrongly recorded or stored rows."""

import getpass
from contextlib import ExitStack
from dataclasses import asdict
from datetime import date, datetime

import click

from ranklake.commands.completion import complete_tables
from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, spool_option
from ranklake.context import Context
from ranklake.lake.ingest.disowned import Claim
from ranklake.lake.ingest.replay.run import replay as run_replay
from ranklake.lake.plans.workers import InProcess, Workers
from ranklake.pipeline.auditing import audit_plans
from ranklake.retention.corrections import COUNTED_ANEW
from ranklake.retention.corrections import disown as set_aside
from ranklake.retention.corrections import renumber as give_numbers
from ranklake.views.json_output import show_json
from ranklake.views.tell import progress_bar, tell

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
@click.option("--dry-run", is_flag=True, help="Show what would be rebuilt, from which inputs; change nothing.")
@lake_option
@spool_option
@dask_option
@json_option
@with_context
def replay(context: Context, table: str, first: datetime, last: datetime, *, dry_run: bool, as_json: bool) -> None:
    """Rebuild dates of a table from segments that the spool still has, and rollups from their inputs.

    The result has the same rows as before. Rows that retention removed or a check quarantined are not restored. If
    segments are gone, or the result would differ, nothing changes.
    """
    lake, spool = context.open_lake(), context.spool()
    days = (first.date(), last.date())
    # Planned first, so that no cluster starts for an impossible replay, nor for rollups, which need none.
    result = run_replay(lake, spool, InProcess(), table, days, dry_run=True)
    if result.partitions and not dry_run:
        with ExitStack() as stack:
            workers: Workers = InProcess()
            if result.segments:
                workers = stack.enter_context(context.workers())
            progress = stack.enter_context(progress_bar("replay"))
            result = run_replay(lake, spool, workers, table, days, progress=progress)
        audit_plans(lake)
    if as_json:
        show_json({**asdict(result), "dry_run": dry_run})
        return
    if result.kept:
        tell(f"{table}: {', '.join(result.kept)} stay as they are: retention took what they were made of")
    if not result.partitions:
        tell(f"{table} has nothing to rebuild from {days[0]} to {days[1]}; nothing was changed")
        return
    made_of = f"{result.segments} segments" if result.segments else "their inputs"
    verb = "would be rebuilt" if dry_run else "rebuilt"
    tell(
        f"{table}: {_dates(result.partitions)} {verb} from {made_of}: {result.rows:,} rows, "
        f"{result.files_before} files before{'' if dry_run else f', {result.files_after} after'}"
    )


def _dates(names: tuple[str, ...]) -> str:
    days = [date.fromisoformat(name) for name in names]
    return f"{days[0]}" if len(days) == 1 else f"{len(days)} dates from {days[0]} to {days[-1]}"


@click.command()
@click.argument("name", metavar="SEGMENT|STREAM")
@lake_option
@click.option("--reason", metavar="TEXT", required=True, help="Why; kept in the audit log.")
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@json_option
@with_context
def disown(context: Context, name: str, reason: str, by: str | None, *, as_json: bool) -> None:
    """Set aside a segment or stream with impossible counts, so that 'ranklake status' balances again.

    Use the name that 'ranklake status' shows, or the file's name: steps/r1~a0~r00000~0123456789abcdef~000002 is a
    segment; without the last number it is the stream's segments of that table; without the table, of all tables. The
    rows go to the table rejects, and the segment's own counts are ignored. If the command is killed, the next one that
    changes the lake finishes it.
    """
    result = set_aside(context.open_lake(), Claim.parse(name), by or getpass.getuser(), reason)
    if as_json:
        show_json({"disowned": str(result.claim), "plan": result.plan, "rows": result.rows, "now": result.fresh})
    elif result.fresh:
        tell(f"plan {result.plan}: {result.claim} is set aside, {result.rows:,} rows moved to the table rejects")
    else:
        tell(f"{result.claim}: set aside already by plan {result.plan}; nothing changed")


@click.command()
@click.argument("run")
@lake_option
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@json_option
@with_context
def renumber(context: Context, run: str, by: str | None, *, as_json: bool) -> int:
    """Split a RUN that was recorded again under one name into attempts, so that no step is stored twice.

    Rows of later starts get the attempt numbers after the highest one, in all tables; ranks of one start stay
    together. Derived tables follow with the next 'ranklake rollup'. The audit log records it. If the command is
    killed, the next one that changes the lake finishes it.

    Exits 1 if a step is still stored twice because one process numbered its steps again: attempts cannot separate
    such steps.
    """
    result = give_numbers(context.open_lake(), run, by or getpass.getuser())
    attempts = sorted(set(result.attempts.values()))
    if as_json:
        show_json({"run": run, "plan": result.plan, "rows": result.rows, "attempts": attempts, "within": result.within})
    else:
        shown = ", ".join(map(str, attempts))
        tell(f"plan {result.plan}: {result.rows:,} rows of run {run} are attempt {shown} now")
        if result.within:
            tell(f"{result.within:,} steps are still there twice, each in one life: {COUNTED_ANEW}")
    return 1 if result.within else 0
