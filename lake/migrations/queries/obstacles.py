"""What keeps a statement from being brought along, whatever its columns are."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.optimizer.scope import traverse_scope
from sqlglot.tokens import TokenType

from ranklake.lake.migrations.queries.statements import MACRO, Finding, Statement, outermost
from ranklake.lake.migrations.queries.tables import Table

_CATALOGS: Final = frozenset({"columns", "pg_attribute", "duckdb_columns"})
_DBT_MODEL: Final = re.compile(
    r"""\{\{-?\s*(?:this|ref\(\s*(?:(?:'[^'\n]*'|"[^"\n]*")\s*,\s*)?['"](\w+)['"]\s*\))\s*-?\}\}"""
)
_NAMED: Final = (
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
"""What has names that a statement gives itself, or that are compared as a whole."""
_AFTER: Final = frozenset({TokenType.L_PAREN, TokenType.COLON, TokenType.COLON_EQ, TokenType.FARROW})
"""What follows the name of a function, or of a field that is given a name."""


def table_of(node: Any, tables: Mapping[str, Table]) -> str | None:  # noqa: ANN401 - sqlglot's
    """Return the known table that a node names, by its name or by the folder that DuckDB's `delta_scan` reads."""
    if isinstance(node.this, exp.Identifier):
        name = node.this.name.lower()
        return name if name in tables else None
    if isinstance(node.this, exp.Anonymous) and node.this.name.lower() == "delta_scan" and node.this.expressions:
        path = node.this.expressions[0]
        parts = path.name.rstrip("/").split("/") if isinstance(path, exp.Literal) else []
        return parts[-1] if parts[-2:-1] == ["tables"] and parts[-1] in tables else None
    return None


def sources_of(tree: Any, tables: Mapping[str, Table]) -> list[Any]:  # noqa: ANN401 - sqlglot's
    """Nodes of a query that name a known table, and no CTE of its name. Raises `SqlglotError`."""
    nodes: dict[int, Any] = {}
    for scope in traverse_scope(tree):
        for node, source in scope.selected_sources.values():
            if isinstance(source, exp.Table) and table_of(source, tables):
                nodes[id(node)] = node
    return list(nodes.values())


def first_place(node: Any) -> int:  # noqa: ANN401 - sqlglot's
    """Where the first name or text in a node stands."""
    metas = (part.meta for part in node.find_all(exp.Identifier, exp.Literal))
    return min((meta["start"] for meta in metas if "start" in meta), default=0)


