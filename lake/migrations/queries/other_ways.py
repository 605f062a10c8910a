"""Tables that a statement asks by other ways than their name: as they were, by their files, or about their columns."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.scopes import table_of
from ranklake.lake.migrations.queries.statements import Statement

_CATALOGS: Final = frozenset({"columns", "pg_attribute", "duckdb_columns"})

_PLAIN: Final = (exp.Comment, exp.Grant, exp.Alter, exp.Drop)
"""Statements that name columns, and ask for none."""


def other_ways(one: Statement, reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield what a person has to look at."""
    touched = {name: table.touched for name, table in tables.items() if table.touched and name in one.words}
    if not touched:
        return
    columns = reading.columns(tables)
    if isinstance(one.tree, _PLAIN) and not one.words.isdisjoint(frozenset().union(*touched.values())):
        yield Finding(0, f"it is not understood, and asks {', '.join(sorted(touched))}")
    for node in one.tree.find_all(exp.Table, exp.Pragma):
        known = table_of(node, columns)
        place = _place(node)
        if known in touched and (node.args.get("version") or node.args.get("when") or _is_of_version(node)):
            yield Finding(place, f"it reads {known} as it was, with the columns of then; look at what it is for")
        elif known is None and (name := _told(node, touched)):
            yield Finding(place, f"it reads {name} past its name; name the table, or rewrite it by hand")
        elif (
            known is None
            and node.this.name.lower() in _CATALOGS
            and not _texts(one.tree).isdisjoint(touched.keys() | frozenset().union(*touched.values()))
        ):
            yield Finding(place, "it asks about columns by their names, and some change; rewrite it by hand")


def _is_of_version(node: Any) -> bool:  # noqa: ANN401 - sqlglot's
    """Say whether a function that reads a table names more than the table."""
    return isinstance(node.this, exp.Anonymous) and len(node.this.expressions) > 1


def _told(node: Any, touched: Mapping[str, Any]) -> str:  # noqa: ANN401 - likewise
    """Return the table that a file, or what a function is given, is of; empty where it is of none."""
    if isinstance(node.this, exp.Identifier):
        said = [node.name] if "/" in node.name else []
    else:
        said = [text.name for text in node.this.find_all(exp.Literal) if text.is_string]
        said += [column.name for column in node.this.find_all(exp.Column) if not column.table]
    return next((name for text in said for name in re.findall(r"\w+", text.lower()) if name in touched), "")


def _texts(tree: Any) -> set[str]:  # noqa: ANN401 - likewise
    return {one.name.lower() for one in tree.find_all(exp.Literal) if one.is_string}


def _place(node: Any) -> int:  # noqa: ANN401 - likewise
    metas = (part.meta for part in node.find_all(exp.Identifier, exp.Literal))
    return min((meta["start"] for meta in metas if "start" in meta), default=0)
