"""``ranklake lineage``: from a number back to the bytes that it came from."""

from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.lineage.fed_segments import UNASKED
from ranklake.insight.lineage.stored_files import VERIFIED
from ranklake.insight.lineage.walk import Computation, InputPartition, Walk, walk
from ranklake.lake.migrations.former import former_names, former_tables
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract

_INPUTS = tuple(map(TextColumn, ("computed", "by code", "of", "which is")))
_FILES = (*numbers(("rows",)), *map(TextColumn, ("state", "data file")))
_SEGMENTS = (*numbers(("rows", "plan")), *map(TextColumn, ("table", "state", "segment")))
_MOST: Final = 20
"""Lines of a list; all are in the JSON."""


@click.command()
@click.argument("number", metavar="TABLE[.COLUMN]")
@lake_option
@optional_spool("URI or folder of the spool; without one, segments are named, not verified.")
@click.option("--run", metavar="RUN", help="Run whose rows are followed; a table without runs takes none.")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="UTC date of the rows; default: all of the run.")
@json_option
@with_context
def lineage(context: Context, number: str, *, run: str | None, day: datetime | None, as_json: bool) -> int:
    """Follow a number's rows back to data files and segments, and verify the digest of each.

    Says which code computed them from what, and whether that is still there as it was read. Exits 1 if a data file or a
    segment in the spool is not what was written, if rows name no known segment, or if there are no such rows.
    """
    lake = context.open_lake()
    target = _target(lake.contracts(), number)
    if "run" in target and run is None:
        raise click.UsageError(f"say of which run: ranklake lineage {number} --run RUN; 'ranklake runs' lists runs")
    if "run" not in target and (run is not None or day is None):
        raise click.UsageError(f"table {target.table} has no column run; say of which date: --date YYYY-MM-DD")
    result = walk(lake, target, run, day and day.date(), context.spool() if context.has_spool else None)
    if as_json:
        show_json({"number": number, "run": run, "date": day and day.date(), **asdict(result)})
    elif result.files:
        _show(result, printable(number if run is None else f"{number} of run {run}"))
    if not result.files:
        rows = "rows" if run is None else f"rows of run {run}"
        tell(f"{printable(number)}: no {printable(rows)}; 'ranklake runs' lists runs", err=True)
    tell(*map(printable, result.faults), err=True)
    return 1 if result.faults or not result.files else 0


def _target(contracts: "Mapping[str, Contract]", number: str) -> "Contract":
    """Return the contract of a table, by any name that it has or had. Raises a usage error with the nearest name."""
    table, dot, column = number.partition(".")
    names = {each.called or each.table: each for each in contracts.values()} | dict(contracts)
    names |= {name: contracts[former.table] for name, former in former_tables(contracts).items()}
    if table not in names:
        raise click.UsageError(f"no table {table!r}; {did_you_mean(table, names)}")
    target = names[table]
    former = former_names(target)
    if dot and column not in target and not (column in former and former[column].now):
        raise click.UsageError(f"table {table} has no column {column!r}; {did_you_mean(column, target.names)}")
    return target


def _show(result: Walk, number: str) -> None:
    state = "all digests verified" if not result.faults else f"{counted(len(result.faults), 'fault')}, see below"
    if any(each.state == UNASKED for each in result.segments):
        state += " but those of segments: no spool is configured"
    tell(
        f"{number}: from {counted(len(result.files), 'data file')} and "
        f"{counted(len(result.segments), 'segment')}; {state}"
    )
    rows = [
        (_place(each), each.sha256[:12], _place(source), source.state)
        for each in result.computations
        for source in each.inputs
    ]
    _list(_INPUTS, rows)
    faulty_first = sorted(result.files, key=lambda file: file.state == VERIFIED)
    files = [("" if e.rows is None else f"{e.rows:,}", e.state, f"{e.table}/{e.path}") for e in faulty_first]
    _list(_FILES, files)
    segments = sorted(result.segments, key=lambda each: each.state == VERIFIED)
    _list(_SEGMENTS, [(f"{e.rows:,}", f"{e.plan}", e.table, e.state, printable(e.path)) for e in segments])
    tell(*map(printable, result.notes))


def _place(partition: Computation | InputPartition) -> str:
    return f"{partition.table} {partition.partition}".rstrip()


def _list(columns: Sequence[TextColumn], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    tell("", *table_lines(columns, rows[:_MOST]))
    if len(rows) > _MOST:
        tell(f"and {len(rows) - _MOST:,} more: --json lists all")