def obstacles(statement: Statement, tree: Any, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield what a person has to look at."""
    named = {name: table for name, table in tables.items() if name in statement.words and table.touched}
    if isinstance(tree, exp.Comment | exp.Grant | exp.Alter | exp.Drop) and named and statement.may_change(named):
        yield Finding(0, f"it is not understood, and asks {', '.join(sorted(named))}")
    ctes = {cte.alias.lower() for cte in tree.find_all(exp.CTE)}
    read = {id(node) for query in outermost(tree) for node in sources_of(query, tables)}
    for node in tree.find_all(exp.Table, exp.Pragma):
        name = table_of(node, tables)
        if name is None:
            yield from _of_unknown(statement, tree, node, tables)
        elif len(tables[name].versions) > 1 and (id(node) in read or name not in ctes):
            yield from _of_table(statement, tree, node, tables[name], is_read=id(node) in read)
    if any(len(table.versions) > 1 for name, table in tables.items() if name in statement.words):
        yield from _by_place(tree)
    if named:
        yield from _placeholders(statement, tree)


def _of_unknown(statement: Statement, tree: Any, node: Any, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield why what stands for a table may be a known one, or tell of its columns."""
    touched = {name: table for name, table in tables.items() if table.touched}
    named = {name: table for name, table in touched.items() if name in statement.words}
    words = named.keys() | {column for table in named.values() for column in table.touched}
    texts = {text.name.lower() for text in tree.find_all(exp.Literal) if text.is_string}
    place = first_place(node)
    end = max((part.meta.get("end", 0) for part in node.find_all(exp.Identifier, exp.Literal)), default=0)
    filled = statement.filled_in(place, end)
    if hidden := _file_table(node, named):
        yield Finding(place, f"it reads {hidden} past its name; name the table, or rewrite it by hand")
    elif node.this.name.lower() in _CATALOGS and not texts.isdisjoint(words):
        yield Finding(place, "it asks about columns by their names, and some change; rewrite it by hand")
    elif filled and ((model := _DBT_MODEL.fullmatch(filled)) is None or model[1] in tables):
        for name, table in sorted(touched.items()):
            if not statement.words.isdisjoint(table.touched):
                yield Finding(place, f"a placeholder names a table here, perhaps {name}; look at what fills it in")


def _of_table(statement: Statement, tree: Any, node: Any, table: Table, *, is_read: bool) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Return what a statement does with a table but to select columns of it by their names."""
    place, alias, name = first_place(node), node.args.get("alias"), table.name
    is_function = isinstance(node.this, exp.Anonymous) and len(node.this.expressions) > 1
    is_pivot = node.args.get("pivots") or isinstance(node.parent, exp.Pivot)
    if alias is not None and alias.columns:
        yield Finding(place, "columns are named by their places; rewrite it by hand")
    elif is_pivot:
        yield Finding(place, "PIVOT takes columns by what is left; rewrite it by hand")
    elif not table.touched:
        return
    elif node.args.get("version") or node.args.get("when") or is_function:
        yield Finding(place, f"it reads {name} as it was, with the columns of then; look at what it is for")
    elif not is_read and isinstance(tree, exp.DML) and not (isinstance(tree, exp.Copy) and not tree.args.get("kind")):
        yield Finding(place, f"it writes to {name}, to which only ranklake writes")
    elif not is_read:
        begin = statement.text.split(None, 1)[0].upper()
        yield Finding(place, f"{begin} takes all columns of {name}, and some change; name the columns")
    elif node.args.get("match"):
        yield Finding(place, "MATCH_RECOGNIZE is not followed; rewrite it by hand")


def _by_place(tree: Any) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    for node in tree.find_all(exp.Columns, exp.PositionalColumn):
        place = first_place(node.find_ancestor(exp.Select) or tree)
        yield Finding(place, "columns are taken by a pattern or a place, and some change; name the columns")
    for alias in tree.find_all(exp.TableAlias):
        if alias.columns and isinstance(alias.parent, exp.CTE | exp.Subquery) and alias.parent.this.find(exp.Star):
            yield Finding(first_place(alias), "columns of a star are named by their places; name the columns")


def _file_table(node: Any, named: Mapping[str, Table]) -> str:  # noqa: ANN401 - sqlglot's
    """Return the table that a file, or the argument of a function, is of; empty where it is of none."""
    if isinstance(node.this, exp.Identifier):
        texts = [node.name] if "/" in node.name else []
    else:
        texts = [text.name for text in node.this.find_all(exp.Literal) if text.is_string]
        texts += [column.name for column in node.this.find_all(exp.Column) if not column.table]
    return next((word for text in texts for word in re.findall(r"\w+", text.lower()) if word in named), "")


def _placeholders(statement: Statement, tree: Any) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Placeholders that may be filled in with a column: all but the other side of a comparison, and limits."""
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
    """Yield names of changed columns that stand where sqlglot sees no column."""
    named = [table for name, table in tables.items() if name in statement.words]
    names = {column for table in named for version in table.versions for column in table.changed_columns(version)}
    if names.isdisjoint(statement.words):
        return
    aliases = {node.alias.lower() for node in tree.find_all(exp.TableAlias)} | tables.keys()
    seen = set()
    for node in tree.find_all(exp.Identifier):
        is_column = isinstance(node.parent, exp.Column) and (node.arg_key == "this" or node.name.lower() in aliases)
        if is_column or isinstance(node.parent, _NAMED):
            seen.add(node.meta.get("start"))
    tokens = Dialect.get_or_raise(dialect).tokenize(statement.text)
    for token, after in zip(tokens, [*tokens[1:], None], strict=True):
        is_own = after is not None and after.token_type in _AFTER
        if token.text.lower() not in names or token.token_type == TokenType.STRING or is_own or token.start in seen:
            continue
        if not statement.filled_in(token.start):
            yield Finding(token.start, f"{token.text} stands where it is not understood; rewrite it by hand")
