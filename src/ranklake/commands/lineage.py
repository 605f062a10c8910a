"""``ranklake lineage``: traces a number back to its data files and segments, or forward to its uses."""

from collections.abc import Sequence
from dataclasses import asdict, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

import click

from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, optional_spool, role_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.ask import ask
from ranklake.insight.lineage.columns import COLUMNS, COUNTED, ColumnOrigin, back
from ranklake.insight.lineage.stored_files import ELSEWHERE, UNASKED, VERIFIED
from ranklake.insight.lineage.walk import Computation, InputPartition, Walk, walk
from ranklake.lake.migrations.former import former_names, former_tables
from ranklake.lake.rollups.named import rollups_of
from ranklake.pipeline.alerts.stage import configured_rules
from ranklake.pipeline.uses import ColumnUse, column_uses
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_COLUMNS = tuple(map(TextColumn, ("column", "class", "is computed from")))
_INPUTS = tuple(map(TextColumn, ("computed", "by code", "of", "which is")))
_FILES = (*numbers(("rows",)), *map(TextColumn, ("state", "data file")))
_SEGMENTS = (*numbers(("rows", "plan")), *map(TextColumn, ("table", "state", "segment")))
_MOST: Final = 20
"""Most lines of a list; the JSON has all."""


@click.command()
@click.argument("number", metavar="TABLE[.COLUMN]")
@lake_option
@optional_spool("URI or folder of the spool; without one, segments are named, not verified.")
@click.option("--run", metavar="RUN", help="Run whose rows are traced; not for tables without runs.")
@click.option("--date", "day", type=click.DateTime(["%Y-%m-%d"]), help="UTC date of the rows; default: all of the run.")
@click.option("--forward", is_flag=True, help="Show its uses instead: rollups, checks, pages, objectives, queries.")
@role_option
@json_option
@with_context
def lineage(
    context: Context,
    number: str,
    *,
    run: str | None,
    day: datetime | None,
    forward: bool,
    role: str | None,
    as_json: bool,
) -> int:
    """Trace a number's rows back to data files and segments, and verify each digest.

    Shows which code computed them from which inputs, and whether the inputs still exist unchanged. Exits 1 if a data
    file or a segment in the spool was altered, if rows name an unknown segment, or if there are no such rows.
    """
    if run == "":
        raise click.BadParameter("a run has a name; 'ranklake runs' lists runs", param_hint="'--run'")
    lake = context.open_lake()
    seen_by = noted_role_of(context, lake, role)
    contracts = _visible(lake.contracts(), seen_by)
    target, column = _target(contracts, number)
    if forward:
        roles = context.roles(lake.catalog) if context.config.sql.roles else {}
        uses = column_uses(lake, target, column, context.slos(), configured_rules(context), roles)
        _show_uses(number, [use for use in uses if _sees(contracts, *_split(use.column))], as_json=as_json)
        return 0
    if "run" in target and run is None:
        raise click.UsageError(f"say of which run: ranklake lineage {number} --run RUN; 'ranklake runs' lists runs")
    if "run" not in target and (run is not None or day is None):
        raise click.UsageError(f"table {target.table} has no column run; say of which date: --date YYYY-MM-DD")
    columns = _origins(lake, target, column, contracts) if column else ()
    if seen_by is None or _sees_rows(lake, target, run, seen_by):
        whole = lake.contracts()[target.table]
        result = walk(lake, whole, run, day and day.date(), context.spool() if context.has_spool else None)
        result = result.within(contracts)
    else:
        result = Walk((), (), (), (), (), ())
    if as_json:
        facts = {
            "number": number,
            "run": run,
            "date": day and day.date(),
            "columns": [asdict(each) for each in columns],
        }
        show_json({**facts, **asdict(result)})
    elif result.files:
        _show(result, columns, printable(number if run is None else f"{number} of run {run}"))
    if not result.files:
        rows = "rows" if run is None else f"rows of run {run}"
        tell(f"{printable(number)}: no {printable(rows)}; 'ranklake runs' lists runs", err=True)
    tell(*(printable(each.text) for each in result.faults), err=True)
    return 1 if result.faults or not result.files else 0


def _visible(contracts: "Mapping[str, Contract]", role: "Role | None") -> "dict[str, Contract]":
    """Return the contracts of the tables and columns that a role sees; all of them without a role."""
    if role is None:
        return dict(contracts)
    seen = {name: {*role.columns(each)} for name, each in contracts.items() if role.sees(name)}
    return {
        name: replace(contracts[name], columns=tuple(each for each in contracts[name].columns if each.name in columns))
        for name, columns in seen.items()
    }


