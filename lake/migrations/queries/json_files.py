"""JSON files with queries: Grafana dashboards and notebooks. Only the strings with queries are edited."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate, groupby
from typing import Any, Final

from ranklake.lake.migrations.queries import python_code
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import (
    BEGINS,
    BLANK,
    Edit,
    Finding,
    Outcome,
    UnreadableError,
    apply_edits,
    may_query_changes,
)
from ranklake.lake.migrations.queries.tables import Table

Path = tuple[str | int, ...]
"""Keys and indices from the root to a value."""

_TOKEN: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)

_SQL_KEYS: Final = frozenset({"rawSql", "rawSQL", "queryText", "rawQueryText"})
"""Keys whose values are always SQL in Grafana's JSON, in panels and in alert rules."""
_KEYS: Final = _SQL_KEYS | {"query", "definition", "rawQuery", "sql"}
_SQL: Final = re.compile(rf"{BLANK}{BEGINS}", re.IGNORECASE | re.DOTALL)
_PARTS: Final = ("panels", "rows", "elements", "templating")
_HAS_PARTS: Final = re.compile(rf'"(?:{"|".join((*_PARTS, *sorted(_SQL_KEYS)))})"\s*:')
_SOURCES: Final[Mapping[str, str]] = {
    "postgres": "postgres",
    "flightsql": "postgres",
    "datafusion": "postgres",
    "duckdb": "duckdb",
    "trino": "trino",
}
"""sqlglot's dialects by a part of a data source's type."""

_SQL_MAGIC: Final = re.compile(r"\s*(?:%%(?:sql|dql|duckdb|trino)\b[^\n]*|%(?:sql|dql)[ \t]*)(?:\n|$)")
_MAGIC: Final = re.compile(r"\s*%%(?!(?:time|timeit|capture|prun|memit)\b)")
"""The first line of a cell in another language than the notebook's."""
_LINE: Final = re.compile(r"^[ \t]*(?:[\w.,\[\] \t]+=[ \t]*)?[%!?](?:[^\n]*\\\n)*[^\n]*$|^[\w.]+\?+$", re.MULTILINE)
"""Lines that are valid in IPython but not in Python."""


