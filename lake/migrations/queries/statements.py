"""Splits a text into SQL statements and parses them, and declares the results of an update: edits and findings.

Placeholders (of Grafana, `str.format`, DB API, Jinja) are replaced by names of the same length, so that a statement can
be parsed and all places remain valid.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from sqlglot import exp
from sqlglot.dialects.dialect import Dialect
from sqlglot.errors import SqlglotError
from sqlglot.tokens import TokenType

from ranklake.errors import did_you_mean
from ranklake.lake.migrations.queries.tables import Table
from ranklake.lake.migrations.steps.step import MigrationError

logging.getLogger("sqlglot").setLevel(logging.CRITICAL)  # its parse errors are reported as findings

Span = tuple[int, int]

DIALECTS: Final = ("postgres", "duckdb", "trino")
"""sqlglot's names; DataFusion's SQL is close to PostgreSQL's."""

BLANK: Final = r"(?:\s|--[^\n]*\n|/\*(?:[^*]|\*(?!/))*\*/)*"
"""Pattern for whitespace and comments. It is unambiguous, so that long comments do not cause backtracking."""

BEGINS: Final = r"(?:\(\s*)*(?:select|with|from|explain|show|describe|desc|summarize|pivot|unpivot|table|values)\b"
"""Pattern for the begin of a query."""

MACRO: Final = "___"
"""Begin of a Grafana macro's name after its dollar sign was replaced."""

_ABOUT: Final = frozenset(
    "SHOW DESCRIBE DESC SUMMARIZE EXPLAIN PIVOT UNPIVOT COPY EXPORT TABLE PRAGMA CALL".split()  # noqa: SIM905 - one line
)
"""First words of statements that use a table without naming columns."""

_STAR: Final = re.compile(r"(?:\bselect\s|[,.])\s*\*", re.IGNORECASE)
_FILLED_IN: Final = re.compile(
    r"\{\{.*?\}\}"  # Jinja, jupysql
    r"|\$\{[^{}\n]*\}|\[\[\w+\]\]"  # Grafana
    r"|%\(\w+\)s|(?<=[\s(,=<>])%s\b"  # DB API
    r"|(?<!(?i:map) )(?<!(?i:map))\{\d*\}"  # str.format by place; DuckDB's MAP {} is empty
    r"|\{[A-Za-z_]\w*(?:\.\w+|\[[^\]\n]*\])*(?:![rsa])?"  # str.format; what has more is a struct of DuckDB's
    r"(?::(?:[^\w{}]?[<>=^])?[-+]?z?#?0?\d*[_,]?(?:\.\d+)?(?:[bcdeEfFgGnosxX%]|%[^{}'\n]*)?)?\}",
    re.DOTALL,
)
_DOLLAR: Final = re.compile(r"\$(?=[A-Za-z_0-9])")
_VARIABLE: Final = re.compile(r"\$(?!__)\w+|\$__\w+(?!\w*\s*\()")


class UnreadableError(Exception):
    """A file does not have the format of its suffix. The message is a clause."""


@dataclass(frozen=True, slots=True, order=True)
class Edit:
    """Replaces the text between two places, in characters. Equal places mean an insertion."""

    begin: int
    end: int
    text: str


@dataclass(frozen=True, slots=True, order=True)
class Finding:
    """Something that a person must check, with its place in characters.

    A note needs no work: the query was updated nevertheless.
    """

    place: int
    message: str
    is_note: bool = False


@dataclass(slots=True)
class Outcome:
    """Edits and findings for a text."""

    edits: list[Edit] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    @property
    def is_settled(self) -> bool:
        """Whether the edits can be made, because all findings are notes."""
        return all(finding.is_note for finding in self.findings)

    def add(self, other: "Outcome", shift: int = 0) -> None:
        """Add the outcome for a part of the text that begins at `shift`."""
        self.edits += [Edit(edit.begin + shift, edit.end + shift, edit.text) for edit in other.edits]
        self.findings += [
            Finding(finding.place + shift, finding.message, finding.is_note) for finding in other.findings
        ]


def apply_edits(text: str, edits: Sequence[Edit]) -> str:
    """Return a text with edits made. Edits must not overlap."""
    parts, end = [], 0
    for edit in sorted(edits):
        parts += [text[end : edit.begin], edit.text]
        end = edit.end
    return "".join((*parts, text[end:]))


@dataclass(frozen=True, slots=True)
class Statement:
    """An SQL statement.

    Attributes
    ----------
    begin
        Place of the statement in its text.
    text
        The statement, with placeholders replaced by names.
    words
        Its words in lower case, including those of placeholders.
    trees
        sqlglot's trees by dialect, with places in `text`; empty if no dialect can parse it.
    placeholders
        Original texts of placeholders by their places in `text`.
    """

    begin: int
    text: str
    words: frozenset[str]
    trees: Mapping[str, Any]
    placeholders: Mapping[Span, str]

    def filled_in(self, begin: int, end: int | None = None) -> str:
        """Return the original text of a placeholder at a place, or between two places; empty if there is none."""
        last = begin if end is None else end
        return next((text for (low, high), text in self.placeholders.items() if low <= last and begin < high), "")

    def after(self, edits: Sequence[Edit], dialects: Iterable[str]) -> "Statement":
        """Return the statement with edits made, parsed again."""
        placeholders = {}
        for (low, high), text in self.placeholders.items():
            shift = sum(len(edit.text) - edit.end + edit.begin for edit in edits if edit.end <= low)
            placeholders[low + shift, high + shift] = text
        return _statement(self.begin, apply_edits(self.text, edits), placeholders, dialects)

    def may_change(self, tables: Mapping[str, Table]) -> bool:
        """Whether the statement may use changed columns or names of tables, judging by its words."""
        moving = {name for table in tables.values() for version in table.versions for name in table.moving(version)}
        is_whole = self.text.split(None, 1)[0].upper() in _ABOUT or _STAR.search(self.text) is not None
        return is_whole or not self.words.isdisjoint(moving) or any(table.is_renamed for table in tables.values())


