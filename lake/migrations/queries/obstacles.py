"""Finds the parts of a statement that prevent an automatic update, such as columns taken by their places."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.tokens import TokenType

from ranklake.lake.migrations.queries.statements import MACRO, Finding, Statement, outermost
from ranklake.lake.migrations.queries.tables import Table

_PLACES: Final = "their places, and some change; name the columns"
_CATALOGS: Final = frozenset({"columns", "pg_attribute", "duckdb_columns"})
_NAME_NODES: Final = (
    exp.Alias,
    exp.TableAlias,
    exp.CTE,
    exp.Table,
    exp.Schema,
    exp.PropertyEQ,
    exp.Join,
    exp.Aliases,
    exp.Star,
)
"""Nodes whose names are no columns: names that the statement defines, and names that are compared in other ways."""
_AFTER: Final = frozenset({TokenType.L_PAREN, TokenType.COLON, TokenType.COLON_EQ, TokenType.FARROW})
"""Tokens that follow the name of a function, of a struct's field or of a named argument."""


def table_of(node: Any, tables: Mapping[str, Table]) -> str | None:  # noqa: ANN401 - sqlglot's
    """Return the known table of a node: by its name, or by the folder that DuckDB's `delta_scan` reads; else None."""
    if isinstance(node.this, exp.Identifier):
        name = node.this.name.lower()
        return name if name in tables else None
    if isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "delta_scan" and node.this.expressions:
        path = node.this.expressions[0]
        parts = path.name.rstrip("/").split("/") if isinstance(path, exp.Literal) else []
        return parts[-1] if parts[-2:-1] == ["tables"] and parts[-1] in tables else None
    return None


def sources_of(tree: Any, tables: Mapping[str, Table]) -> list[Any]:  # noqa: ANN401 - sqlglot's
    """Return the nodes of a query that name a known table, and not a CTE with such a name. Raises `SqlglotError`."""
    nodes: dict[int, Any] = {}
    for scope in traverse_scope(tree):
        for node, source in scope.selected_sources.values():
            if isinstance(source, exp.Table) and table_of(source, tables):
                nodes[id(node)] = node
    return list(nodes.values())


def first_place(node: Any) -> int:  # noqa: ANN401 - sqlglot's
    """Return the place of the first name or literal in a node."""
    metas = (part.meta for part in node.find_all(exp.Identifier, exp.Literal))
    return min((meta["start"] for meta in metas if "start" in meta), default=0)


