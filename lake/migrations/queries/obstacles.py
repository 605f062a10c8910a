"""What keeps a statement from being brought along, besides single columns."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Meaning, Table
from ranklake.lake.migrations.queries.placeholders import MACRO
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.scopes import table_of
from ranklake.lake.migrations.queries.statements import Statement

_WHOLE: Final = (exp.Predicate, exp.AggFunc, exp.Ordered)
_AROUND: Final = (exp.Select, exp.Group, exp.Where, exp.Having, exp.Qualify, exp.Connector, exp.Not, exp.If, exp.Case)
"""What a placeholder stands for a part of, and what such parts stand in."""


def obstacles(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield what a person has to look at."""
    changed = {name for name, version in reading.versions.items() if _otherwise(tables[name], version)}
    grown = {name for name, version in reading.versions.items() if version != tables[name].newest}
    columns = {name: table.versions[table.newest] for name, table in tables.items()}
    if changed or any(
        ref.name in names for ref in reading.lacking for table in tables.values() for names in table.meanings.values()
    ):
        for ref in reading.lacking:
            what = f"{ref.name} is a column of other versions than the rest; say which with --from"
            yield Finding(ref.node.this.meta.get("start", 0), what)
    yield from _unknown_tables(one, tables)
    yield from _unseen(one, reading, tables, columns)
    if isinstance(one.tree, exp.DML) and not isinstance(one.tree, exp.Query):
        for node in one.tree.find_all(exp.Table):
            written = None if node.find_ancestor(exp.Query) else table_of(node, columns)
            if written is not None and tables[written].touched:
                yield Finding(0, f"it writes to {node.name}, to which only ranklake writes")
                return
    if not changed and not grown:
        return
    for scope in reading.scopes.every:
        named = [table for table, _ in reading.scopes.tables(scope, columns)]
        yield from _joins(scope, named, reading, tables)
        if not changed.isdisjoint(named):
            yield from _places(scope)
            yield from _placeholders(one, scope)
        yield from _stars(scope, reading, tables, grown)


def _otherwise(table: Table, version: int) -> dict[str, Meaning]:
    """Return the columns that are not to be had by their names any more."""
    return {name: one for name, one in table.meanings.get(version, {}).items() if one.plain != name}


def _stars(
    scope: Any,  # noqa: ANN401 - sqlglot's
    reading: Reading,
    tables: Mapping[str, Table],
    grown: set[str],
) -> Iterator[Finding]:
    select = scope.expression
    if not isinstance(select, exp.Select) or isinstance(select.parent, exp.Exists):
        return
    columns = {name: table.versions[table.newest] for name, table in tables.items()}
    aliases = {node.alias_or_name.lower(): table for table, node in reading.scopes.tables(scope, columns)}
    for item in select.expressions:
        if not item.is_star and not isinstance(item, exp.Columns) and item.find(exp.Columns) is None:
            continue
        qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
        hit = sorted({table for alias, table in aliases.items() if not qualifier or alias == qualifier})
        for name in hit:
            yield from _given(select, tables[name], reading.versions[name])
        if (found := [name for name in hit if name in grown]) and _is_matched(select):
            what = f"SELECT * gives more columns of {found[0]}, and is matched by place; name the columns"
            yield Finding(_first(select), what)


def _given(select: Any, table: Table, version: int) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    """Yield what * gives of a table that it did not give."""
    if others := _otherwise(table, version):
        name = min(others)
        now = "otherwise" if {*others[name].names} == {name} else f"as {', '.join(others[name].names)}"
        now = "no more" if others[name].gone else now
        yield Finding(_first(select), f"SELECT * gives {name} of {table.name} {now}; name the columns")
        return
    for name, meaning in table.meanings.get(version, {}).items():
        yield Finding(_first(select), f"{table.name}.{name}: {meaning.note}", is_note=True)


def _is_matched(select: Any) -> bool:  # noqa: ANN401 - likewise
    return select.find_ancestor(exp.SetOperation, exp.Insert) is not None


def _joins(scope: Any, named: list[str], reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401
    """Yield joins by names, where a table gets or loses one of them."""
    touched: set[str] = set()
    for table in (tables[name] for name in named):
        version = reading.versions[table.name]
        touched |= table.versions[version] ^ table.versions[table.newest] | table.meanings.get(version, {}).keys()
    for join in scope.expression.args.get("joins") or ():
        for name in join.args.get("using") or ():
            if name.name.lower() in touched:
                yield Finding(_first(name), f"USING ({name.name}) matches columns by a name that changes; write ON")
        if touched and str(join.args.get("method", "")).upper() == "NATURAL":
            yield Finding(_first(join), "NATURAL JOIN matches columns by names, and some change; write ON")


def _places(scope: Any) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    for pivot in scope.expression.find_all(exp.Pivot):
        yield Finding(_first(pivot), "PIVOT takes columns by what is left; rewrite it by hand")
    for node in scope.expression.find_all(exp.Table):
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            yield Finding(_first(node), "columns are named by their places; rewrite it by hand")


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
        if node.name.lower() in touched and reading.scopes.of(node) is None:
            yield Finding(_first(node), f"{node.name} stands outside of a SELECT; rewrite it by hand")


def _unknown_tables(one: Statement, tables: Mapping[str, Table]) -> Iterator[Finding]:
    for node in one.tree.find_all(exp.Table):
        place = node.this.meta.get("start", -1) if isinstance(node.this, exp.Identifier) else -1
        if place >= 0 and one.is_placeholder(place):
            for name, table in sorted(tables.items()):
                if table.touched and not one.words.isdisjoint(table.touched):
                    yield Finding(place, f"a placeholder names a table here, perhaps {name}; look at what fills it in")


def _first(node: Any) -> int:  # noqa: ANN401 - likewise
    return min((one.meta["start"] for one in node.find_all(exp.Identifier) if "start" in one.meta), default=0)
