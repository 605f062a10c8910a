"""Jupyter notebooks: SQL cells, SQL magics, and literals of Python cells. Outputs stay as they are."""

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from ranklake.lake.migrations.queries.findings import Finding, Outcome, UnreadableError
from ranklake.lake.migrations.queries.json_strings import document, layer, strings
from ranklake.lake.migrations.queries.layers import Layer
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.python_code import of_tree, parsed
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BEGINS, is_about

_CELL_MAGIC: Final = re.compile(r"\s*%%(\w+)([^\n]*)(?:\n|$)")
_SQL_CELL: Final = re.compile(r"\s*%(?:sql|dql)[ \t]*\n")
"""How Databricks begins a cell of SQL."""
_SQL_MAGICS: Final = frozenset({"sql", "dql", "duckdb", "trino"})
_PYTHON_MAGICS: Final = frozenset({"time", "timeit", "capture", "prun", "memit"})
_TIMED: Final = re.compile(
    r"^([ \t]*)(%%?(?:time|timeit|prun|memit)\b(?:[ \t]+-\w+(?:[ \t]*\d+)?)*[ \t]+)(?=[^\s-])", re.MULTILINE
)
"""A magic before code of Python's."""
_LINE: Final = re.compile(r"^[ \t]*(?:[\w.,\[\] \t]+=[ \t]*)?[%!?](?:[^\n]*\\\n)*[^\n]*$|^[\w.]+\?+$", re.MULTILINE)
_LINE_SQL: Final = re.compile(rf"%(?:sql|dql)\b[^\n]*?(?<![-\w./:=])(?={BEGINS})((?:[^\n]*\\\n)*[^\n]*)", re.IGNORECASE)
_BEGINS: Final = re.compile(rf"(?<![-\w./:=]){BEGINS}", re.IGNORECASE)


def notebook(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a notebook's JSON. Raises `UnreadableError`."""
    whole = document(text)
    cells = whole.get("cells") if isinstance(whole, dict) else None
    if not isinstance(cells, list):
        raise UnreadableError("it is no notebook of format 4; open it in Jupyter, and save it")
    language = _language(whole)
    found = Outcome()
    for place, source in _sources(text):
        cell = cells[place]
        if isinstance(cell, dict) and cell.get("cell_type") == "code":
            found.add(source.outer(_cell(source.text, _language_of(cell) or language, tables, dialects)))
    return found


def _sources(text: str) -> Iterator[tuple[int, Layer]]:
    """Yield the source of each cell, with the cell's place."""
    place, found = -1, Layer()
    for way, begin, end in strings(text):
        if len(way) in {3, 4} and way[0] == "cells" and way[2] == "source" and isinstance(way[1], int):
            if way[1] != place:
                if place >= 0:
                    yield place, found
                place, found = way[1], Layer()
            found.add(layer(text, begin, end))
    if place >= 0:
        yield place, found


def _language(whole: Mapping[str, Any]) -> str:
    metadata = whole.get("metadata")
    about = metadata if isinstance(metadata, dict) else {}
    for key, name in (("language_info", "name"), ("kernelspec", "language")):
        said = about.get(key)
        if isinstance(said, dict) and isinstance(said.get(name), str):
            return str(said[name]).lower()
    return "python"


def _language_of(cell: Mapping[str, Any]) -> str:
    """Return the language that an editor noted of a cell; empty where none did."""
    metadata = cell.get("metadata")
    about = metadata if isinstance(metadata, dict) else {}
    said = about["vscode"].get("languageId") if isinstance(about.get("vscode"), dict) else about.get("language")
    return said.lower() if isinstance(said, str) else ""


def _cell(text: str, language: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    magic, cell = _CELL_MAGIC.match(text), _SQL_CELL.match(text)
    found = Outcome()
    if magic is not None and magic[1] in _SQL_MAGICS:
        begins = _BEGINS.search(magic[2])
        begin = magic.start(2) + begins.start() if begins is not None else magic.end()
        found.add(rewrite(text[begin:], tables, dialects=dialects), begin)
    elif cell is not None:
        found.add(rewrite(text[cell.end() :], tables, dialects=dialects), cell.end())
    elif language == "sql" and magic is None:
        return rewrite(text, tables, dialects=dialects)
    elif language in {"python", "ipython"} and (magic is None or magic[1] in _PYTHON_MAGICS):
        return _python(text, tables, dialects)
    elif is_about(text, tables):
        found.findings.append(Finding(0, "the cell is in a language that is not read here; look at its queries"))
    return found


def _python(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    found = Outcome()
    tree, code = parsed(text), text
    if tree is None:  # lines that IPython reads, and Python does not
        code = _TIMED.sub(lambda line: line[1] + "1;".ljust(len(line[2])), text)
        asked = {line.start(): line for line in _LINE_SQL.finditer(code)}
        for line in _LINE.finditer(code):
            query = next((one for begin, one in asked.items() if line.start() <= begin < line.end()), None)
            if query is not None:
                found.add(rewrite(query[1].replace("\\\n", " \n"), tables, dialects=dialects), query.start(1))
            elif is_about(line[0], tables):
                found.findings.append(Finding(line.start(), "a line that IPython reads names a table; look at it"))
        code = _LINE.sub(lambda line: _covered(line[0]), code)
        tree = parsed(code)
    if tree is not None:
        found.add(of_tree(code, tree, tables, dialects))
    elif found.edits or is_about(text, tables):
        return Outcome([], [Finding(0, "the cell is no Python that is understood here; look at its queries")])
    return found


def _covered(line: str) -> str:
    """Return a line of the same length, and of as many, that does nothing."""
    indent = len(line) - len(line.lstrip())
    first, *rest = line[indent:].split("\n")
    covered = "0" * len(first) if len(first) < len("pass") else "pass".ljust(len(first))
    return "\n".join([line[:indent] + covered, *(" " * len(one) for one in rest)])
