"""Column lineage of rollups, from their SQL.

    the queries of a rollup ─sqlglot─▶ per query: result column → columns read ─▶ composed: columns of input tables

Columns in filters, joins and GROUP BY affect every column, and are not listed; columns in CASE conditions are. For a
rollup in Python only the input tables are known.
"""

import logging
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sqlglot import exp
from sqlglot.errors import SqlglotError
from sqlglot.lineage import Node, lineage

from ranklake.lake.rollups.declaration import AFFECTED, EARLIER, Query, SqlBody
from ranklake.lake.rollups.named import NamedBody
from ranklake.lake.rollups.own import OwnBody

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.rollups.declaration import Rollup

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # for SQL that it cannot parse, only the tables are known

DIALECT: Final = "duckdb"
"""sqlglot has no DataFusion dialect; this one parses all our rollups."""

COLUMNS: Final = "columns"
COUNTED: Final = "rows or literals"
TABLES: Final = "tables"

Place = tuple[str, str]
"""Table and column."""


@dataclass(frozen=True, slots=True)
class ColumnOrigin:
    """The inputs of a column.

    Attributes
    ----------
    level
        `COLUMNS`; `COUNTED` if it reads none, such as a count of rows or a literal; `TABLES` if only the tables are
        known: then `sources` have empty columns.
    sources
        Columns of input tables and of the rollup's lookups, sorted; none of a recorded column.
    class_, mask
        Class and mask of the column itself, from its contract.
    """

    table: str
    column: str
    level: str
    sources: tuple[Place, ...]
    class_: str
    mask: str | None


def origins(rollup: "Rollup", contracts: "Mapping[str, Contract]") -> dict[str, ColumnOrigin]:
    """Return the inputs of each column of a rollup's table, by name."""
    target = contracts[rollup.name]
    composed = _composed(rollup, contracts)
    tables = tuple((name, "") for name in sorted(rollup.tables))
    result = {}
    for column in target.columns:
        sources = tables if composed is None else tuple(sorted(composed.get(column.name, ())))
        level = TABLES if composed is None or column.name not in composed else COLUMNS if sources else COUNTED
        facts = (level, tables if level == TABLES else sources, column.class_, column.mask)
        result[column.name] = ColumnOrigin(rollup.name, column.name, *facts)
    return result


def back(
    table: str, column: str, rollups: "Mapping[str, Rollup]", contracts: "Mapping[str, Contract]"
) -> tuple[ColumnOrigin, ...]:
    """Return the lineage of a column back to recorded tables: the column first, each column once."""
    pending, seen, result = [(table, column)], {(table, column)}, []
    known: dict[str, dict[str, ColumnOrigin]] = {}
    while pending:
        place = pending.pop(0)
        if place[0] not in contracts or place[1] not in contracts[place[0]]:
            continue  # a column of a lookup, or a whole table
        if place[0] not in known:
            rollup = rollups.get(place[0])
            known[place[0]] = {} if rollup is None else origins(rollup, contracts)
        origin = known[place[0]].get(place[1]) or _recorded(contracts[place[0]], place[1])
        result.append(origin)
        fresh = [each for each in origin.sources if each not in seen]
        seen |= set(fresh)
        pending += fresh
    return tuple(result)


def forward(
    places: Collection[Place], rollups: "Mapping[str, Rollup]", contracts: "Mapping[str, Contract]"
) -> dict[Place, Place]:
    """Return the columns of rollups computed from some columns, directly or not, each with its input column.

    If only a rollup's tables are known, the column is empty.
    """
    reached: dict[Place, Place] = {}
    for name, rollup in rollups.items():  # each comes after its inputs
        ways = {*places, *reached}
        tables = {table for table, _ in ways}
        for origin in origins(rollup, contracts).values() if tables & set(rollup.tables) else ():
            if origin.level == TABLES:
                way = next((place for place in sorted(ways) if place[0] in rollup.tables), None)
                place = (name, "")
            else:
                way = next((place for place in origin.sources if place in ways or (place[0], "") in ways), None)
                place = (name, origin.column)
            if way is not None and place not in places:
                reached.setdefault(place, way)
    return reached


def _recorded(target: "Contract", name: str) -> ColumnOrigin:
    column = target.column(name)
    return ColumnOrigin(target.table, name, COLUMNS, (), column.class_, column.mask)


def _composed(rollup: "Rollup", contracts: "Mapping[str, Contract]") -> dict[str, frozenset[Place]] | None:
    """Return the input columns of each result column; None if they cannot be determined."""
    queries = _queries(rollup)
    schema: dict[str, Any] = {name: dict.fromkeys(contracts[name].names, "text") for name in rollup.tables}
    schema |= {name: dict.fromkeys(make().column_names, "text") for name, make in rollup.lookups.items()}
    schema |= {AFFECTED: {"run": "text", "date": "text"}}
    if rollup.earlier:
        schema[EARLIER] = dict.fromkeys(rollup.earlier, "text")
    # earlier rows of the table itself come from the same inputs
    made: dict[Place, frozenset[Place]] = {(EARLIER, name): frozenset() for name in rollup.earlier}
    result: dict[str, frozenset[Place]] | None = None
    for query in queries:
        try:
            nodes = lineage(None, query.text, schema=schema, dialect=DIALECT, trim_selects=False)
        except (SqlglotError, ValueError):
            return None
        result = {}
        for name, node in nodes.items():
            places: set[Place] = set()
            for place in _leaves(node, schema):
                of_runs = {(table, place[1]) for table in rollup.tables if place[1] in contracts[table]}
                places |= of_runs if place[0] == AFFECTED else made.get(place, {place})
            result[name] = frozenset(places)
        schema[query.name] = dict.fromkeys(result, "text")
        made |= {(query.name, name): places for name, places in result.items()}
    return result


def _queries(rollup: "Rollup") -> Collection[Query]:
    body = rollup.transform.body if isinstance(rollup.transform, NamedBody) else rollup.transform
    if isinstance(body, SqlBody):
        return body.queries
    return [Query("result", "", body.text)] if isinstance(body, OwnBody) else []


def _leaves(node: Node, schema: Mapping[str, Any]) -> Iterator[Place]:
    """Yield the input columns of a column."""
    for each in node.walk():
        if isinstance(each.expression, exp.Table) and not each.downstream:
            name = each.name.rpartition(".")[2].strip('"')
            if name == "*":
                yield from ((each.expression.name, column) for column in schema.get(each.expression.name, ()))
            else:
                yield each.expression.name, name
