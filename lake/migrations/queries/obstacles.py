"""What keeps a statement from being brought along, besides single columns."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.joins import joins
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.other_ways import other_ways
from ranklake.lake.migrations.queries.placeholders import MACRO, model_of
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.scopes import table_of
from ranklake.lake.migrations.queries.statements import Statement
from ranklake.lake.migrations.queries.unexplained import unexplained
from ranklake.lake.migrations.queries.wholes import first, wholes

_WHOLE: Final = (exp.Predicate, exp.AggFunc, exp.Ordered)
_AROUND: Final = (exp.Select, exp.Group, exp.Where, exp.Having, exp.Qualify, exp.Connector, exp.Not, exp.If, exp.Case)
"""What a placeholder stands for a part of, and what such parts stand in."""


def obstacles(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield what a person has to look at."""
    changed = {name for name, version in reading.versions.items() if tables[name].otherwise(version)}
    columns = {name: table.versions[table.newest] for name, table in tables.items()}
    if changed or any(
        ref.name in names for ref in reading.lacking for table in tables.values() for names in table.meanings.values()
    ):
        for ref in reading.lacking:
            what = f"{ref.name} is a column of other versions than the rest; say which with --from"
            yield Finding(ref.node.this.meta.get("start", 0), what)
    yield from _unknown_tables(one, tables)
    yield from other_ways(one, reading, tables)
    yield from _unseen(one, reading, tables, columns)
    if written := _written(one, tables, columns):
        yield Finding(0, f"it writes to {written}, to which only ranklake writes")
    elif any(version != tables[name].newest for name, version in reading.versions.items()):
        yield from _within(one, reading, tables, changed)
        yield from wholes(one, reading, tables)
        yield from unexplained(one, reading, tables)


def _written(one: Statement, tables: Mapping[str, Table], columns: Mapping[str, frozenset[str]]) -> str:
    """Return the known table that a statement writes to; empty where it writes to none."""
    is_read = isinstance(one.tree, exp.Query) or (isinstance(one.tree, exp.Copy) and not one.tree.args.get("kind"))
    if is_read or not isinstance(one.tree, exp.DML):
        return ""
    nodes = [node for node in one.tree.find_all(exp.Table) if node.find_ancestor(exp.Query) is None]
    return next((node.name for node in nodes if (name := table_of(node, columns)) and tables[name].touched), "")


def _within(one: Statement, reading: Reading, tables: Mapping[str, Table], changed: set[str]) -> Iterator[Finding]:
    """Yield what a person has to look at in the SELECTs."""
    if changed and not isinstance(one.tree, exp.Query) and one.tree.args.get("with_") is not None:
        yield Finding(0, "its WITH is not followed; rewrite it by hand")
    columns = reading.columns(tables)
    for scope in reading.scopes.every:
        named = [table for table, _ in reading.scopes.tables(scope, columns)]
        yield from joins(scope, named, reading, tables)
        if changed.isdisjoint(named):
            continue
        if scope.expression.args.get("match") is not None:
            yield Finding(first(scope.expression), "MATCH_RECOGNIZE is not followed; rewrite it by hand")
        yield from _places(scope)
        yield from _placeholders(one, scope)


def _places(scope: Any) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    for pivot in scope.expression.find_all(exp.Pivot):
        if isinstance(pivot.parent, exp.Subquery) or isinstance(pivot.this, exp.Subquery):
            continue  # of a query, which gives columns under the names that they had
        yield Finding(first(pivot), "PIVOT takes columns by what is left; rewrite it by hand")
    for node in scope.expression.find_all(exp.Table):
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            yield Finding(first(node), "columns are named by their places; rewrite it by hand")


def _placeholders(one: Statement, scope: Any) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    for node in scope.find_all(exp.Column):
        place = node.this.meta.get("start", -1) if isinstance(node.this, exp.Identifier) else -1
        if place < 0 or not one.is_placeholder(place):
            continue
        if _is_name(one, node):
            yield Finding(place, "a placeholder may name a column here; look at what fills it in")
        elif isinstance(node.parent, exp.Func) and not _is_macro(node.parent):
            what = "what is filled in here may name a column, too; it was not looked at"
            yield Finding(place, what, is_note=True)


def _is_macro(node: Any) -> bool:  # noqa: ANN401 - likewise
    return isinstance(node, exp.Anonymous) and str(node.this).startswith(MACRO)


def _is_name(one: Statement, node: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether a placeholder may be filled in with a column.

    So it may where it stands first in a comparison, and where nothing else is a column of what is selected, compared,
    aggregated, grouped or sorted by.
    """
    if node.arg_key == "this" and isinstance(node.parent, exp.Predicate | exp.AggFunc | exp.Dot):
        return True
    around = node
    while not isinstance(around, _WHOLE) and not isinstance(around.parent, _AROUND):
        around = around.parent
        if around is None or isinstance(around, exp.Limit | exp.Offset | exp.Fetch | exp.Query):
            return False
    columns = (other for other in around.find_all(exp.Column) if isinstance(other.this, exp.Identifier))
    return all(one.is_placeholder(other.this.meta.get("start", -1)) for other in columns)


def _unseen(
    one: Statement, reading: Reading, tables: Mapping[str, Table], columns: Mapping[str, frozenset[str]]
) -> Iterator[Finding]:
    """Yield columns outside of every SELECT, such as those of DuckDB's PIVOT, that a table calls otherwise."""
    named = {table_of(node, columns) for node in one.tree.find_all(exp.Table)} - {None}
    touched = frozenset[str]().union(*(tables[name].touched for name in named if name is not None))
    for node in one.tree.find_all(exp.Column):
        if node.name.lower() in touched and reading.scopes.of(node) is None and not _is_of_query(node):
            yield Finding(first(node), f"{node.name} stands outside of a SELECT; rewrite it by hand")


def _is_of_query(node: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether a column is one of a PIVOT of a query, which gives it the name that it had."""
    pivot = node.find_ancestor(exp.Pivot)
    return pivot is not None and isinstance(pivot.this, exp.Subquery)


def _unknown_tables(one: Statement, tables: Mapping[str, Table]) -> Iterator[Finding]:
    for node in one.tree.find_all(exp.Table):
        texts = node.this.find_all(exp.Identifier, exp.Literal)
        place = next((at for at in (text.meta.get("start", -1) for text in texts) if at >= 0), -1)
        filled = next((low for low, high in one.placeholders if place <= low <= _end(node)), -1) if place >= 0 else -1
        if (
            filled < 0
            or (model := model_of(one.filled_in(filled))) == ""
            or (model is not None and model not in tables)
        ):
            continue
        for name, table in sorted(tables.items()):
            if table.touched and not one.words.isdisjoint(table.touched):
                yield Finding(filled, f"a placeholder names a table here, perhaps {name}; look at what fills it in")


def _end(node: Any) -> int:  # noqa: ANN401 - likewise
    """Return where the last name or text of what a table is ends."""
    return max((text.meta.get("end", -1) for text in node.this.find_all(exp.Identifier, exp.Literal)), default=-1)
