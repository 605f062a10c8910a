"""What takes all columns of a table at once: wildcards, whole rows, and statements about a table."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.pivots import pivoted
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.scopes import Home, is_wild, table_of
from ranklake.lake.migrations.queries.statements import Statement
from ranklake.lake.migrations.queries.wildcards import left_by

_COLUMNS: Final = "name the columns"


def wholes(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield what would give other columns, or more of them where their number, names or places count."""
    added = reading.added(tables)
    for scope in reading.scopes.every:
        select = scope.expression
        for _, node, source in reading.scopes.sources(scope):
            alias = node.args.get("alias")
            if alias is not None and alias.columns and table_of(source, added) is not None:
                yield Finding(first(node), f"columns of a table that gets more are named by their places; {_COLUMNS}")
        if isinstance(select, exp.Select):
            yield from _stars(scope, reading, tables)
            yield from _rows(scope, reading, tables)
            yield from _twice(one, scope, reading, tables)
            yield from pivoted(scope, reading, tables)
        yield from _matched(scope, reading, tables)
    yield from _outside(one, reading, tables)


def _stars(scope: Any, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    select = scope.expression
    if isinstance(select.parent, exp.Exists):
        return
    columns, added = reading.columns(tables), reading.added(tables)
    for _ in scope.find_all(exp.PositionalColumn):
        if any(table_of(source, columns) in reading.versions for _, _, source in reading.scopes.sources(scope)):
            yield Finding(first(select), f"a column is named by its place; {_COLUMNS}")
    for star in scope.find_all(exp.Star, exp.Columns):
        item = star.parent if isinstance(star.parent, exp.Column) else star
        if isinstance(item.parent, exp.Columns | exp.Count):
            continue
        sources = reading.scopes.starred(scope, item)
        for _, _, source in sources:
            if table := table_of(source, columns):
                yield from _given(item, star, tables[table], reading.versions[table])
        if not _is_listed(item, select) and any(reading.scopes.more(*one[1:], added) for one in sources):
            yield Finding(first(select), f"a wildcard takes columns of a table that gets more; {_COLUMNS}")


def _is_listed(item: Any, select: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether a wildcard is columns of a SELECT, and not the arguments of something."""
    if isinstance(item, exp.Columns) and item.args.get("unpack"):
        return False
    inner = item
    while item.parent is not select:
        item = item.parent
    return item.arg_key == "expressions" and (item is inner or isinstance(inner, exp.Columns))


def _given(item: Any, star: Any, table: Table, version: int) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    """Yield what a wildcard gives of a table that it did not give."""
    if others := left_by(star, table.otherwise(version)):
        yield Finding(first(item.find_ancestor(exp.Select)), f"SELECT * gives {told(table, others)}; {_COLUMNS}")
        return
    for name, meaning in table.meanings.get(version, {}).items():
        if meaning.note:
            yield Finding(first(item.find_ancestor(exp.Select)), f"{table.name}.{name}: {meaning.note}", is_note=True)


def told(table: Table, others: Mapping[str, Any]) -> str:
    """Return what a table has of one of some columns."""
    name = min(others)
    now = "otherwise" if {*others[name].names} == {name} else f"as {', '.join(others[name].names)}"
    return f"{name} of {table.name} {'no more' if others[name].gone else now}"


def _rows(
    scope: Any,  # noqa: ANN401 - likewise
    reading: Reading,
    tables: Mapping[str, Table],
) -> Iterator[Finding]:
    """Yield whole rows by what a SELECT calls a table."""
    select, columns, added = scope.expression, reading.columns(tables), reading.added(tables)
    for node in scope.find_all(exp.Column):
        if node.table or not isinstance(node.this, exp.Identifier) or isinstance(reading.home_of(node), Home):
            continue
        sources = reading.scopes.called(scope, node.name)
        for _, found, source in sources:
            if isinstance(node.parent, exp.Count):
                continue  # rows are counted, whatever is in them
            place = node.this.meta.get("start", 0)
            table = table_of(source, columns)
            others = tables[table].otherwise(reading.versions[table]) if table else {}
            if table and others:
                yield Finding(place, f"{node.name} is a whole row, which has {told(tables[table], others)}; {_COLUMNS}")
            elif (node.parent is not select or select.args.get("distinct")) and reading.scopes.more(
                found, source, added
            ):
                yield Finding(place, f"{node.name} is a whole row, which gets more columns; {_COLUMNS}")


def _twice(
    one: Statement,
    scope: Any,  # noqa: ANN401 - likewise
    reading: Reading,
    tables: Mapping[str, Table],
) -> Iterator[Finding]:
    """Yield names that two columns of a SELECT have afterwards, where that is refused or changes what is meant."""
    select, columns, added = scope.expression, reading.columns(tables), reading.added(tables)
    plain = [item for item in select.expressions if not is_wild(item)]
    called = [item.alias_or_name.lower() for item in plain]
    if "datafusion" in one.engines:
        for item, name in zip(plain, called, strict=True):
            if not isinstance(item, exp.Column) or called.count(name) == 1:
                continue
            if reading.meaning_of(item, tables).plain != name:
                what = f"two columns are called {name}, which DataFusion takes of two tables alone; give them aliases"
                yield Finding(first(item), what)
    for item in select.expressions:
        starred = reading.scopes.starred(scope, item) if is_wild(item) else []
        for alias, node, source in starred:
            more = reading.scopes.more(node, source, added)
            others = [reading.scopes.given(*other[1:], columns) or () for other in starred if other[0] != alias]
            if hit := sorted(more.intersection({*called}.union(*others))):
                yield Finding(first(item), f"SELECT * gives {hit[0]} twice then; {_COLUMNS}")


def _matched(scope: Any, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - likewise
    """Yield queries that give more columns where the number, or the whole, of them counts."""
    added, select = reading.added(tables), scope.expression
    more = reading.scopes.more_of(scope, added)
    if not more:
        return
    why = ""
    if isinstance(select, exp.SetOperation) or isinstance(select.parent, exp.Insert | exp.In):
        why = "is matched by place"
    elif _has_columns(select):
        why = "has its columns named by place"
    elif select.args.get("distinct") is not None:
        why = "tells rows apart by all of them"
    elif _is_all(select.args.get("group")) or _is_all(select.args.get("order")):
        why = "is grouped or sorted by place, or by all of them"
    if why:
        yield Finding(first(select), f"SELECT * gives {min(more)} besides, and {why}; {_COLUMNS}")


def _has_columns(query: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether names are given to the columns of a query."""
    around = query.parent
    while isinstance(around, exp.Subquery) and not around.alias:
        around = around.parent
    if isinstance(around, exp.Create):
        return isinstance(around.this, exp.Schema)
    alias = around.args.get("alias") if isinstance(around, exp.Subquery | exp.CTE) else None
    return isinstance(alias, exp.TableAlias) and bool(alias.columns)


def _is_all(clause: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether a clause is by places or by all columns."""
    if clause is None:
        return False
    keys = [key.this if isinstance(key, exp.Ordered) else key for key in clause.expressions]
    return bool(clause.args.get("all")) or any(
        isinstance(key, exp.Star | exp.Var | exp.Columns) or (isinstance(key, exp.Literal) and key.is_int)
        for key in keys
    )


def _outside(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield tables that no SELECT names, such as those of SUMMARIZE and DESCRIBE."""
    columns = reading.columns(tables)
    for node in reading.scopes.outside(columns):
        table = tables[str(table_of(node, columns))]
        if others := table.otherwise(reading.versions[table.name]):
            what = f"{one.text.split(None, 1)[0].upper()} takes all columns of a table, and gives {told(table, others)}"
            yield Finding(first(node), f"{what}; {_COLUMNS}")
        elif table.added(reading.versions[table.name]) and isinstance(node.parent, exp.Pivot):
            yield Finding(first(node), f"columns of {table.name} are pivoted, and it gets more; {_COLUMNS}")


def first(*nodes: Any) -> int:  # noqa: ANN401 - likewise
    """Return where the first name in one of some nodes stands."""
    places = (one.meta["start"] for node in nodes for one in node.find_all(exp.Identifier) if "start" in one.meta)
    return min(places, default=0)
