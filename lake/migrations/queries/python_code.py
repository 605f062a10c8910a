"""Python: SQL in its string literals. What is put together of several strings is reported, not edited."""

import ast
import re
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BLANK, Edit, Finding, Outcome, Span, UnreadableError, is_about
from ranklake.lake.migrations.queries.tables import Table

SQL: Final = re.compile(
    rf"{BLANK}(?i:(?:\(\s*)*(?:select|with|from|create|insert|explain|copy|pivot|unpivot|update|delete|merge|values)\b"
    r"(?=.*\b(?:from|join|into|using|on|set)\b|.*\bselect\b))"
    rf"|{BLANK}(?:summarize|describe|desc|show|table|copy|from|pivot|unpivot|SUMMARIZE|DESCRIBE|DESC|SHOW|TABLE|COPY|FROM|PIVOT|UNPIVOT)"
    r"\s+(?:(?i:columns|stats|create|table|from|in|for)\s+)*[\w.\"]+\s*;?\s*$",
    re.DOTALL,
)
"""A query; one that is a word and a table is not written with a capital alone, as prose is."""

_CLAUSE: Final = re.compile(r"\b(?:select|from|join|where|group\s+by|order\s+by|having|and|or)\b", re.IGNORECASE)
_LAST_TABLE: Final = re.compile(r"(?:\b(?:FROM|JOIN)|^\s*(?i:from|join))\s+(?:[\w\"]+\.)*\"?(\w+)")
_MAGIC: Final = re.compile(r"(?:^# MAGIC\b[^\n]*(?:\n|$))+", re.MULTILINE)

_OPENS: Final = re.compile(r"(?:\s|#[^\n]*|\\\n)*(?:([A-Za-z]*)(\"\"\"|'''|\"|')|$)")
_CHARACTER: Final = re.compile(
    r"\\(?:\r?\n|[0-7]{1,3}|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*\}|[\\'\"abfnrtv])|.", re.DOTALL
)


@dataclass(slots=True)
class Literal:
    """What adjacent literals say together.

    Attributes
    ----------
    text
        Fields of an f-string stand in it as they are written.
    spans
        Where the source has each character.
    ends
        Where in `text` each literal ends, with its prefix and quotes.
    holes
        Places in `text` of fields.
    """

    text: str = ""
    spans: list[Span] = field(default_factory=list)
    ends: list[tuple[int, str, str]] = field(default_factory=list)
    holes: list[Span] = field(default_factory=list)

    def outer(self, outcome: Outcome) -> Outcome:
        """Return what comes of the text, as what comes of the source; all of its edits, or none."""
        findings = [Finding(self._place(one.place), one.message, one.is_note) for one in outcome.findings]
        edits = [self._edit(edit) for edit in outcome.edits]
        if None in edits:
            message = "a name, or what becomes of it, does not fit into one piece of the text; rewrite it by hand"
            place = self._place(outcome.edits[edits.index(None)].begin)
            return Outcome([], [*(one for one in findings if not one.is_note), Finding(place, message)])
        return Outcome([edit for edit in edits if edit is not None], findings)

    def _edit(self, edit: Edit) -> Edit | None:
        first = edit.begin if edit.begin < edit.end else edit.begin - 1
        last = max(edit.end - 1, first)
        end, prefix, quote = next(piece for piece in self.ends if first < piece[0])
        new = edit.text
        is_broken = len(quote) == 1 and ("\n" in new or "\r" in new)
        if last >= end or ("r" in prefix and (quote[0] in new or "\\" in new or is_broken)):
            return None
        if "r" not in prefix:
            new = new.replace("\\", "\\\\").replace(quote[0], "\\" + quote[0])
            new = new.replace("\n", "\\n").replace("\r", "\\r") if is_broken else new
        new = new.replace("{", "{{").replace("}", "}}") if "f" in prefix else new
        stop = self.spans[last][1]
        return Edit(self.spans[first][0] if edit.begin < edit.end else stop, stop, new)

    def _place(self, place: int) -> int:
        return self.spans[min(place, len(self.spans) - 1)][0] if self.spans else 0


def literal(source: str, begin: int, end: int) -> Literal | None:
    """Return what the literals between two places say; None for bytes, templates, and what is no literal."""
    parts = Literal()
    while begin < end:
        opens = _OPENS.match(source, begin, end)
        if opens is None or (opens[2] and not {"b", "t"}.isdisjoint(opens[1].lower())):
            return None
        if not opens[2]:
            break
        begin = _read(parts, source, opens.end(), end, opens[1].lower(), opens[2])
        if begin > end:
            return None
        parts.ends.append((len(parts.text), opens[1].lower(), opens[2]))
    return parts


