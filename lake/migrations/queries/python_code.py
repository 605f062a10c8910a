"""Python: SQL in its literals. What is put together of several is told, not edited."""

import ast
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from ranklake.lake.migrations.queries.findings import Finding, Outcome, UnreadableError
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.python_strings import literal, places
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BLANK, is_about

SQL: Final = re.compile(
    rf"{BLANK}(?i:(?:\(\s*)*(?:select|with|from|create|insert|explain|copy|pivot|unpivot|update|delete|merge|values)\b"
    r"(?=.*\b(?:from|join|into|using|on|set)\b|.*\bselect\b))"
    rf"|{BLANK}(?:summarize|describe|desc|show|table|copy|from|pivot|unpivot|SUMMARIZE|DESCRIBE|DESC|SHOW|TABLE|COPY|FROM|PIVOT|UNPIVOT)"
    r"\s+(?:(?i:columns|stats|create|table|from|in|for)\s+)*[\w.\"]+\s*;?\s*$",
    re.DOTALL,
)
"""A query; one that is a word and a table is not written with a capital alone, as prose is."""
_PIECE: Final = re.compile(r"\b(?:select|from|join|where|group\s+by|order\s+by|having|and|or)\b", re.IGNORECASE)
_END: Final = re.compile(r"(?:\b(?:FROM|JOIN)|^\s*(?i:from|join))\s+(?:[\w\"]+\.)*\"?(\w+)")
_MAGIC: Final = re.compile(r"(?:^# MAGIC\b[^\n]*(?:\n|$))+", re.MULTILINE)
_BUILT: Final = "its SQL is put together of several texts; look at them"

Text = ast.Constant | ast.JoinedStr


@dataclass(slots=True)
class _Seen:
    """Strings of a module, by what is done with them.

    Attributes
    ----------
    whole
        Those that stand for themselves.
    built
        Those that are part of a sum, with the sum's own.
    """

    whole: list[Text] = field(default_factory=list)
    built: list[list[Text]] = field(default_factory=list)


def python(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a module; one that names no table is not even parsed. Raises `UnreadableError`."""
    if set(re.findall(r"\w+", text.lower())).isdisjoint(
        name for name, one in tables.items() if len(one.versions) > 1 or one.metrics
    ):
        return Outcome()
    tree = parsed(text)
    if tree is None:
        raise UnreadableError("it is no Python that this release of Python reads")
    return of_tree(text, tree, tables, dialects)


def parsed(text: str) -> ast.Module | None:
    """Return the tree of a module; None where it is none."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return ast.parse(text.removeprefix("\ufeff"))
        except (SyntaxError, ValueError, MemoryError):
            return None


def of_tree(text: str, tree: ast.Module, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a module whose tree is known."""
    begins = list(places(text))
    shift = 1 if text.startswith("\ufeff") else 0
    lines = [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]

    def place(line: int, column: int) -> int:
        first = shift if line == 1 else 0
        return begins[line - 1] + first + len(lines[line - 1][first:].encode("utf-8")[:column].decode("utf-8"))

    def span(node: Text) -> tuple[int, int]:
        return place(node.lineno, node.col_offset), place(node.end_lineno or 0, node.end_col_offset or 0)

    seen = _seen(tree)
    found = Outcome()
    for cell in _MAGIC.finditer(text):
        if is_about(cell[0], tables):
            what = "a notebook's cell in another language stands in comments here; look at its queries"
            found.findings.append(Finding(cell.start(), what))
    for node in seen.whole:
        inner = literal(text, *span(node))
        if inner is not None and SQL.match(inner.text):
            found.add(inner.outer(rewrite(inner.text, tables, inner.holes, dialects)))
        elif inner is not None and _is_fragment(inner.text, tables):
            found.findings.append(Finding(span(node)[0], _BUILT))
    for group in seen.built:
        inners = [inner for node in group if (inner := literal(text, *span(node))) is not None]
        if inners and _is_asked(" ".join(inner.text for inner in inners), tables):
            found.findings.append(Finding(span(group[0])[0], _BUILT))
    return found


def _is_fragment(text: str, tables: Mapping[str, Table]) -> bool:
    """Say whether a text may be the end of a query of a table whose columns changed."""
    names = {found[1].lower() for found in _END.finditer(text)}
    return any(table.touched for name, table in tables.items() if name in names)


def _is_asked(text: str, tables: Mapping[str, Table]) -> bool:
    words = set(re.findall(r"\w+", text.lower()))
    touched = {one for table in tables.values() for one in table.touched}
    return _PIECE.search(text) is not None and not words.isdisjoint(touched) and not words.isdisjoint(tables)


def _seen(tree: ast.Module) -> _Seen:
    found = _Seen()
    taken: set[int] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            taken.add(id(node.value))  # a docstring
        elif _is_sum(node) and id(node) not in taken:
            taken |= {id(one) for one in ast.walk(node)}
            found.built.append(list(_texts(node)))
        elif isinstance(node, ast.JoinedStr):
            taken |= {id(one) for value in node.values for one in ast.walk(value)}
    for texts in _grown(tree).values():
        taken |= {id(one) for one in texts}
        found.built.append(texts)
    found.whole = [node for node in ast.walk(tree) if isinstance(node, Text) and _says(node) and id(node) not in taken]
    found.built = [sorted(texts, key=lambda one: (one.lineno, one.col_offset)) for texts in found.built if texts]
    return found


def _grown(tree: ast.Module) -> dict[str, list[Text]]:
    """Return the strings of variables to which something is added later, by the variable's name."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.AugAssign) and isinstance(node.op, ast.Add) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
        elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
            names |= {one.id for one in (node.left, node.right) if isinstance(one, ast.Name)}
    found: dict[str, list[Text]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign) and node.value is not None:
            for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                if isinstance(target, ast.Name) and target.id in names:
                    found.setdefault(target.id, []).extend(_texts(node.value))
    return found


def _is_sum(node: ast.AST) -> bool:
    return isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add)


def _texts(node: ast.AST) -> Iterator[Text]:
    """Yield the strings within a value, those within f-strings left out."""
    if isinstance(node, Text):
        if _says(node):
            yield node
        return
    for child in ast.iter_child_nodes(node):
        yield from _texts(child)


def _says(node: Text) -> bool:
    return isinstance(node, ast.JoinedStr) or isinstance(node.value, str)
