"""Joins by names, which match other columns where a table gets or loses one of a name."""

from collections.abc import Iterator, Mapping
from typing import Any

from sqlglot.optimizer.scope import Scope

from ranklake.lake.migrations.queries.findings import Finding
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.references import Reading
from ranklake.lake.migrations.queries.wholes import first


def joins(scope: Any, named: list[str], reading: Reading, tables: Mapping[str, Table]) -> Iterator[Finding]:  # noqa: ANN401 - sqlglot's
    """Yield joins by names, where a table, or a query of one, gets or loses one of them."""
    touched: set[str] = set()
    for table in (tables[name] for name in named):
        version = reading.versions[table.name]
        touched |= table.versions[version] ^ table.versions[table.newest] | table.meanings.get(version, {}).keys()
    for _, node, source in reading.scopes.sources(scope):
        if isinstance(source, Scope):
            touched |= reading.scopes.more(node, source, reading.added(tables))
    for join in scope.expression.args.get("joins") or ():
        for name in join.args.get("using") or ():
            if name.name.lower() in touched:
                yield Finding(first(name), f"USING ({name.name}) matches columns by a name that changes; write ON")
        if touched and str(join.args.get("method", "")).upper() == "NATURAL":
            yield Finding(first(join), "NATURAL JOIN matches columns by names, and some change; write ON")