def _read(parts: Literal, source: str, begin: int, end: int, prefix: str, quote: str) -> int:
    """Add one literal, whose text begins at a place; return where it ends, which is after the end of a broken one."""
    while begin < end and not source.startswith(quote, begin):
        character = source[begin]
        stop = begin + 1
        decoded = character
        if character == "\\" and "r" in prefix:
            stop = begin + 1 if source.startswith(("{", "}"), begin + 1) else begin + 2
            decoded = source[begin:stop]
        elif character == "\\" and (escape := _CHARACTER.match(source, begin)) is not None and len(escape[0]) > 1:
            stop, decoded = escape.end(), str(ast.literal_eval(f'"""{escape[0]}"""'))
        elif character in "{}" and "f" in prefix and source.startswith(character * 2, begin):
            stop = begin + 2
        elif character == "{" and "f" in prefix:
            stop = _field_end(source, begin, end)
            decoded = source[begin:stop]
            parts.holes.append((len(parts.text), len(parts.text) + len(decoded)))
        is_as_written = len(decoded) == stop - begin
        parts.spans += [(begin + n, begin + n + 1) if is_as_written else (begin, stop) for n in range(len(decoded))]
        parts.text += decoded
        begin = stop
    return begin + len(quote) if begin < end else end + 1


def _field_end(source: str, begin: int, end: int) -> int:
    """Where a field of an f-string ends."""
    depth, quote = 0, ""
    for place in range(begin, end):
        character = source[place]
        if quote:
            quote = "" if character == quote else quote
        elif character in "'\"":
            quote = character
        else:
            depth += (character in "{[(") - (character in "}])")
            if depth == 0:
                return place + 1
    return end


def python(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a module; one that names no table is not even parsed. Raises `UnreadableError`."""
    names = {name for name, table in tables.items() if len(table.versions) > 1 or table.metrics}
    if names.isdisjoint(re.findall(r"\w+", text.lower())):
        return Outcome()
    tree = parse(text)
    if tree is None:
        raise UnreadableError("it is no Python that this release of Python reads")
    return of_tree(text, tree, tables, dialects)


def parse(text: str) -> ast.Module | None:
    """Return the tree of a module; None where it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text.removeprefix("\ufeff"))
        except (SyntaxError, ValueError, MemoryError):
            return None


def of_tree(text: str, tree: ast.Module, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a module whose tree is known."""
    begins = [0, *(line.end() for line in re.finditer(r"\r\n|\r|\n", text))]

    def place(line: int, column: int) -> int:
        first = begins[line - 1] + (1 if line == 1 and text.startswith("\ufeff") else 0)
        return first + len(text[first : first + column].encode()[:column].decode(errors="ignore"))

    def span(node: ast.AST) -> Span:
        return place(node.lineno, node.col_offset), place(node.end_lineno, node.end_col_offset)  # type: ignore[attr-defined]

    outcome = Outcome()
    for cell in _MAGIC.finditer(text):
        if is_about(cell[0], tables):
            message = "a notebook's cell in another language stands in comments here; look at its queries"
            outcome.findings.append(Finding(cell.start(), message))
    passed_over, parts = _passed_over(tree), _parts(tree)
    for node in ast.walk(tree):
        is_text = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))
        inner = literal(text, *span(node)) if is_text and id(node) not in passed_over else None
        if inner is None:
            continue
        if SQL.match(inner.text) and id(node) not in parts:
            outcome.add(inner.outer(rewrite(inner.text, tables, inner.holes, dialects)))
        elif _may_ask(inner.text, tables, is_part=id(node) in parts):
            outcome.findings.append(Finding(span(node)[0], "its SQL is put together of several texts; look at them"))
    return outcome


def _may_ask(text: str, tables: Mapping[str, Table], *, is_part: bool) -> bool:
    """Whether a text that is no whole query may be a part of one that has changed columns."""
    words = set(re.findall(r"\w+", text.lower()))
    named = [table for name, table in tables.items() if is_part or name in words]
    last = {match[1].lower() for match in _LAST_TABLE.finditer(text)}
    is_touched = any(not words.isdisjoint(table.touched) for table in named)
    return (_CLAUSE.search(text) is not None and is_touched) or any(
        name in last and tables[name].touched for name in tables
    )


def _passed_over(tree: ast.Module) -> set[int]:
    """Identities of docstrings, and of strings within f-strings."""
    nodes: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            nodes.add(id(node.value))
        elif isinstance(node, ast.JoinedStr):
            nodes |= {id(inner) for value in node.values for inner in ast.walk(value)}
    return nodes


def _parts(tree: ast.Module) -> set[int]:
    """Identities of what is added to something."""
    sums = (
        node for node in ast.walk(tree) if isinstance(node, ast.BinOp | ast.AugAssign) and isinstance(node.op, ast.Add)
    )
    return {id(inner) for node in sums for inner in ast.walk(node)}
