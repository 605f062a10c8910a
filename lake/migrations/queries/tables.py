"""What queries may name: tables with the columns of each version, and what became of them since."""

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
"""Keywords of PostgreSQL, Trino and DataFusion that sqlglot does not list."""
_RESERVED: Final = frozenset(_MORE_KEYWORDS.split()).union(
    *(Dialect.get_or_raise(name).generator_class.RESERVED_KEYWORDS for name in ("duckdb", "trino"))
)
"""What names no column without quotes in PostgreSQL, DuckDB, Trino or DataFusion."""


@dataclass(frozen=True, slots=True)
class Name:
    """A column of the later version, within an expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What replaces a column of an earlier version in the later one.

    Attributes
    ----------
    pieces
        An expression: text, and columns of the later version.
    gone
        Why the column has no replacement; else empty.
    note
        What a reader should know of the replacement.
    """

    pieces: tuple[str | Name, ...]
    gone: str = ""
    note: str = ""

    @property
    def plain(self) -> str | None:
        """Name of the column that it is; None where it is computed."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only.name if isinstance(only, Name) else None

    @property
    def names(self) -> list[str]:
        """Columns that it is made of."""
        return [piece.name for piece in self.pieces if isinstance(piece, Name)]

    def text(self, qualifier: str = "", quote: str = '"') -> str:
        """Return it as SQL; the qualifier ends in its dot, or is empty."""
        return "".join(
            piece if isinstance(piece, str) else qualifier + quote_name(piece.name, quote) for piece in self.pieces
        )


@dataclass(frozen=True, slots=True)
class Table:
    """A table at each version that a query may have been written for.

    Attributes
    ----------
    versions
        Names of its columns by version, in their order; queries are brought to the last.
    meanings
        Replacements of columns that changed, by version and column.
    metrics
        Successors of renamed metrics in rows of the table, by the former name.
    called
        What queries call the table at the last version.
    """

    name: str
    versions: Mapping[int, Sequence[str]]
    meanings: Mapping[int, Mapping[str, Meaning]] = field(default_factory=dict)
    metrics: Mapping[str, MetricSuccessor] = field(default_factory=dict)
    called: str = ""

    @property
    def is_renamed(self) -> bool:
        """Whether queries call it otherwise now."""
        return bool(self.called) and self.called != self.name

    @property
    def newest(self) -> int:
        """The version that queries are brought to."""
        return max(self.versions)

    @property
    def touched(self) -> frozenset[str]:
        """Columns of any version that changed since."""
        return frozenset(name for meanings in self.meanings.values() for name in meanings)

    def changed_columns(self, version: int) -> dict[str, Meaning]:
        """Columns of a version that have another name, an expression or no replacement now."""
        return {name: meaning for name, meaning in self.meanings.get(version, {}).items() if meaning.plain != name}

    def added_columns(self, version: int) -> set[str]:
        """Columns of the last version that no earlier column became."""
        meanings = self.meanings.get(version, {})
        before = {new for old in self.versions[version] for new in (meanings[old].names if old in meanings else [old])}
        return set(self.versions[self.newest]) - before

    def moving(self, version: int) -> set[str]:
        """Names that the version or the last one lacks, and names whose column changed."""
        return set(self.versions[version]) ^ set(self.versions[self.newest]) | self.meanings.get(version, {}).keys()


def quote_name(name: str, quote: str) -> str:
    """Return a name as SQL, in the dialect's quotes where it is a keyword."""
    return f"{quote}{name}{quote}" if name in _RESERVED else name


def load_tables(
    metrics: Mapping[str, MetricSuccessor] | None = None, overlay: Overlay | None = None
) -> dict[str, Table]:
    """Every table of this release by each of its names, with its versions.

    Parameters
    ----------
    metrics
        Successors of renamed metrics, by the former name.
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
        for migration in added:  # columns that an overlay adds come after all versions of ours
            steps[max(versions)] = migration.steps
            extra = _types(added_at(name, migration.to_version, overlay))
            versions[FIRST_OWN + migration.from_version] = _types(released[last]) | extra
        for spoken in {name, *(shape.name for shape in released.values())}:
            table = table_at(spoken, versions, steps)
            tables[spoken] = replace(table, metrics=metrics or {}, called=released[last].name)
    return tables


def _types(contract: Contract) -> dict[str, str]:
    return {column.name: column.type for column in contract.columns}


def table_at(name: str, versions: Mapping[int, Mapping[str, str]], steps: Mapping[int, Iterable[Step]]) -> Table:
    """Return a table with the types of its columns by version, and the steps from each version to the one after it."""
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
    """Return what a column is after one more step. `types` are those before the step, and are brought along with it."""
    pieces: list[str | Name] = []
    note = meaning.note
    for piece in meaning.pieces:
        lead = step.successor(piece.name) if isinstance(piece, Name) else None
        if not isinstance(piece, Name):
            pieces.append(piece)
        elif lead is not None:
            types[lead.name] = types.get(piece.name, "")
            pieces += _converted_back(lead, types[lead.name])
            if lead.factor not in {1, -1} and types[lead.name] in _INTEGERS:
                note = f"where {lead.name} is no whole number of its former unit, it is rounded"
            if isinstance(step, Retype) and step.column == piece.name:
                types[piece.name] = step.to
                note = f"{piece.name} has type {step.to} now; look at divisions of whole numbers"
        else:
            text, _ = step.former_expression(piece.name)
            reason = f"is computed now, as {text}; rewrite it by hand" if text else f"is no more ({step.text})"
            return Meaning((), gone=f"{piece.name} {reason}")
    return replace(meaning, pieces=tuple(pieces), note=note)


def _converted_back(lead: ColumnSuccessor, type_: str) -> tuple[str | Name, ...]:
    """Return the old value of the new; of integers the nearest, also where an engine truncates a quotient."""
    if (lead.factor, lead.offset) == (1, 0):
        return (Name(lead.name),)
    value: tuple[str | Name, ...] = (Name(lead.name),)
    if lead.offset:
        value = ("(", *value, f" {'-' if lead.offset > 0 else '+'} {_number(abs(lead.offset))}", ")")
    inverse = 1 / lead.factor
    is_integer = type_ in _INTEGERS
    if abs(inverse - round(inverse)) < 1e-9 * abs(inverse):  # 1 / 0.001 is 1000, whatever binary fractions say
        value = (*value, f" * {_number(round(inverse))}") if round(inverse) != 1 else value
    elif is_integer:
        value = ("round(", *value, f" / {_number(lead.factor, 'e0')}", ")")
    else:
        value = (*value, f" / {_number(lead.factor)}")
    return ("CAST(", *value, f" AS {_INTEGERS[type_]})") if is_integer else ("(", *value, ")")


def _number(value: float, end: str = "") -> str:
    """Return a number as SQL, in parentheses where it has a sign."""
    text = f"{int(value)}{end}" if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return f"({text})" if value < 0 else text
