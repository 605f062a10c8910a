"""Metrics that others took the place of: queries that name them read both, in the old name and unit.

What is stored under the old name stays, and what is recorded now has the new one, so neither alone is the metric. To a
statement that names one, its table is as a migration would leave it: `metric` and the values are computed.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Edit
from ranklake.lake.migrations.queries.meanings import Meaning, Name, Renamed, Table
from ranklake.lake.migrations.queries.references import Reference
from ranklake.lake.migrations.queries.scopes import Home
from ranklake.lake.migrations.queries.statements import Statement
from ranklake.lake.query.literal import literal

COLUMN: Final = "metric"
_VALUES: Final[Mapping[str, tuple[str, ...]]] = {
    "scalars": ("value", "agg_min", "agg_max", "agg_mean", "agg_std"),
    "distributions": (
        *("sum", "min", "max", "scale", "zero_threshold"),
        *("positive_offset", "positive_counts", "negative_offset", "negative_counts"),
    ),
}
"""Columns in the unit of the metric, by table."""


def named(one: Statement, tables: Mapping[str, Table]) -> dict[str, Renamed]:
    """Return the metrics with another name that a statement names; one that names the new, too, is brought along."""
    mine = [tables[name].metrics for name in _VALUES if name in tables and name in one.words]
    if one.tree is None or not any(mine):
        return {}
    texts = {node.name for node in one.tree.find_all(exp.Literal) if node.is_string}
    return {
        old: new
        for old, new in {**mine[0], **mine[-1]}.items()
        if old in texts and texts.isdisjoint(name for name, *_ in new.newer)
    }


def tables_of(found: Mapping[str, Renamed], tables: Mapping[str, Table]) -> dict[str, Table]:
    """Return tables as they are to a statement that names some metrics: those with metrics have another version."""
    made = dict(tables)
    for table in _VALUES.keys() & tables.keys():
        newest = tables[table].newest
        columns = tables[table].versions[newest]
        values = {name: _value(table, name, found) for name in _VALUES[table] if name in columns}
        meanings = {name: one for name, one in {COLUMN: _name(found), **values}.items() if one is not None}
        made[table] = Table(table, {newest: columns, newest + 1: columns}, {newest: meanings})
    return made


def compared(one: Statement, ref: Reference, found: Mapping[str, Renamed]) -> Iterator[Edit] | None:
    """Return the edits of a condition that names metrics, which then names the newer, too; None for anything else.

    They are none where it names others only.

    So an engine still knows which rows to read.
    """
    parent = ref.node.parent
    is_equal = isinstance(parent, exp.EQ) or (isinstance(parent, exp.In) and not isinstance(parent.parent, exp.Not))
    if (
        ref.name != COLUMN
        or not isinstance(ref.home, Home)
        or ref.home.table not in _VALUES
        or not is_equal
        or parent.args.get("query") is not None
    ):
        return None
    others = [parent.expression] if isinstance(parent, exp.EQ) else parent.expressions
    if parent.this is not ref.node or not others or parent.find_ancestor(exp.Where) is None:
        return None
    if not all(isinstance(other, exp.Literal) and other.is_string and "start" in other.meta for other in others):
        return None
    return _named_too(one, parent, others, found)


def _named_too(
    one: Statement,
    parent: Any,  # noqa: ANN401 - sqlglot's
    others: list[Any],
    found: Mapping[str, Renamed],
) -> Iterator[Edit]:
    for other in others:
        more = [literal(name) for name, *_ in found[other.name].newer] if other.name in found else []
        begin, end = other.meta["start"], other.meta["end"] + 1
        if more and isinstance(parent, exp.In):
            yield Edit(end, end, f", {', '.join(more)}")
        elif more:
            sign = one.text.rindex("=", 0, begin)
            sign -= one.text[sign - 1] == "="  # DuckDB's ==
            before = "" if one.text[sign - 1].isspace() else " "
            yield Edit(sign, end, f"{before}IN ({', '.join([one.text[begin:end], *more])})")


def _name(found: Mapping[str, Renamed]) -> Meaning:
    pieces: list[str | Name] = ["CASE ", Name(COLUMN)]
    for old, one in sorted(found.items()):
        pieces += [f" WHEN {literal(name)} THEN {literal(old)}" for name, *_ in one.newer]
    return Meaning((*pieces, " ELSE ", Name(COLUMN), " END"))


def _value(table: str, column: str, found: Mapping[str, Renamed]) -> Meaning | None:
    whens: list[str | Name] = []
    for old, one in sorted(found.items()):
        for name, factor, offset in one.newer:
            if (factor, offset) == (1.0, 0.0):
                continue
            if table != "scalars" or (factor < 0 and column in {"agg_min", "agg_max"}):
                return Meaning((), gone=f"it has another unit under {name}, in place of {old}; ask the series")
            shift = "" if not offset or column == "agg_std" else f" {'+' if offset > 0 else '-'} {abs(offset)!r}"
            by = abs(factor) if column == "agg_std" else factor
            scale = f" * {by!r}" if by >= 0 else f" * ({by!r})"
            whens += [f" WHEN {literal(name)} THEN ", Name(column), f"{scale}{shift}"]
    if not whens:
        return None
    return Meaning(("CASE ", Name(COLUMN), *whens, " ELSE ", Name(column), " END"))
