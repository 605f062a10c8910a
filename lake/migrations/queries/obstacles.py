"""What keeps a statement from being brought along, besides single columns."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.scopes import table_of
from ranklake.lake.migrations.queries.statements import Statement


def obstacles(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield what a person has to look at."""
    changed = {name for name, version in reading.versions.items() if tables[name].meanings.get(version)}
    grown = {name for name, version in reading.versions.items() if version != tables[name].newest}
    columns = {name: table.versions[table.newest] for name, table in tables.items()}
    if changed or any(
        ref.name in names for ref in reading.lacking for table in tables.values() for names in table.meanings.values()
    ):
        for ref in reading.lacking:
            what = f"{ref.name} is a column of other versions than the rest; say which with --from"
            yield Finding(ref.node.this.meta.get("start", 0), what)
    yield from _unknown_tables(one, tables)
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
        if not changed.isdisjoint(named):
            yield from _joins(scope, named, reading, tables)
            yield from _placeholders(one, scope)
        yield from _stars(scope, reading, changed, grown, columns)


def _stars(
    scope: Any,  # noqa: ANN401 - sqlglot's
    reading: Reading,
    changed: set[str],
    grown: set[str],
    columns: Mapping[str, frozenset[str]],
) -> Iterator[Finding]:
    select = scope.expression
    if not isinstance(select, exp.Select) or isinstance(select.parent, exp.Exists):
        return
    aliases = {node.alias_or_name.lower(): table for table, node in reading.scopes.tables(scope, columns)}
    for item in select.expressions:
        if not item.is_star and not isinstance(item, exp.Columns) and item.find(exp.Columns) is None:
            continue
        qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
        hit = {table for alias, table in aliases.items() if not qualifier or alias == qualifier}
        if found := sorted(hit & changed):
            what = f"SELECT * gives the columns of {found[0]} under new names; name the columns"
            yield Finding(_first(select), what)
        elif (found := sorted(hit & grown)) and _is_matched(select):
            what = f"SELECT * gives more columns of {found[0]}, and is matched by place; name the columns"
            yield Finding(_first(select), what)


def _is_matched(select: Any) -> bool:  # noqa: ANN401 - likewise
    return select.find_ancestor(exp.SetOperation, exp.Insert) is not None


def _joins(scope: Any, named: list[str], reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401
    touched = {name for table in named for name in tables[table].meanings.get(reading.versions[table], {})}
    for join in scope.expression.args.get("joins") or ():
        for name in join.args.get("using") or ():
            if name.name.lower() in touched:
                yield Finding(_first(name), f"USING ({name.name}) matches columns by a name that changes; write ON")
        if str(join.args.get("method", "")).upper() == "NATURAL":
            yield Finding(_first(join), "NATURAL JOIN matches columns by names, and some change; write ON")
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
        parent, key = node.parent, node.arg_key
        if isinstance(parent, exp.Alias):
            key, parent = parent.arg_key, parent.parent
        names = isinstance(parent, exp.Select | exp.Group | exp.Ordered) or (
            key == "this" and isinstance(parent, exp.Predicate | exp.AggFunc | exp.Dot)
        )
        if names:
            yield Finding(place, "a placeholder may name a column here; look at what fills it in")


def _unknown_tables(one: Statement, tables: Mapping[str, Table]) -> Iterator[Finding]:
    for node in one.tree.find_all(exp.Table):
        place = node.this.meta.get("start", -1) if isinstance(node.this, exp.Identifier) else -1
        if place >= 0 and one.is_placeholder(place):
            for name, table in sorted(tables.items()):
                if table.touched and not one.words.isdisjoint(table.touched):
                    yield Finding(place, f"a placeholder names a table here, perhaps {name}; look at what fills it in")


def _first(node: Any) -> int:  # noqa: ANN401 - likewise
    return min((one.meta["start"] for one in node.find_all(exp.Identifier) if "start" in one.meta), default=0)