def _split(place: str) -> tuple[str, str]:
    table, _, column = place.partition(".")
    return table, column


def _sees_rows(lake: "Lake", target: "Contract", run: str | None, role: "Role") -> bool:
    """Whether a role sees a row of a run in a table, or any row of a table without runs."""
    where = "" if run is None else " WHERE run = $run"
    sql = f'SELECT 1 AS one FROM "{target.called or target.table}"{where}'  # noqa: S608 - a contract's
    return bool(ask(lake, sql, {} if run is None else {"run": run}, limit=1, role=role).rows.num_rows)


def _target(contracts: "Mapping[str, Contract]", number: str) -> "tuple[Contract, str]":
    """Return the contract of a table and its column, by present or former names.

    Raises a usage error with the nearest name.
    """
    table, dot, column = number.partition(".")
    names = {each.called or each.table: each for each in contracts.values()} | dict(contracts)
    former = former_tables(contracts)
    names |= {name: contracts[each.table] for name, each in former.items() if name not in names}
    if table not in names:
        raise click.UsageError(f"no table {table!r}; {did_you_mean(table, names)}")
    target = names[table]
    now = column if column in target or not dot else next(iter(_now(target, column)), "")
    if dot and now not in target:
        raise click.UsageError(f"table {table} has no column {column!r}; {did_you_mean(column, target.names)}")
    return target, now


def _now(target: "Contract", column: str) -> tuple[str, ...]:
    """Return the present name for a column's former name."""
    former = former_names(target).get(column)
    return () if former is None else former.columns


def _origins(
    lake: "Lake", target: "Contract", column: str, contracts: "Mapping[str, Contract]"
) -> tuple[ColumnOrigin, ...]:
    """Return a column's lineage, without parts that the role does not see."""
    every = lake.contracts()
    rollups = {each.name: each for each in rollups_of(lake)}
    way = back(target.table, column, rollups, every)
    return tuple(
        replace(
            each, sources=tuple(place for place in each.sources if place[0] not in every or _sees(contracts, *place))
        )
        for each in way
        if _sees(contracts, each.table, each.column)
    )


def _sees(contracts: "Mapping[str, Contract]", table: str, column: str) -> bool:
    return table in contracts and (not column or column in contracts[table])


def _show(result: Walk, columns: Sequence[ColumnOrigin], number: str) -> None:
    state = "all digests verified" if not result.faults else f"{counted(len(result.faults), 'fault')}, see below"
    if any(each.state == UNASKED for each in result.segments):
        state += " but those of segments: no spool is configured"
    elsewhere = sum(each.state == ELSEWHERE for each in result.segments)
    if elsewhere:
        state += f" but those of {counted(elsewhere, 'segment')} that ingest read in another spool"
    tell(
        f"{number}: from {counted(len(result.files), 'data file')} and "
        f"{counted(len(result.segments), 'segment')}; {state}"
    )
    _list(_COLUMNS, [(f"{each.table}.{each.column}", _class(each), _sources(each)) for each in columns])
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
    tell(*(printable(each.text) for each in result.notes))


def _class(origin: ColumnOrigin) -> str:
    return origin.class_ if origin.mask is None else f"{origin.class_}, mask {origin.mask}"


def _sources(origin: ColumnOrigin) -> str:
    if origin.level == COLUMNS:
        return ", ".join(".".join(place) for place in origin.sources) or "recorded"
    names = ", ".join(table for table, _ in origin.sources)
    return origin.level if origin.level == COUNTED else f"tables {names}: computed by Python"


def _place(partition: Computation | InputPartition) -> str:
    return f"{partition.table} {partition.partition}".rstrip()


def _show_uses(number: str, uses: Sequence[ColumnUse], *, as_json: bool) -> None:
    if as_json:
        show_json([asdict(use) for use in uses])
        return
    tell(f"{printable(number)}: {counted(len(uses), 'use')}")
    names: dict[str, dict[str, None]] = {}
    for use in uses:
        queries = "" if use.queries is None else f" ({counted(use.queries, 'query', 'queries')})"
        names.setdefault(use.kind, {})[f"{use.name}{queries}"] = None
    for kind, listed in names.items():
        more = f" and {len(listed) - _MOST:,} more: --json lists all" if len(listed) > _MOST else ""
        tell(f"{kind}: {printable(', '.join(list(listed)[:_MOST]))}{more}")


def _list(columns: Sequence[TextColumn], rows: Sequence[Sequence[str]]) -> None:
    if not rows:
        return
    tell("", *table_lines(columns, rows[:_MOST]))
    if len(rows) > _MOST:
        tell(f"and {len(rows) - _MOST:,} more: --json lists all")