def outermost(tree: Any) -> list[Any]:  # noqa: ANN401 - sqlglot's
    """Return the queries of a tree that are not part of another query."""
    return [query for query in tree.find_all(exp.Query) if query.find_ancestor(exp.Query) is None]


def dialects_of(name: str | None) -> tuple[str, ...]:
    """Return the dialects to try: all, or the given one. Raises `MigrationError` for an unknown dialect."""
    if name is None:
        return DIALECTS
    chosen = "postgres" if name.lower() == "datafusion" else name.lower()
    try:
        Dialect.get_or_raise(chosen)
    except (SqlglotError, ValueError):
        hint = did_you_mean(name, ("datafusion", *DIALECTS))
        raise MigrationError(f"no dialect {name!r}", where="--dialect", hint=hint) from None
    return (chosen,)


def may_query_changes(text: str, tables: Mapping[str, Table]) -> bool:
    """Whether a text that is not parsed may query changed columns of a table."""
    words = set(re.findall(r"\w+", text.lower()))
    is_wild = _STAR.search(text) is not None
    return any(
        name in words and (is_wild or not words.isdisjoint(table.touched))
        for name, table in tables.items()
        if table.touched
    )


def statements(text: str, holes: Sequence[Span] = (), dialects: Sequence[str] = DIALECTS) -> Iterator[Statement]:
    """Yield the statements of a text. `holes` are places of placeholders in addition to those that are recognized."""
    plain, spans = _cover_placeholders(text, holes)
    for begin, end in _slices(plain, dialects):
        part = plain[begin:end]
        placeholders = {
            (low - begin, high - begin): text[low:high] for low, high in sorted(spans) if begin <= low < end
        }
        yield _statement(begin, part, placeholders, dialects)


def _statement(begin: int, text: str, placeholders: Mapping[Span, str], dialects: Iterable[str]) -> Statement:
    words = frozenset(re.findall(r"\w+", " ".join([text, *placeholders.values()]).lower()))
    trees = {dialect: tree for dialect in dialects if (tree := parse(text, dialect)) is not None}
    return Statement(begin, text, words, trees, placeholders)


def _cover_placeholders(text: str, holes: Sequence[Span]) -> tuple[str, list[Span]]:
    """Return a text with placeholders replaced by names of the same length, and the places of the placeholders."""
    spans = list(holes)
    for begin, end in holes:
        text = text[:begin] + _name(end - begin) + text[end:]
    spans += [match.span() for match in _FILLED_IN.finditer(text)]
    text = _FILLED_IN.sub(lambda match: _name(len(match[0])), text)
    spans += [match.span() for match in _VARIABLE.finditer(text)]
    return _DOLLAR.sub("_", text), spans


def _name(length: int) -> str:
    return "_" + "q" * (length - 1)


def _slices(text: str, dialects: Sequence[str]) -> Iterator[Span]:
    """Yield begin and end of each statement."""
    for dialect in dialects:
        try:
            tokens = Dialect.get_or_raise(dialect).tokenize(text)
        except SqlglotError:
            continue
        begin, end = -1, 0
        for token in tokens:
            if token.token_type == TokenType.SEMICOLON:
                if begin >= 0:
                    yield begin, token.start
                begin = -1
            elif begin < 0:
                begin = token.start
            end = token.end + 1
        if begin >= 0:
            yield begin, max(end, len(text.rstrip()))
        return
    if text.strip():
        yield 0, len(text)


def parse(text: str, dialect: str) -> Any:  # noqa: ANN401 - sqlglot's
    """Return sqlglot's tree; None if the text is invalid in the dialect, or parsed as a command or an expression."""
    try:
        (tree,) = Dialect.get_or_raise(dialect).parse(text)
    except (SqlglotError, ValueError):
        return None
    if tree is None or tree.find(exp.Command):
        return None
    if isinstance(tree, exp.Alias | exp.Condition) and not isinstance(tree, exp.Query):
        return None  # such as a keyword of another dialect, followed by an alias
    if any(isinstance(node.args.get("alias"), exp.Placeholder) for node in tree.find_all(exp.Alias)):
        return None  # DuckDB's `alias: expression`
    names = (node.this for node in tree.find_all(exp.Table) if isinstance(node.this, exp.Identifier))
    if any(not name.args.get("quoted") and name.name.upper() in _ABOUT for name in names):
        return None
    query = tree.args.get("expression") if isinstance(tree, exp.Insert | exp.Create) else None
    if isinstance(query, exp.Query) and tree.args.get("with_") is not None and query.args.get("with_") is None:
        query.set("with_", tree.args["with_"].pop())
    return tree
