"""The tables that queries may name: their columns in each version, and how migrations replaced these."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from sqlglot.dialects.dialect import Dialect

from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.contracts.model import Contract
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations.migration import FIRST_OWN
from ranklake.lake.migrations.registry import added_at, contract_at, load_migrations
from ranklake.lake.migrations.steps.columns import Retype
from ranklake.lake.migrations.steps.step import ColumnSuccessor, MetricSuccessor, Step

_INTEGERS: Final = {"int32": "INTEGER", "int64": "BIGINT"}

_MORE_KEYWORDS: Final = """
cluster cube current_path current_schema distribute exclude explain force grouping if install interval json_array
json_exists json_object json_query json_table json_value listagg match_recognize minus normalize recursive regexp revoke
rlike rollback rollup skip sort system_user top trim uescape unnest view xor
"""
"""Reserved words of PostgreSQL, Trino and DataFusion that sqlglot does not list."""
_RESERVED: Final = frozenset(_MORE_KEYWORDS.split()).union(
    *(Dialect.get_or_raise(name).generator_class.RESERVED_KEYWORDS for name in ("duckdb", "trino"))
)
"""Words that need quotes as column names in PostgreSQL, DuckDB, Trino or DataFusion."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column of the newest version within an expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """The replacement of a column of an earlier version.

    Attributes
    ----------
    pieces
        An expression: SQL text, and columns of the newest version.
    gone
        Why there is no replacement; empty if there is one.
    note
        A note for the user about the replacement; may be empty.
    """

    pieces: tuple[str | Name, ...]
    gone: str = ""
    note: str = ""

    @property
    def plain(self) -> str | None:
        """Name of the column, if the expression is a single column; else None."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only.name if isinstance(only, Name) else None

    @property
    def names(self) -> list[str]:
        """Columns in the expression."""
        return [piece.name for piece in self.pieces if isinstance(piece, Name)]

    def text(self, qualifier: str = "", quote: str = '"') -> str:
        """Return the expression as SQL. `qualifier` is empty or ends with a dot."""
        return "".join(
            piece if isinstance(piece, str) else qualifier + quote_name(piece.name, quote) for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table with all versions for which a query may have been written.

    Attributes
    ----------
    versions
        Column names by version, in order. Queries are updated to the newest version.
    meanings
        Replacements of changed columns, by version and column.
    metrics
        Successors of renamed metrics in rows of the table, by former name.
    called
        Name of the table in queries at the newest version.
    """

    name: str
    versions: Mapping[int, Sequence[str]]
    meanings: Mapping[int, Mapping[str, Meaning]] = field(default_factory=dict)
    metrics: Mapping[str, MetricSuccessor] = field(default_factory=dict)
    called: str = ""

    @property
    def is_renamed(self) -> bool:
        """Whether the newest version has another name in queries."""
        return bool(self.called) and self.called != self.name

    @property
    def newest(self) -> int:
        """The newest version."""
        return max(self.versions)

    @property
    def touched(self) -> frozenset[str]:
        """Columns of any version that changed until the newest."""
        return frozenset(name for meanings in self.meanings.values() for name in meanings)

    def changed_columns(self, version: int) -> dict[str, Meaning]:
        """Columns of a version that the newest version replaces by another column, an expression or nothing."""
        return {name: meaning for name, meaning in self.meanings.get(version, {}).items() if meaning.plain != name}

    def added_columns(self, version: int) -> set[str]:
        """Columns of the newest version that replace no column of the given version."""
        meanings = self.meanings.get(version, {})
        before = {new for old in self.versions[version] for new in (meanings[old].names if old in meanings else [old])}
        return set(self.versions[self.newest]) - before

    def moving(self, version: int) -> set[str]:
        """Names that are not in both the given and the newest version, and names of changed columns."""
        return set(self.versions[version]) ^ set(self.versions[self.newest]) | self.meanings.get(version, {}).keys()


def quote_name(name: str, quote: str) -> str:
    """Return a name as SQL, in the dialect's quotes if it is a reserved word."""
    return f"{quote}{name}{quote}" if name in _RESERVED else name


def load_tables(
    metrics: Mapping[str, MetricSuccessor] | None = None, overlay: Overlay | None = None
) -> dict[str, Table]:
    """Return all tables by each of their names, with their versions.

    Parameters
    ----------
    metrics
        Successors of renamed metrics, by former name.
    overlay
        An operator's overlay, whose tables may have migrations.
    """
    migrations = load_migrations(None, overlay)
    tables = {}
    for name, contract in load_contracts(overlay).items():
        own = [migration for migration in migrations if migration.table == name]
        by_version = {migration.from_version: migration for migration in own if not migration.is_of_added}
        last = max((migration.to_version for migration in by_version.values()), default=contract.version)
        first = min(by_version, default=last)
        added = [migration for migration in own if migration.is_of_added]
        extra = _types(added_at(name, added[0].from_version, overlay) if added else contract.added)
        released = {version: contract_at(name, version, overlay) for version in range(first, last + 1)}
        versions = {version: _types(shape) | extra for version, shape in released.items()}
        steps = {version: migration.steps for version, migration in by_version.items()}
        for migration in added:  # versions of an overlay's columns follow all packaged versions
            steps[max(versions)] = migration.steps
            extra = _types(added_at(name, migration.to_version, overlay))
            versions[FIRST_OWN + migration.from_version] = _types(released[last]) | extra
        for query_name in {name, *(version.name for version in released.values())}:
            table = table_at(query_name, versions, steps)
            tables[query_name] = replace(table, metrics=metrics or {}, called=released[last].name)
    return tables


def _types(contract: Contract) -> dict[str, str]:
    return {column.name: column.type for column in contract.columns}


def table_at(name: str, versions: Mapping[int, Mapping[str, str]], steps: Mapping[int, Iterable[Step]]) -> Table:
    """Return a table, given the column types of each version, and the steps from each version to the next."""
    order = sorted(versions)
    meanings = {}
    for place, begin in enumerate(order):
        current: dict[str, Meaning] = {column: Meaning((Name(column),)) for column in versions[begin]}
        for version, after in pairwise(order[place:]):
            types = {**versions[after], **versions[version]}
            for step in steps.get(version, ()):
                current = {column: _after(meaning, step, types) for column, meaning in current.items()}
        meanings[begin] = {
            column: meaning for column, meaning in current.items() if meaning != Meaning((Name(column),))
        }
    return Table(name, {version: tuple(types) for version, types in versions.items()}, meanings)


def _after(meaning: Meaning, step: Step, types: dict[str, str]) -> Meaning:
    """Return a replacement after one more step. Updates `types`, the column types before the step."""
    pieces: list[str | Name] = []
    note = meaning.note
    for piece in meaning.pieces:
        new = step.successor(piece.name) if isinstance(piece, Name) else None
        if not isinstance(piece, Name):
            pieces.append(piece)
        elif new is not None:
            types[new.name] = types.get(piece.name, "")
            pieces += _converted_back(new, types[new.name])
            if new.factor not in {1, -1} and types[new.name] in _INTEGERS:
                note = f"where {new.name} is no whole number of its former unit, it is rounded"
            if isinstance(step, Retype) and step.column == piece.name:
                types[piece.name] = step.to
                note = f"{piece.name} has type {step.to} now; look at divisions of whole numbers"
        else:
            text, _ = step.former_expression(piece.name)
            reason = f"is computed now, as {text}; rewrite it by hand" if text else f"is no more ({step.text})"
            return Meaning((), gone=f"{piece.name} {reason}")
    return replace(meaning, pieces=tuple(pieces), note=note)


def _converted_back(new: ColumnSuccessor, type_: str) -> tuple[str | Name, ...]:
    """Return an expression for the old value from the new one; rounded for integers, where engines may truncate."""
    value: tuple[str | Name, ...] = (Name(new.name),)
    if (new.factor, new.offset) == (1, 0):
        return value
    if new.offset:
        value = ("(", *value, f" {'-' if new.offset > 0 else '+'} {_number(abs(new.offset))}", ")")
    inverse = 1 / new.factor
    is_integer = type_ in _INTEGERS
    if abs(inverse - round(inverse)) < 1e-9 * abs(inverse):  # 1 / 0.001 is 1000, except for a rounding error
        value = (*value, f" * {_number(round(inverse))}") if round(inverse) != 1 else value
    elif is_integer:
        value = ("round(", *value, f" / {_number(new.factor, 'e0')}", ")")
    else:
        value = (*value, f" / {_number(new.factor)}")
    return ("CAST(", *value, f" AS {_INTEGERS[type_]})") if is_integer else ("(", *value, ")")


def _number(value: float, end: str = "") -> str:
    """Return a number as SQL, in parentheses if it is negative. `end` is appended to whole numbers."""
    text = f"{int(value)}{end}" if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return f"({text})" if value < 0 else text
