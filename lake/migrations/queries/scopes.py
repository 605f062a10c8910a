"""Which table a column of a query belongs to."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp
from sqlglot.optimizer.scope import Scope, traverse_scope

Columns = Mapping[str, frozenset[str]]
"""Names of columns, by table."""

AMBIGUOUS: Final = "ambiguous"
ELSEWHERE: Final = "elsewhere"
"""Of another query's output, or of a table that is not known."""
NOWHERE: Final = "nowhere"


@dataclass(frozen=True, slots=True)
class Home:
    """A known table within a query.

    Attributes
    ----------
    table
        Its name.
    alias
        What the query calls it, as it is written; empty where nothing can be said before a column.
    scope
        Identity of the SELECT that names it.
    """

    table: str
    alias: str
    scope: int


class Scopes:
    """The SELECTs of a statement, and what each can see. Raises a `sqlglot.errors.SqlglotError` for what has none."""

    def __init__(self, tree: Any) -> None:  # noqa: ANN401 - sqlglot's
        self.tree = tree
        self.every: list[Any] = []
        for query in tree.find_all(exp.Query):
            if query.find_ancestor(exp.Query) is None:
                self.every += traverse_scope(query)
        self._by_node = {id(scope.expression): scope for scope in self.every}

    def of(self, node: Any) -> Any:  # noqa: ANN401 - likewise
        """Return the scope that a node stands in; None outside of all."""
        while node is not None:
            node = node.parent
            if id(node) in self._by_node:
                return self._by_node[id(node)]
        return None

    def find(self, scope: Any, name: str, qualifier: str, columns: Columns) -> Home | str:  # noqa: ANN401 - likewise
        """Return the table that a name belongs to, or `AMBIGUOUS`, `ELSEWHERE`, `NOWHERE`; all in small letters."""
        while scope is not None:
            hits: list[Home | str] = []
            unknown = False
            for alias, node, source in self.sources(scope):
                if qualifier and alias.lower() != qualifier:
                    continue
                known = self.given(node, source, columns)
                unknown |= known is None
                if known is not None and name in known:
                    table = table_of(source, columns)
                    hits.append(Home(table, _said(node), id(scope)) if table else ELSEWHERE)
                elif qualifier:
                    return NOWHERE if known is not None and table_of(source, columns) else ELSEWHERE
            if len(hits) > 1 or (unknown and hits and hits[0] != ELSEWHERE):
                return AMBIGUOUS
            if hits or unknown:
                return hits[0] if hits else ELSEWHERE
            scope = _around(scope)
        return NOWHERE

    def tables(self, scope: Any, columns: Columns) -> Iterator[tuple[str, Any]]:  # noqa: ANN401 - likewise
        """Yield the known tables that a SELECT names, with the nodes that do."""
        for _, node, source in self.sources(scope):
            if table := table_of(source, columns):
                yield table, node

    def outside(self, columns: Columns) -> list[Any]:
        """Return the nodes that name a known table, and that no SELECT reads."""
        inside = {id(node) for scope in self.every for _, node, _ in self.sources(scope)}
        ctes = {one.alias.lower() for one in self.tree.find_all(exp.CTE)}
        return [
            node
            for node in self.tree.find_all(exp.Table)
            if id(node) not in inside and table_of(node, columns) and node.name.lower() not in ctes
        ]

    def sources(self, scope: Any) -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - likewise
        """Return what a SELECT reads: what it calls each, the node, and a table or the scope of a query."""
        return [(alias, node, source) for alias, (node, source) in scope.selected_sources.items()]

    def starred(self, scope: Any, item: Any) -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - likewise
        """Return the sources of which a wildcard gives the columns."""
        qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
        return [one for one in self.sources(scope) if not qualifier or one[0].lower() == qualifier]

    def more(self, node: Any, source: Any, added: Columns) -> frozenset[str]:  # noqa: ANN401 - likewise
        """Return the columns that something which a SELECT reads has besides, if tables get some."""
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            return frozenset()
        if isinstance(source, Scope):
            return self.more_of(source, added)
        return added.get(table_of(source, added) or "", frozenset())

    def more_of(self, scope: Any, added: Columns) -> frozenset[str]:  # noqa: ANN401 - likewise
        """Return the columns that a query gives besides, if tables get some."""
        if isinstance(scope.expression, exp.SetOperation):
            parts = getattr(scope, "set_operation_scopes", None) or ()
            return frozenset[str]().union(*(self.more_of(part, added) for part in parts))
        if not isinstance(scope.expression, exp.Select):
            return frozenset()
        wild = [item for item in scope.expression.expressions if is_wild(item)]
        return frozenset[str]().union(
            *(self.more(node, source, added) for item in wild for _, node, source in self.starred(scope, item))
        )

    def called(self, scope: Any, name: str) -> list[tuple[str, Any, Any]]:  # noqa: ANN401 - likewise
        """Return what a SELECT, or the nearest one around it, reads under a name."""
        while scope is not None:
            if found := [one for one in self.sources(scope) if one[0].lower() == name.lower()]:
                return found
            scope = _around(scope)
        return []

    def tables_around(self, scope: Any, columns: Columns) -> set[str]:  # noqa: ANN401 - likewise
        """Return the known tables that a name may belong to."""
        found: set[str] = set()
        while scope is not None:
            found |= {table for table, _ in self.tables(scope, columns)}
            scope = _around(scope)
        return found

    def given(self, node: Any, source: Any, columns: Columns) -> frozenset[str] | None:  # noqa: ANN401 - likewise
        """Return the columns of something that a SELECT reads; None where nobody knows."""
        alias = node.args.get("alias")
        if alias is not None and alias.columns:
            return frozenset(one.name.lower() for one in alias.columns) if isinstance(source, Scope) else None
        if isinstance(source, exp.Table):
            table = table_of(source, columns)
            return columns[table] if table else None
        return self._outputs(source, columns) if isinstance(source, Scope) else None

    def _outputs(self, scope: Any, columns: Columns) -> frozenset[str] | None:  # noqa: ANN401 - likewise
        """Return the names that a query gives its columns; None where nobody knows."""
        alias = scope.expression.parent.args.get("alias") if scope.expression.parent is not None else None
        if isinstance(alias, exp.TableAlias) and alias.columns:
            return frozenset(one.name.lower() for one in alias.columns)
        if isinstance(scope.expression, exp.SetOperation):
            parts = getattr(scope, "set_operation_scopes", None)  # what refers to itself has none
            return self._outputs(parts[0], columns) if parts else None
        if not isinstance(scope.expression, exp.Select):
            return None
        found: set[str] = set()
        for item in scope.expression.expressions:
            if item.is_star:
                qualifier = item.table.lower() if isinstance(item, exp.Column) else ""
                for name, node, source in self.sources(scope):
                    if not qualifier or name.lower() == qualifier:
                        some = self.given(node, source, columns)
                        if some is None:
                            return None
                        found |= some
            else:
                found.add(item.alias_or_name.lower())
        return frozenset(found)


