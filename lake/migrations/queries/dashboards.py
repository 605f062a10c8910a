"""Dashboards of Grafana: the SQL of panels, variables and annotations."""

import re
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ranklake.lake.migrations.queries.findings import Finding, Outcome
from ranklake.lake.migrations.queries.json_strings import Path, document, layer, strings
from ranklake.lake.migrations.queries.meanings import Table
from ranklake.lake.migrations.queries.rewrite import rewrite
from ranklake.lake.migrations.queries.statements import BLANK

_KEYS: Final = frozenset({"rawSql", "rawSQL", "queryText", "rawQueryText", "query", "definition", "rawQuery", "sql"})
_SQL: Final = re.compile(rf"{BLANK}(?:select|with)\b", re.IGNORECASE | re.DOTALL)
_PARTS: Final = ("panels", "rows", "elements", "templating")
_HAS_PARTS: Final = re.compile(rf'"(?:{"|".join(_PARTS)})"\s*:')
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
    if not _is_dashboard(whole):
        return found
    for way, begin, end in strings(text):
        if way and way[-1] in _KEYS:
            inner = layer(text, begin, end)
            if _SQL.match(inner.text):
                found.add(inner.outer(_query(inner.text, whole, way, tables, dialects)))
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


def _is_dashboard(whole: Any) -> bool:  # noqa: ANN401 - whatever JSON gives
    inner = whole.get("dashboard", whole.get("spec", whole)) if isinstance(whole, dict) else None
    return isinstance(inner, dict) and not inner.keys().isdisjoint(_PARTS)


def _source(whole: Any, way: Path) -> str:  # noqa: ANN401 - likewise
    """Return the type of the data source that a query asks: what is said nearest to it; empty where nothing is."""
    for length in range(len(way), 0, -1):
        around = _at(whole, way[: length - 1])
        said = around.get("datasource") if isinstance(around, dict) else None
        if isinstance(said, dict) and isinstance(said.get("type"), str):
            return str(said["type"]).lower() if said["type"] != "datasource" else ""
    return ""


def _at(whole: Any, way: Path) -> Any:  # noqa: ANN401 - likewise
    for key in way:
        whole = whole[key]
    return whole
