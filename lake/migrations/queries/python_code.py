"""Python modules: updates SQL in string literals. SQL that is concatenated from several strings is only reported."""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BLANK, Finding, Outcome, Span, UnreadableError
from ranklake.lake.migrations.queries.tables import Table

SQL: Final = re.compile(
    rf"{BLANK}(?i:(?:\(\s*)*(?:select|with|from|create|insert|explain|copy|pivot|unpivot|update|delete|merge|values)\b"
    r"(?=.*\b(?:from|join|into|using|on|set)\b|.*\bselect\b))"
    rf"|{BLANK}(?:summarize|describe|desc|show|table|copy|from|pivot|unpivot|SUMMARIZE|DESCRIBE|DESC|SHOW|TABLE|COPY|FROM|PIVOT|UNPIVOT)"
    r"\s+(?:(?i:columns|stats|create|table|from|in|for)\s+)*[\w.\"]+\s*;?\s*$",
    re.DOTALL,
)
"""A text that is a query. A query of one keyword and a table must not be capitalized like a sentence."""

_CLAUSE: Final = re.compile(r"\b(?:select|from|join|where|group\s+by|order\s+by|having|and|or)\b", re.IGNORECASE)
_LAST_TABLE: Final = re.compile(r"(?:\b(?:FROM|JOIN)|^\s*(?i:from|join))\s+(?:[\w\"]+\.)*\"?(\w+)")
_LITERAL: Final = re.compile(r"([A-Za-z]*)(\"\"\"|'''|\"|')(.*)\2", re.DOTALL)
_FIELD: Final = re.compile(r"\{[^{}]*\}")


@dataclass(frozen=True, slots=True)
class Literal:
    """A string literal whose value equals its source text: one piece, without escapes.

    Attributes
    ----------
    begin
        Place of the text in the source.
    text
        The text, with the fields of an f-string as in the source.
    forbidden
        Characters that would end the literal or have another meaning in it.
    holes
        Places of fields in `text`.
    """

    begin: int
    text: str
    forbidden: frozenset[str]
    holes: Sequence[Span]

    def outer(self, outcome: Outcome) -> Outcome:
        """Return the outcome for the source from the outcome for the text: all edits, or none."""
        if any(not self.forbidden.isdisjoint(edit.text) for edit in outcome.edits):
            message = "what becomes of a name does not fit into its literal; rewrite it by hand"
            outcome = Outcome([], [Finding(outcome.edits[0].begin, message)])
        shifted = Outcome()
        shifted.add(outcome, self.begin)
        return shifted


def literal(source: str, begin: int, end: int, node: ast.AST) -> Literal | None:
    """Return the literal between two places; None for bytes, adjacent literals, and literals with escapes."""
    match = _LITERAL.fullmatch(source, begin, end)
    if match is None:
        return None
    prefix, quote, text = match[1].lower(), match[2], match[3]
    holes = [field.span() for field in _FIELD.finditer(text)] if "f" in prefix else []
    plain = _FIELD.sub("", text) if holes else text
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    value_text = "".join(
        value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)
    )
    if value_text != plain or sum(isinstance(value, ast.FormattedValue) for value in values) != len(holes):
        return None
    forbidden = {quote[0], "\\", *("\n\r" if len(quote) == 1 else ""), *("{}" if "f" in prefix else "")}
    return Literal(match.start(3), text, frozenset(forbidden), holes)


def python(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return the outcome for a module, which is parsed only if it names a table. Raises `UnreadableError`."""
    names = {name for name, table in tables.items() if len(table.versions) > 1 or table.metrics}
    if names.isdisjoint(re.findall(r"\w+", text.lower())):
        return Outcome()
    tree = parse(text)
    if tree is None:
        raise UnreadableError("it is no Python that this release of Python reads")
    return of_tree(text, tree, tables, dialects)


def parse(text: str) -> ast.Module | None:
    """Return the tree of a module; None for invalid Python."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text.removeprefix("\ufeff"))
        except (SyntaxError, ValueError, MemoryError):
            return None


def of_tree(text: str, tree: ast.Module, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return the outcome for a parsed module."""
    begins = [0, *(line.end() for line in re.finditer(r"\r\n|\r|\n", text))]

    def place(line: int, column: int) -> int:
        first = begins[line - 1] + (1 if line == 1 and text.startswith("\ufeff") else 0)
        return first + len(text[first : first + column].encode()[:column].decode(errors="ignore"))

    def span(node: ast.AST) -> Span:
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    outcome = Outcome()
    skipped, parts = _skipped(tree), _parts(tree)
    for node in ast.walk(tree):
        if id(node) in skipped or not (value := _value(node)):
            continue
        begin, end = span(node)
        inner = literal(text, begin, end, node) if id(node) not in parts else None
        if inner is not None and SQL.match(inner.text):
            outcome.add(inner.outer(rewrite(inner.text, tables, inner.holes, dialects)))
        elif _may_be_part(value, tables, is_part=id(node) in parts):
            outcome.findings.append(
                Finding(begin, "its SQL is put together of several texts, or has escapes; look at it")
            )
    return outcome


def _value(node: ast.AST) -> str:
    """Return the value of a string, with fields as placeholders; empty for other nodes."""
    values = node.values if isinstance(node, ast.JoinedStr) else [node]
    return "".join(
        "{}" if isinstance(value, ast.FormattedValue) else str(value.value)
        for value in values
        if isinstance(value, ast.FormattedValue) or (isinstance(value, ast.Constant) and isinstance(value.value, str))
    )


def _may_be_part(text: str, tables: Mapping[str, Table], *, is_part: bool) -> bool:
    """Whether a text may be part of a query that uses changed columns. `is_part`: it is concatenated with others."""
    words = set(re.findall(r"\w+", text.lower()))
    named = [table for name, table in tables.items() if is_part or name in words]
    last = {match[1].lower() for match in _LAST_TABLE.finditer(text)}
    is_touched = any(not words.isdisjoint(table.touched) for table in named)
    return (_CLAUSE.search(text) is not None and is_touched) or any(
        name in last and tables[name].touched for name in tables
    )


def _skipped(tree: ast.Module) -> set[int]:
    """Return the ids of docstrings, and of strings within f-strings."""
    nodes: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            nodes.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            nodes |= {id(inner) for value in node.values for inner in ast.walk(value)}
    return nodes


def _parts(tree: ast.Module) -> set[int]:
    """Return the ids of nodes within additions."""
    nodes = (node for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign))
    return {id(inner) for node in nodes if isinstance(node.op, ast.Add) for inner in ast.walk(node)}
