"""What each column of an earlier version is of a later one: another name, an expression, or nothing any more."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import Final

from sqlglot.dialects.postgres import Postgres
from sqlglot.tokens import TokenType

from ranklake.lake.migrations.queries.reserved import quoted
from ranklake.lake.migrations.steps.convert import Convert
from ranklake.lake.migrations.steps.drop import Drop
from ranklake.lake.migrations.steps.rename import Rename
from ranklake.lake.migrations.steps.replaced import Replaced
from ranklake.lake.migrations.steps.retype import Retype
from ranklake.lake.migrations.steps.split import Computed
from ranklake.lake.migrations.steps.step import Step

_WHOLE: Final = {"int32": "INTEGER", "int64": "BIGINT"}


@dataclass(frozen=True, slots=True)
class Name:
    """A column of the later version, within an expression."""

    name: str


@dataclass(frozen=True, slots=True)
class Meaning:
    """What a column is of the later version.

    Attributes
    ----------
    pieces
        The expression: text, and columns.
    gone
        Why there is none; else empty.
    note
        What a reader should know though there is one.
    is_computed
        Whether a migration says it in SQL, which is DataFusion's.
    """

    pieces: tuple[str | Name, ...]
    gone: str = ""
    note: str = ""
    is_computed: bool = False

    @property
    def plain(self) -> str | None:
        """Name of the column that it is; None where it is computed."""
        only = self.pieces[0] if len(self.pieces) == 1 else None
        return only.name if isinstance(only, Name) else None

    @property
    def names(self) -> list[str]:
        """Columns that it is made of."""
        return [piece.name for piece in self.pieces if isinstance(piece, Name)]

    def text(self, qualifier: str, quote: str = '"') -> str:
        """Return it as SQL; the qualifier ends in its dot, or is empty."""
        said = (piece if isinstance(piece, str) else qualifier + quoted(piece.name, quote) for piece in self.pieces)
        return "".join(said)


@dataclass(frozen=True, slots=True)
class Renamed:
    """A metric that has another name now.

    Attributes
    ----------
    newer
        What took its place, one after another: name, factor and offset. The old value is the new times the factor
        plus the offset.
    why_not
        Why nobody can read it under a name of now; else empty.
    """

    newer: tuple[tuple[str, float, float], ...] = ()
    why_not: str = ""

    @property
    def said(self) -> str:
        """What became of it, in a clause."""
        return self.why_not or f"recorded as {self.newer[-1][0]} now; what both have of a step would count twice"


@dataclass(frozen=True, slots=True)
class Table:
    """A table, at each version that a query may have been written for.

    Attributes
    ----------
    versions
        Names of its columns by version; the last is the one that queries are brought to.
    meanings
        By version, what became of columns that are not simply there as before.
    metrics
        What became of metrics that rows of the table name, by their name.
    called
        What queries call the table at the last version.
    """

    name: str
    versions: Mapping[int, frozenset[str]]
    meanings: Mapping[int, Mapping[str, Meaning]] = field(default_factory=dict)
    metrics: Mapping[str, Renamed] = field(default_factory=dict)
    called: str = ""

    @property
    def is_renamed(self) -> bool:
        """Whether queries have to call it otherwise than it is called here."""
        return bool(self.called) and self.called != self.name

    @property
    def newest(self) -> int:
        """The version that queries are brought to."""
        return max(self.versions)

    @property
    def touched(self) -> frozenset[str]:
        """Names, at any version, of columns that are not simply there as before."""
        return frozenset(name for every in self.meanings.values() for name in every)

    def otherwise(self, version: int) -> dict[str, Meaning]:
        """Return the columns of a version that are not to be had by their names any more."""
        return {name: one for name, one in self.meanings.get(version, {}).items() if one.plain != name}

    def added(self, version: int) -> frozenset[str]:
        """Return the columns of the last version that came of none of an earlier one."""
        meanings = self.meanings.get(version, {})
        came = {name for old in self.versions[version] for name in (meanings[old].names if old in meanings else [old])}
        return self.versions[self.newest] - came


def table_at(name: str, versions: Mapping[int, Mapping[str, str]], steps: Mapping[int, Iterable[Step]]) -> Table:
    """Return a table.

    Parameters
    ----------
    versions
        Types of columns, by name, by version.
    steps
        What leads from a version to the one after it.
    """
    every = sorted(versions)
    meanings = {}
    for place, begin in enumerate(every):
        found: dict[str, Meaning] = {one: Meaning((Name(one),)) for one in versions[begin]}
        for version, after in pairwise(every[place:]):
            types = {**versions[after], **versions[version]}
            for step in steps.get(version, ()):
                found = {one: _after(meaning, step, types) for one, meaning in found.items()}
        meanings[begin] = {one: meaning for one, meaning in found.items() if meaning != Meaning((Name(one),))}
    return Table(name, {version: frozenset(types) for version, types in versions.items()}, meanings)


def _after(meaning: Meaning, step: Step, types: dict[str, str]) -> Meaning:
    """Return what a column is after one more step. `types` is of what is there before it, and follows."""
    if meaning.gone:
        return meaning
    note, is_computed = meaning.note, meaning.is_computed
    if isinstance(step, Rename):
        types[step.to] = types.get(step.column, "")
        instead: dict[str, tuple[str | Name, ...]] = {step.column: (Name(step.to),)}
    elif isinstance(step, Convert):
        types[step.to] = types.get(step.column, "")
        instead = {step.column: _converted_back(step, types[step.to])}
        note = _rounding(meaning, step, types[step.to]) or note
    elif isinstance(step, Computed) and step.comes_back:
        made = frozenset(step.came)
        instead = {name: ("(", *_pieces(text, made), ")") for name, text in step.comes_back}
        is_computed |= not instead.keys().isdisjoint(meaning.names)
    elif isinstance(step, Drop | Replaced):
        if gone := sorted(step.touched.intersection(meaning.names)):
            return Meaning((), gone=f"{gone[0]} is no more ({step.text})")
        return meaning
    else:
        return _retyped(meaning, step, types) if isinstance(step, Retype) else meaning
    pieces: list[str | Name] = []
    for piece in meaning.pieces:
        pieces += instead.get(piece.name, (piece,)) if isinstance(piece, Name) else (piece,)
    return Meaning(tuple(pieces), "", note, is_computed)


def _converted_back(step: Convert, type_: str) -> tuple[str | Name, ...]:
    """Return the old value of the new: of whole numbers the nearest one, in engines, too, that cast or divide others.

    Engines round half away from zero, but truncate, or not, where they divide or cast.
    """
    if (step.factor, step.offset) == (1, 0):
        return (Name(step.to),)
    value: tuple[str | Name, ...] = (Name(step.to),)
    if step.offset:
        value = ("(", *value, f" {'-' if step.offset > 0 else '+'} {_number(abs(step.offset))}", ")")
    inverse = 1 / step.factor
    is_whole = type_ in _WHOLE
    if abs(inverse - round(inverse)) < 1e-9 * abs(inverse):  # 1 / 0.001 is 1000, whatever binary fractions say
        value = (*value, f" * {_number(round(inverse))}") if round(inverse) != 1 else value
    elif is_whole:
        value = ("round(", *value, f" / {_number(step.factor, 'e0')}", ")")
    else:
        value = (*value, f" / {_number(step.factor)}")
    if is_whole:
        return ("CAST(", *value, f" AS {_WHOLE[type_]})")
    return ("(", *value, ")")


def _retyped(meaning: Meaning, step: Retype, types: dict[str, str]) -> Meaning:
    types[step.column] = step.to
    if step.column not in meaning.names:
        return meaning
    return replace(meaning, note=f"{step.column} has type {step.to} now; look at divisions of whole numbers")


def _rounding(meaning: Meaning, step: Convert, type_: str) -> str:
    is_rounded = step.column in meaning.names and type_ in _WHOLE and abs(step.factor) != 1
    return f"where {step.to} is no whole number of its former unit, it is rounded" if is_rounded else ""


def _number(value: float, end: str = "") -> str:
    """Return a number as SQL, in parentheses where it has a sign."""
    said = f"{int(value)}{end}" if float(value).is_integer() and abs(value) < 2**53 else repr(float(value))
    return f"({said})" if value < 0 else said


def _pieces(text: str, made: frozenset[str]) -> tuple[str | Name, ...]:
    """Return an expression of a step in pieces."""
    found: list[str | Name] = []
    end = 0
    for token in Postgres().tokenize(text):
        if token.token_type != TokenType.STRING and token.text.lower() in made:
            found += [text[end : token.start], Name(token.text.lower())]
            end = token.end + 1
    return tuple(piece for piece in (*found, text[end:]) if piece)
