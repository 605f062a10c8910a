"""Columns that a statement names, each with its table, at the versions that the statement is written for."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import islice, product
from typing import Any, Final

from sqlglot import exp

from ranklake.lake.migrations.queries.meanings import Meaning, Name, Table
from ranklake.lake.migrations.queries.scopes import ELSEWHERE, NOWHERE, Home, Scopes, table_of
from ranklake.lake.migrations.queries.statements import Statement

_TRIES: Final = 256
"""Combinations of versions that are tried at most."""


@dataclass(frozen=True, slots=True)
class Reference:
    """A column that a statement names.

    Attributes
    ----------
    node
        sqlglot's.
    scope
        The SELECT that it stands in.
    name
        In small letters.
    home
        The table, or why there is none (`ranklake.lake.migrations.queries.scopes`).
    """

    node: Any
    scope: Any
    name: str
    home: Home | str


@dataclass(frozen=True, slots=True)
class Reading:
    """A statement, read at versions of its tables.

    Attributes
    ----------
    versions
        Of known tables that it names.
    lacking
        Names that a table has at other versions only.
    homes
        Of the columns, by the identity of sqlglot's node.
    """

    scopes: Scopes
    versions: Mapping[str, int]
    references: list[Reference]
    lacking: list[Reference]
    homes: Mapping[int, Home | str]

    def is_read(self, node: Any) -> bool:  # noqa: ANN401 - sqlglot's
        """Say whether a column was looked at."""
        return id(node) in self.homes

    def home_of(self, node: Any) -> Home | str:  # noqa: ANN401 - sqlglot's
        """Return the table of a column, or why there is none."""
        return self.homes.get(id(node), ELSEWHERE)

    def columns(self, tables: Mapping[str, Table]) -> dict[str, frozenset[str]]:
        """Return the columns of each table as the statement has them."""
        return {name: table.versions[self.versions.get(name, table.newest)] for name, table in tables.items()}

    def added(self, tables: Mapping[str, Table]) -> dict[str, frozenset[str]]:
        """Return the columns that the statement's tables get, by table; those that get none are left out."""
        found = {name: tables[name].added(version) for name, version in self.versions.items()}
        return {name: columns for name, columns in found.items() if columns}

    def meaning_of(self, node: Any, tables: Mapping[str, Table]) -> Meaning:  # noqa: ANN401 - likewise
        """Return what a column is afterwards; the same, where it is of no known table."""
        home, name = self.home_of(node), node.name.lower()
        known = tables[home.table].meanings.get(self.versions[home.table], {}) if isinstance(home, Home) else {}
        return known.get(name, Meaning((Name(name),)))


def read(one: Statement, tables: Mapping[str, Table]) -> Reading:
    """Read a statement at the earliest versions at which its tables have what it names.

    Where there are none, it is read at the earliest, and `lacking` says what they lack.

    Raises `sqlglot.errors.SqlglotError` where its SELECTs cannot be told apart.
    """
    scopes = Scopes(one.tree)
    known = {name: table.versions[table.newest] for name, table in tables.items()}
    within = {table for scope in scopes.every for table, _ in scopes.tables(scope, known)}
    named = sorted(within | {str(table_of(node, known)) for node in scopes.outside(known)})
    choices = []
    for name in named:
        later = [version for version in sorted(tables[name].versions) if version >= one.marks.get(name, 0)]
        choices.append(later or [tables[name].newest])
    first = None
    for chosen in islice(product(*choices), _TRIES):
        versions = dict(zip(named, chosen, strict=True))
        found = _at(one, scopes, tables, versions)
        if not found.lacking:
            return found
        first = first or found
    return first if first is not None else _at(one, scopes, tables, {})


def _at(one: Statement, scopes: Scopes, tables: Mapping[str, Table], versions: Mapping[str, int]) -> Reading:
    columns = {name: table.versions[versions.get(name, table.newest)] for name, table in tables.items()}
    found = list(_references(one, scopes, columns))
    lacking = []
    for ref in found:
        if ref.home == NOWHERE and ref.scope is not None:
            around = scopes.tables_around(ref.scope, columns)
            if any(ref.name in names for table in around for names in tables[table].versions.values()):
                lacking.append(ref)
    homes = {id(ref.node): ref.home for ref in found}
    return Reading(scopes, versions, found, [ref for ref in lacking if not _is_output(ref)], homes)


def _references(one: Statement, scopes: Scopes, columns: Mapping[str, frozenset[str]]) -> Iterator[Reference]:
    for node in one.tree.find_all(exp.Column):
        if not isinstance(node.this, exp.Identifier):
            continue
        scope = scopes.of(node)
        name, qualifier = node.name.lower(), node.table.lower()
        if scope is None or one.is_placeholder(node.this.meta.get("start", -1)):
            continue
        if isinstance(scope.expression, exp.SetOperation) and not qualifier:
            continue  # ORDER BY of a UNION names what comes out
        yield Reference(node, scope, name, scopes.find(scope, name, qualifier, columns))


def _is_output(ref: Reference) -> bool:
    """Say whether a name is that of something that its SELECT gives."""
    select = ref.scope.expression
    return (
        not ref.node.table
        and isinstance(select, exp.Select)
        and any(isinstance(item, exp.Alias) and item.alias.lower() == ref.name for item in select.expressions)
    )
