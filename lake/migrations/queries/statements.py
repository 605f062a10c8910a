"""Statements of a text, each parsed, in places of the text."""

import logging
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from sqlglot import exp, parse_one
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from ranklake.errors import did_you_mean
from ranklake.lake.migrations.queries.aliases import engines_of
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.placeholders import Span, covered
from ranklake.lake.migrations.queries.trees import ABOUT, as_looked_at, is_statement
from ranklake.lake.migrations.steps.step import MigrationError

DIALECTS: Final = ("postgres", "duckdb", "trino")
"""In this order; DataFusion's SQL is close to PostgreSQL's."""

BLANK: Final = r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*"
"""Blanks and comments, as a pattern that takes each of them in one way only: a banner of many costs no more."""

BEGINS: Final = r"(?:\(\s*)*(?:select|with|from|explain|show|describe|desc|summarize|pivot|unpivot|table|values)\b"
"""What queries begin with, as a pattern."""

_DATAFUSION: Final = "postgres"

_HEAD: Final = re.compile(
    r"(?:explain(?:\s+(?:analyze|verbose|logical|query\s+plan|format\s+\w+|\([^()]*\)))*"
    r"|prepare\s+\w+(?:\s*\([^()]*\))?\s+(?:as|from))\s+(?=\(?\s*[a-z])",
    re.IGNORECASE,
)
"""What stands before a statement that it does something with; the rest is one by itself."""

_STAR: Final = re.compile(r"(?:\bselect\s|[,.])\s*\*", re.IGNORECASE)
_SPECIAL: Final = frozenset("%{}$")

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # what it cannot read is told here, with its line

_MARKER: Final = re.compile(r"ranklake:((?:\s*\w+ v\d+,?)+)")


def dialects_of(name: str | None) -> tuple[str, ...]:
    """Return the dialects to try: all, or one. Raises `MigrationError` for what sqlglot does not know."""
    if name is None:
        return DIALECTS
    chosen = _DATAFUSION if name.lower() == "datafusion" else name.lower()
    try:
        Dialect.get_or_raise(chosen)
    except (SqlglotError, ValueError):
        hint = did_you_mean(name, ("datafusion", *DIALECTS))
        raise MigrationError(f"no dialect {name!r}", where="--dialect", hint=hint) from None
    return (chosen,)


@dataclass(frozen=True, slots=True)
class Statement:
    """A statement.

    Attributes
    ----------
    begin
        Where its first token begins in the text.
    text
        It, placeholders covered.
    original
        It as it is written.
    words
        It in small letters, in words, those of placeholders among them.
    tree
        Parsed, with places in `text`; None where no dialect takes it.
    placeholders
        Where in `text` something unknown is filled in.
    head
        Where its first token ends.
    marks
        Versions that it says of itself, by table.
    engines
        Those that it may be for (`ranklake.lake.migrations.queries.aliases`).
    dialect
        The first of sqlglot's that took it.
    """

    begin: int
    text: str
    original: str
    words: frozenset[str]
    tree: Any
    placeholders: tuple[Span, ...]
    head: int
    marks: dict[str, int]
    engines: tuple[str, ...]
    dialect: str

    @property
    def quote(self) -> str:
        """What a name is quoted with."""
        return str(Dialect.get_or_raise(self.dialect).IDENTIFIER_START)

    def filled_in(self, place: int) -> str:
        """Return the placeholder at a place, as it is written; empty where there is none."""
        return next((self.original[begin:end] for begin, end in self.placeholders if begin <= place < end), "")

    def is_placeholder(self, place: int) -> bool:
        """Say whether something unknown is filled in at a place."""
        return any(begin <= place < end for begin, end in self.placeholders)


def marker(versions: dict[str, int]) -> str:
    """Return what a statement says of itself: the versions that it is written for."""
    return f" /* ranklake: {', '.join(f'{table} v{version}' for table, version in sorted(versions.items()))} */"


