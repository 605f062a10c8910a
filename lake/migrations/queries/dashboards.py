"""Dashboards of Grafana: the SQL of panels, variables and annotations."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.lake.migrations.queries.findings import Finding, Outcome
from ranklake.lake.migrations.queries.json_strings import Path, document, layer, strings
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BEGINS, BLANK, is_about

_SQL_KEYS: Final = frozenset({"rawSql", "rawSQL", "queryText", "rawQueryText"})
"""What has SQL in any JSON of Grafana's: panels by themselves, and alert rules, too."""
_KEYS: Final = _SQL_KEYS | {"query", "definition", "rawQuery", "sql"}
_SQL: Final = re.compile(rf"{BLANK}{BEGINS}", re.IGNORECASE | re.DOTALL)
_PARTS: Final = ("panels", "rows", "elements", "templating")
_HAS_PARTS: Final = re.compile(rf'"(?:{"|".join((*_PARTS, *sorted(_SQL_KEYS)))})"\s*:')
_DEPTH: Final = 3
"""Lists of dashboards, and what wraps them, are looked through so deep."""
_SOURCES: Final[Mapping[str, str]] = {
    "postgres": "postgres",
    "flightsql": "postgres",
    "datafusion": "postgres",
    "duckdb": "duckdb",
    "trino": "trino",
}
"""Dialects, by a part of a data source's type."""


def dashboard(text: str, tables: Mapping[str, Table], dialects: Sequence[str]) -> Outcome:
    """Return what comes of a JSON text; nothing where it is no dashboard. Raises `UnreadableError`."""
    found = Outcome()
    if _HAS_PARTS.search(text) is None:
        return found  # lines of JSON, too, have this ending
    whole = document(text)
    keys = _KEYS if _is_dashboard(whole) else _SQL_KEYS
    for way, begin, end in strings(text):
        if not way:
            continue
        inner = layer(text, begin, end)
        if way[-1] in keys and (way[-1] in _SQL_KEYS or _SQL.match(inner.text)):
            found.add(inner.outer(_query(inner.text, whole, way, tables, dialects)))
        elif not _SQL_KEYS.isdisjoint(re.findall(r"\w+", inner.text)) and is_about(inner.text, tables):
            found.findings.append(Finding(begin, "a query stands within a text here, such as an address; look at it"))
    return found


def _query(
    text: str,
    whole: Any,  # noqa: ANN401 - whatever JSON gives
    way: Path,
    tables: Mapping[str, Table],
    dialects: Sequence[str],
) -> Outcome:
    type_ = _source(whole, way)
    chosen = next((dialect for part, dialect in _SOURCES.items() if part in type_), None)
    if len(dialects) > 1 and chosen in {"duckdb", "trino"}:
        dialects = (chosen,)
    came = rewrite(text, tables, dialects=dialects)
    if type_ and chosen is None and (came.edits or came.findings):
        return Outcome([], [Finding(0, f"its data source is a {type_}; if it asks the lake, rewrite it by hand")])
    around = _at(whole, way[:-1])
    if came.edits and isinstance(around, dict) and around.get("editorMode") == "builder":
        what = "the builder made it, and still has the old columns; open it as code"
        came.findings.append(Finding(0, what, is_note=True))
    return came


def _is_dashboard(whole: Any, depth: int = _DEPTH) -> bool:  # noqa: ANN401 - whatever JSON gives
    """Say whether a value is a dashboard, or has one not too deep in it."""
    if isinstance(whole, dict) and not whole.keys().isdisjoint(_PARTS):
        return True
    inner = whole.values() if isinstance(whole, dict) else whole if isinstance(whole, list) else ()
    return depth > 0 and any(_is_dashboard(one, depth - 1) for one in inner)


def _source(whole: Any, way: Path) -> str:  # noqa: ANN401 - likewise
    """Return the type of the data source that a query asks: what is said nearest to it; empty where nothing is."""
    for length in range(len(way), 0, -1):
        around = _at(whole, way[: length - 1])
        if not isinstance(around, dict):
            continue
        said = around.get("datasource")
        if isinstance(said, dict) and isinstance(said.get("type"), str):
            return str(said["type"]).lower() if said["type"] != "datasource" else ""
        kind = around.get("group") if around.get("kind") == "DataQuery" else around.get("kind")
        if isinstance(kind, str) and (kind.endswith("datasource") or kind in _SOURCES):
            return kind.lower()
    return ""


def _at(whole: Any, way: Path) -> Any:  # noqa: ANN401 - likewise
    for key in way:
        whole = whole[key]
    return whole