def is_wild(item: Any) -> bool:  # noqa: ANN401 - likewise
    """Say whether something selected stands for columns that it does not name."""
    return bool(item.is_star) or isinstance(item, exp.Columns) or item.find(exp.Columns) is not None


def table_of(source: Any, columns: Columns) -> str | None:  # noqa: ANN401 - likewise
    """Return the known table that a source is: by its name, or by the folder that a function of DuckDB's reads."""
    if not isinstance(source, exp.Table):
        return None
    if isinstance(source.this, exp.Identifier):
        name = source.this.name.lower()
        return name if name in columns else None
    if isinstance(source.this, exp.Anonymous) and source.this.name.lower() == "delta_scan":
        where = source.this.expressions[0] if source.this.expressions else None
        parts = where.name.rstrip("/").split("/") if isinstance(where, exp.Literal) else []
        return parts[-1] if parts[-2:-1] == ["tables"] and parts[-1] in columns else None
    return None


def _said(node: Any) -> str:  # noqa: ANN401 - likewise
    alias = node.args.get("alias")
    name = alias.this if alias is not None else node.this
    if not isinstance(name, exp.Identifier):
        return ""
    return f'"{name.name}"' if name.args.get("quoted") else str(name.name)


def _around(scope: Any) -> Any:  # noqa: ANN401 - likewise
    """Return the scope whose columns are seen from within another; None where none is."""
    return None if scope.is_cte or scope.is_derived_table else scope.parent