def strings(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield path, begin and end of each string value in a JSON text, quotes included."""
    path: list[list[Any]] = []  # for each level: whether it is an object, and its key or index; None before a key
    for token in _TOKEN.finditer(text):
        word = token[0]
        if word in {"{", "["}:
            path.append([word == "{", None if word == "{" else 0])
        elif word in {"}", "]"}:
            path.pop()
        elif word == ",":
            is_object, key = path[-1]
            path[-1][1] = None if is_object else key + 1
        elif word.startswith('"'):
            if path and path[-1] == [True, None]:
                path[-1][1] = json.loads(word)
            else:
                yield tuple(key for _, key in path), token.start(), token.end()


def _document(text: str) -> Any:  # noqa: ANN401 - any JSON value
    try:
        return json.loads(text)
    except ValueError as error:
        raise UnreadableError(f"it is no JSON (line {getattr(error, 'lineno', 1)})") from None


def _replace_string(text: str, begin: int, end: int, new: str) -> Edit:
    """Return the edit that replaces a JSON string, in ASCII if the old string is."""
    return Edit(begin, end, json.dumps(new, ensure_ascii=text[begin:end].isascii()))


def dashboard(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return the outcome for a dashboard; an empty one for other JSON. Raises `UnreadableError`."""
    outcome = Outcome()
    if _HAS_PARTS.search(text) is None:
        return outcome  # no dashboard, perhaps not even one JSON document
    document = _document(text)
    for path, begin, end in strings(text):
        value = json.loads(text[begin:end])
        if path and path[-1] in _KEYS and (path[-1] in _SQL_KEYS or _SQL.match(value)):
            inner = _query(value, document, path, tables, dialects)
            outcome.findings += [Finding(begin, finding.message, finding.is_note) for finding in inner.findings]
            if inner.edits:
                outcome.edits.append(_replace_string(text, begin, end, apply_edits(value, inner.edits)))
        elif not _SQL_KEYS.isdisjoint(re.findall(r"\w+", value)) and may_query_changes(value, tables):
            outcome.findings.append(Finding(begin, "a text here contains a query, such as a URL does; look at it"))
    return outcome


def _query(text: str, document: Any, path: Path, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:  # noqa: ANN401 - JSON
    """Return the outcome for a query of a dashboard, in the dialect of its data source."""
    type_ = _data_source(document, path)
    dialect = next((dialect for part, dialect in _SOURCES.items() if part in type_), None)
    if len(dialects) > 1 and dialect in {"duckdb", "trino"}:
        dialects = (dialect,)
    outcome = rewrite(text, tables, dialects=dialects)
    if type_ and dialect is None and (outcome.edits or outcome.findings):
        return Outcome([], [Finding(0, f"its data source is a {type_}; if it asks the lake, rewrite it by hand")])
    return outcome


def _data_source(document: Any, path: Path) -> str:  # noqa: ANN401 - JSON
    """Return the type of the data source that is nearest to a query; empty if there is none."""
    for node in reversed([*accumulate(path[:-1], lambda value, key: value[key], initial=document)]):
        if not isinstance(node, dict):
            continue
        source = node.get("datasource")
        if isinstance(source, dict) and isinstance(source.get("type"), str):
            return str(source["type"]).lower() if source["type"] != "datasource" else ""
        kind = node.get("group") if node.get("kind") == "DataQuery" else node.get("kind")
        if isinstance(kind, str) and (kind.endswith("datasource") or kind in _SOURCES):
            return kind.lower()
    return ""


def notebook(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return the outcome for a notebook. Outputs are not edited. Raises `UnreadableError`."""
    document = _document(text)
    cells = document.get("cells") if isinstance(document, dict) else None
    if not isinstance(cells, list):
        raise UnreadableError("it is no notebook of format 4; open it in Jupyter, and save it")
    metadata = document.get("metadata", {})
    language = metadata.get("language_info", {}).get("name") or metadata.get("kernelspec", {}).get("language")
    sources = (source for source in strings(text) if source[0][:1] == ("cells",) and source[0][2:3] == ("source",))
    outcome = Outcome()
    for place, lines in groupby(sources, key=lambda source: int(source[0][1])):
        if cells[place].get("cell_type") != "code":
            continue
        spans = [(begin, end) for _, begin, end in lines]
        values = [json.loads(text[begin:end]) for begin, end in spans]
        inner = _cell("".join(values), str(language or "python").lower(), tables, dialects)
        outcome.add(_in_lines(text, spans, values, inner))
    return outcome


def _in_lines(text: str, spans: Sequence[tuple[int, int]], values: Sequence[str], inner: Outcome) -> Outcome:
    """Return the outcome for the JSON strings of a cell, its lines, from the outcome for its text."""
    outcome, begin = Outcome(), 0
    for span, value in zip(spans, values, strict=True):
        end = begin + len(value)
        edits = [edit for edit in inner.edits if begin <= edit.begin < end]
        if any(edit.end > end for edit in edits):
            return Outcome(
                [], [Finding(span[0], "a name stands in two lines of the notebook's file; rewrite it by hand")]
            )
        if edits:
            own = [Edit(edit.begin - begin, edit.end - begin, edit.text) for edit in edits]
            outcome.edits.append(_replace_string(text, *span, apply_edits(value, own)))
        findings = (finding for finding in inner.findings if begin <= finding.place < end)
        outcome.findings += [Finding(span[0], finding.message, finding.is_note) for finding in findings]
        begin = end
    return outcome


def _cell(text: str, language: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    outcome = Outcome()
    magic = _SQL_MAGIC.match(text)
    if magic is not None or (language == "sql" and _MAGIC.match(text) is None):
        begin = magic.end() if magic is not None else 0
        outcome.findings += _beside_magic(text[:begin], 0, tables)
        outcome.add(rewrite(text[begin:], tables, dialects=dialects), begin)
    elif language in {"python", "ipython"} and _MAGIC.match(text) is None:
        return _python(text, tables, dialects)
    elif may_query_changes(text, tables):
        outcome.findings.append(Finding(0, "the cell is in a language that is not read here; look at its queries"))
    return outcome


def _python(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    outcome = Outcome()
    tree, code = python_code.parse(text), text
    if tree is None:
        for line in _LINE.finditer(code):
            outcome.findings += _beside_magic(line[0], line.start(), tables)
        code = _LINE.sub(lambda line: _blank(line[0]), code)
        tree = python_code.parse(code)
    if tree is not None:
        outcome.add(python_code.of_tree(code, tree, tables, dialects))
    elif may_query_changes(text, tables):
        return Outcome([], [Finding(0, "the cell is no Python that is understood here; look at its queries")])
    return outcome


def _beside_magic(line: str, place: int, tables: Mapping[str, Table]) -> Iterator[Finding]:
    """Yield a finding if a line with IPython syntax names a changed table."""
    words = set(re.findall(r"\w+", line.lower()))
    if any(name in words and table.touched for name, table in tables.items()):
        yield Finding(place, "a line that IPython reads names a table; look at it")


def _blank(line: str) -> str:
    """Return Python code without effect that has the same length and number of lines."""
    indent = len(line) - len(line.lstrip())
    first, *rest = line[indent:].split("\n")
    covered = "0" * len(first) if len(first) < len("pass") else "pass".ljust(len(first))
    return "\n".join([line[:indent] + covered, *(" " * len(more) for more in rest)])