def statements(text: str, holes: Sequence[Span] = (), dialects: Sequence[str] = DIALECTS) -> Iterator[Statement]:
    """Yield the statements of a text. What cannot even be told into words is one, without a tree."""
    plain, placeholders = covered(text, holes)
    for begin, end, head in _slices(plain, dialects):
        one = plain[begin:end]
        spans = tuple((low - begin, high - begin) for low, high in placeholders if begin <= low < end)
        marks = {
            table: int(version) for said in _MARKER.findall(one) for table, version in re.findall(r"(\w+) v(\d+)", said)
        }
        one = _HEAD.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), one, count=1) if _HEAD.match(one) else one
        filled = " ".join([one, *(text[low:high] for low, high in placeholders if begin <= low < end)])
        words = frozenset(re.findall(r"\w+", filled.lower()))
        tree, dialect = _parsed(one, dialects)
        yield Statement(
            begin, one, text[begin:end], words, tree, spans, head - begin, marks, engines_of(dialects), dialect
        )


def _slices(text: str, dialects: Sequence[str]) -> Iterator[tuple[int, int, int]]:
    for dialect in dialects:
        try:
            tokens = Dialect.get_or_raise(dialect).tokenize(text)
        except SqlglotError:
            continue
        first = None
        last = 0
        for token in tokens:
            if token.token_type == TokenType.SEMICOLON:
                if first is not None:
                    yield first.start, token.start, first.end + 1
                first = None
            elif first is None:
                first = token
            last = token.end + 1
        if first is not None:
            yield first.start, max(last, len(text.rstrip())), first.end + 1
        return
    yield 0, len(text), 0


def _parsed(text: str, dialects: Sequence[str]) -> tuple[Any, str]:
    """Return sqlglot's tree, and the dialect that took the text; None and the first where none does."""
    for dialect in dialects:
        try:
            trees = Dialect.get_or_raise(dialect).parse(text)
        except SqlglotError:
            continue
        if len(trees) == 1 and trees[0] is not None and not trees[0].find(exp.Command) and is_statement(trees[0]):
            return as_looked_at(trees[0]), dialect
    return None, dialects[0]


def is_about(text: str, tables: Mapping[str, Table]) -> bool:
    """Say whether a text that nobody understands may ask a table for what it calls otherwise."""
    words = set(re.findall(r"\w+", text.lower()))
    is_wild = _STAR.search(text) is not None
    return any(
        name in words and (is_wild or not words.isdisjoint(table.touched))
        for name, table in tables.items()
        if table.touched
    )


def is_about_tables(one: Statement) -> bool:
    """Say whether a statement that nobody understands may be about all columns of a table."""
    return one.text.split(None, 1)[0].upper() in ABOUT or _STAR.search(one.text) is not None


def spelled(text: str, one: Statement) -> tuple[str, str]:
    """Return an expression of DataFusion's SQL for a statement, and what a person should know of it.

    That is that it has to be written by hand, where the text is empty.
    """
    if one.placeholders and not _SPECIAL.isdisjoint(text):
        return "", "what becomes of it has signs that placeholders have; rewrite it by hand"
    others = [engine for engine in one.engines if engine not in {"datafusion", "postgres"}]
    tree = parse_one(text, dialect=_DATAFUSION)
    is_own = tree.find(exp.Anonymous, exp.AnonymousAggFunc) is not None
    if not is_own and all(_read(text, engine) == _read(text, _DATAFUSION) for engine in others):
        return text, ""
    if len(others) != 1 or len(one.engines) > 1:
        what = "what becomes of it is DataFusion's SQL; look at it if another engine is asked"
        return text, what if others else ""
    said = str(tree.sql(dialect=others[0]))
    if is_own or _read(said, others[0]) != _read(text, _DATAFUSION):
        return "", "what becomes of it is DataFusion's SQL; rewrite it by hand"
    return said, ""


def _read(text: str, dialect: str) -> str:
    """Return what a dialect takes an expression for, as DataFusion's SQL; empty for what it does not take."""
    try:
        return str(parse_one(text, dialect=dialect).sql(dialect=_DATAFUSION))
    except SqlglotError:
        return ""