def obstacles(statement: Statement, tree: Any, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield findings for the parts of a statement that sqlglot's scopes cannot resolve."""
    named = {name: table for name, table in tables.items() if name in statement.words and len(table.versions) > 1}
    if isinstance(tree, exp.Comment | exp.Grant | exp.Alter | exp.Drop) and named and statement.may_change(named):
        yield Finding(0, f"it is not understood, and asks {', '.join(sorted(named))}")
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    read = {id(node) for query in outermost(tree) for node in sources_of(query, tables)}
    for node in tree.find_all(exp.Table, exp.Pragma):
        name = table_of(node, tables)
        reason = ""
        if name is None:
            reason = _reads_unnamed(statement, node, tables)
        elif name in named and (id(node) in read or name not in ctes):
            reason = _takes_unnamed(node, named[name], is_read=id(node) in read)
        if reason:
            yield Finding(first_place(node), reason)
    if not named:
        return
    for node in tree.find_all(exp.Columns, exp.PositionalColumn):
        place = first_place(node.find_ancestor(exp.Select) or tree)
        yield Finding(place, f"columns are taken by a pattern or {_PLACES}")
    for alias in tree.find_all(exp.TableAlias):
        if alias.columns and isinstance(alias.parent, exp.CTE | exp.Subquery) and alias.parent.this.find(exp.Star):
            yield Finding(first_place(alias), f"columns of a star are named by {_PLACES}")
    yield from _placeholders(statement, tree)


def _reads_unnamed(statement: Statement, node: Any, tables: Mapping[str, Table]) -> str:  # noqa: ANN401 - sqlglot's
    """Return why a node that is no known table may read one, or its list of columns; empty if it does not."""
    named = {name: table for name, table in tables.items() if table.touched and name in statement.words}
    hidden = named.keys() & set(re.findall(r"\w+", node.this.sql().lower()))
    if hidden and (not isinstance(node.this, exp.Identifier) or "/" in node.name):
        return f"it reads {min(hidden)} past its name; name the table, or rewrite it by hand"
    if node.this.name.lower() in _CATALOGS and named:
        return "it asks about columns by their names, and some change; rewrite it by hand"
    end = max((part.meta.get("end", 0) for part in node.find_all(exp.Identifier, exp.Literal)), default=0)
    likely = [name for name, table in tables.items() if not statement.words.isdisjoint(table.touched)]
    if likely and statement.filled_in(first_place(node), end):
        return f"a placeholder names a table here, perhaps {min(likely)}; look at what fills it in"
    return ""


def _takes_unnamed(node: Any, table: Table, *, is_read: bool) -> str:  # noqa: ANN401 - sqlglot's
    """Return how a statement uses columns of a table without naming them; empty if it does not."""
    alias = node.args.get("alias")
    is_function = isinstance(node.this, exp.Anonymous) and len(node.this.expressions) > 1
    if alias is not None and alias.columns:
        return f"columns are named by {_PLACES}"
    if node.args.get("pivots") or isinstance(node.parent, exp.Pivot):
        return "PIVOT takes columns by what is left; rewrite it by hand"
    if not table.touched:
        return ""
    if node.args.get("version") or node.args.get("when") or is_function:
        return f"it reads {table.name} as it was, with the columns of then; look at what it is for"
    if not is_read or node.args.get("match"):
        return f"it takes all columns of {table.name}, or writes to it; rewrite it by hand"
    return ""


def _placeholders(statement: Statement, tree: Any) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield placeholders that may stand for a column: all except limits and the right side of comparisons."""
    for column in tree.find_all(exp.Column):
        place = column.this.meta.get("start", -1) if isinstance(column.this, exp.Identifier) else -1
        if place < 0 or not statement.filled_in(place):
            continue
        node = column
        while not isinstance(node.parent, exp.Predicate | exp.Limit | exp.Offset | exp.Fetch | exp.Query | exp.Func):
            node = node.parent
        is_macro = isinstance(node.parent, exp.Anonymous) and str(node.parent.this).startswith(MACRO)
        is_compared = isinstance(node.parent, exp.Predicate) and node.arg_key != "this"
        if not is_macro and not is_compared and not isinstance(node.parent, exp.Limit | exp.Offset | exp.Fetch):
            yield Finding(place, "a placeholder may name a column here; look at what fills it in")


def unresolved_names(statement: Statement, tree: Any, dialect: str, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield names of changed columns at places where sqlglot recognizes no column."""
    named = [table for name, table in tables.items() if name in statement.words]
    names = {column for table in named for version in table.versions for column in table.changed_columns(version)}
    if names.isdisjoint(statement.words):
        return
    aliases = {node.alias.lower() for node in tree.find_all(exp.TableAlias)} | tables.keys()
    recognized = set()
    for node in tree.find_all(exp.Identifier):
        is_column = isinstance(node.parent, exp.Column) and (node.arg_key == "this" or node.name.lower() in aliases)
        if is_column or isinstance(node.parent, _NAME_NODES):
            recognized.add(node.meta.get("start"))
    tokens = Dialect.get_or_raise(dialect).tokenize(statement.text)
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        if token.text.lower() not in names or token.token_type == TokenType.STRING or token.start in recognized:
            continue
        if after is not None and after.token_type in _AFTER:
            continue
        if not statement.filled_in(token.start):
            yield Finding(token.start, f"{token.text} stands where it is not understood; rewrite it by hand")
