"""``ranklake quality``."""

from collections.abc import Mapping
from datetime import date, datetime
from pathlib import Path
from typing import Any

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.quality_release import release
from ranklake.commands.quality_why import why
from ranklake.context import Context
from ranklake.quality.export.project import export_project
from ranklake.quality.report.gather import gather
from ranklake.quality.trust import Input, inputs_of
from ranklake.retention.proposals.releases import Hold, holds
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted

_HELD = (*map(TextColumn, ("table", "partition", "severity")), *numbers(("rows failed",)), TextColumn("checks"))
_OBJECTIVES = (
    *map(TextColumn, ("objective", "status", "tables", "through")),
    *numbers(("promised", "attained", "good", "of", "budget used", "burn rate")),
)
_INPUTS = tuple(map(TextColumn, ("state", "input", "its partition", "read by", "for", "checks")))


@click.group()
def quality() -> None:
    """Show what checks hold back from rollups, why they fail, release it after a fix, and export suites and results."""


quality.add_command(why)
quality.add_command(release)


@quality.command()
@lake_option
@json_option
@with_context
def held(context: Context, *, as_json: bool) -> None:
    """List partitions that checks hold back from rollups."""
    found = holds(context.open_lake())
    if as_json:
        show_json([one.plain() for one in found])
    elif found:
        tell(*table_lines(_HELD, map(_hold, found)))
        tell("rollups of them stay as they are; after a fix: ranklake check, or ranklake quality release plan")
    else:
        tell("nothing is held back")


@quality.command()
@click.argument("table")
@click.option("--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Rows of this date.")
@click.option("--run", metavar="RUN", help="Rows of this run, of a rollup of whole runs.")
@lake_option
@json_option
@with_context
def inputs(context: Context, table: str, day: datetime | None, run: str | None, *, as_json: bool) -> None:
    """Show the quality of what rows of a rollup were computed from, by partition, through all tables between."""
    found = inputs_of(context.open_lake(), table, _day(day), run)
    if as_json:
        show_json([one.plain() for one in found])
    elif found:
        tell(*table_lines(_INPUTS, map(_input, found)))
    else:
        tell("nothing was computed")


@quality.command()
@lake_option
@json_option
@with_context
def objectives(context: Context, *, as_json: bool) -> None:
    """Show what was attained of each of [[quality.objectives]], and what is left of its error budget."""
    found = gather(context.open_lake()).overview.objectives.rows
    if as_json:
        show_json([{**row, "through": str(row["through"])} for row in found])
    elif found:
        tell(*table_lines(_OBJECTIVES, map(_objective, found)))
    else:
        tell("no objective is configured, or nothing was checked yet")


@quality.command()
@click.option(
    "--out", metavar="FOLDER", required=True, type=click.Path(path_type=Path, file_okay=False), help="Where it stands."
)
@click.option("--table", "tables", metavar="TABLE", multiple=True, help="Only this table; may be given several times.")
@lake_option
@json_option
@with_context
def export(context: Context, out: Path, tables: tuple[str, ...], *, as_json: bool) -> None:
    """Write suites and results of the last checks as a project that Great Expectations opens, with its Data Docs.

    Pages load nothing from elsewhere. An earlier export in FOLDER is replaced; anything else there is left alone.
    """
    done = export_project(context.open_lake(), out, tables or None)
    if as_json:
        show_json(done.plain())
        return
    said = f"{counted(done.suites, 'suite')}, {counted(done.expectations, 'expectation')}"
    tell(f"{said}, {counted(done.results, 'validation result')}; open {done.index}")
    if done.unexpressed:
        tell(f"{counted(done.unexpressed, 'check')} have no word there: they are in results only")


def _day(found: datetime | None) -> date | None:
    return None if found is None else found.date()


def _hold(one: Hold) -> tuple[str, ...]:
    return (one.table, str(one.partition_date), one.severity, f"{one.rows_failed:,}", ", ".join(one.checks))


def _input(one: Input) -> tuple[str, ...]:
    state = f"{one.state}, released" if one.is_released else one.state
    return (state, one.table, one.partition, one.output_table, one.output_partition, ", ".join(one.checks))


def _objective(row: Mapping[str, Any]) -> tuple[str, ...]:
    ratios = ("objective_ratio", "attained_ratio", "budget_used_ratio")
    promised, attained, used = ("unknown" if row[name] is None else f"{row[name]:.2%}" for name in ratios)
    counts = (f"{row['good_count']:,}", f"{row['total_count']:,}")
    burn = "unknown" if row["burn_rate"] is None else f"{row['burn_rate']:.2f}"
    return (row["slo"], row["status"], row["subject"], str(row["through"]), promised, attained, *counts, used, burn)
