"""``ranklake lineage``: from a number back to the bytes that it came from."""

from dataclasses import asdict
from datetime import datetime

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, optional_spool
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.lineage import walk
from ranklake.printable import printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

_FILES = (*map(TextColumn, ("table", "data file", "state")), *numbers(("rows",)))
_SEGMENTS = (*map(TextColumn, ("table", "segment", "state")), *numbers(("rows", "plan")))


@click.command()
@click.argument("column", metavar="TABLE.COLUMN")
@lake_option
@optional_spool("URI or folder of the spool; without one, segments are named, not verified.")
@click.option("--run", required=True, metavar="RUN", help="Run whose rows are followed.")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="UTC date of the rows; default: all of the run.")
@json_option
@with_context
def lineage(context: Context, column: str, *, run: str, day: datetime | None, as_json: bool) -> int:
    """Follow a column's rows of a run back to data files and segments, and verify the digest of each.

    Says which code computed them from which tables, by the table lineage. Exits 1 if a data file or a segment in the
    spool is not what was written, if rows name no known segment, or if the run has no rows there.
    """
    lake = context.open_lake()
    table, _, name = column.partition(".")
    contracts = lake.contracts()
    if table not in contracts:
        raise click.UsageError(f"no table {table!r}; {did_you_mean(table, contracts)}")
    target = contracts[table]
    names = [each.name for each in target.columns]
    if name not in names:
        raise click.UsageError(f"table {table} has no column {name!r}; {did_you_mean(name, names)}")
    if "run" not in names and day is None:
        raise click.UsageError(f"table {table} has no column run; say of which --date")
    way = walk(lake, target, run, day and day.date(), context.spool() if context.has_spool else None)
    if as_json:
        show_json({"column": column, "run": run, **asdict(way)})
    elif way.files:
        for each in way.transforms:
            place = f"{each.table} {each.partition}".rstrip()
            code = f"{each.name} {(each.sha256 or 'of unknown digest')[:12]}"
            tell(f"{place}, version {each.version}, computed by {code} from {', '.join(each.inputs)}")
        rows = [
            (each.table, each.path, each.state, "" if each.rows is None else f"{each.rows:,}") for each in way.files
        ]
        tell(*table_lines(_FILES, rows))
        fed = [(e.table, printable(e.path), e.state, f"{e.rows:,}", str(e.plan)) for e in way.segments]
        tell(*table_lines(_SEGMENTS, fed))
    if not way.files:
        tell(f"{printable(column)}: no rows of run {printable(run)}; 'ranklake runs' lists runs", err=True)
    tell(*map(printable, way.faults), err=True)
    return 1 if way.faults or not way.files else 0
