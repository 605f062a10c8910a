"""The pages of the catalog: tables with size and freshness, their columns, metrics, and a drawing of the lineage."""

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

from ranklake.insight.overview.pipeline import CatalogState
from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.printable import counted
from ranklake.views.html.figures import Column, Measure, answer_table, figures, time_text
from ranklake.views.html.shell import Entry, Page, digest_of, table_file
from ranklake.views.html.site import Section
from ranklake.views.words import size_text

SECTION: Final = "catalog"
HOME: Final = f"{SECTION}/index.html"
METRICS: Final = f"{SECTION}/metrics.html"
_NEVER: Final = "the catalog was never refreshed"


def _yes_or_no(value: bool) -> str:
    return "yes" if value else "no"


_MEASURES: Final = (
    Measure("tables", "tables", "{table}", "That have a contract."),
    Measure("columns", "columns", "{column}", "Of all tables."),
    Measure("classified_columns", "classified columns", "{column}",
            "Of a class other than operational: about somebody, or confidential."),
    Measure("metrics", "metrics", "{metric}", "Registered, and recorded without being so."),
    Measure("unregistered_metrics", "unregistered metrics", "{metric}", "Recorded, and in no registry.",
            state="warning"),
    Measure("rows", "rows", "{row}", "In live files of all tables."),
    Measure("stored_bytes", "stored", "By", "Live files of all tables.", size_text),
    Measure("daily_growth_bytes", "a day adds", "By", "The mean over seven days, fewer if a table is younger.",
            size_text, "no table grew yet"),
)  # fmt: skip
_TABLES: Final = (
    Column("table", "Name that queries know it by.", "table"),
    Column("kind", "fact: ranks record it; derived: rollups compute it; system: the lake writes it about itself.",
           "kind"),
    Column.number("rows", "In its live files.", "rows", "{row}"),
    Column.size("stored", "Size of its live files.", "stored_bytes"),
    Column.number("a day adds", "Rows, the mean over seven days.", "daily_growth_rows", "{row}"),
    Column.moment("last date", "Latest partition with rows.", "last_date"),
    Column.seconds("age", "From its last write to the refresh.", "freshness_s"),
    Column.number("columns", "Of its contract.", "column_count", "{column}"),
    Column("retention", "Class that determines how long its rows are kept.", "retention"),
    Column("owner", "Team that answers for it.", "owner"),
)  # fmt: skip
_COLUMNS: Final = (
    Column("column", "Name that queries know it by.", "column"),
    Column("meaning", "By the contract.", "doc"),
    Column("type", "Of its values, as the contract names it.", "type"),
    Column("unit", "Of its values.", "unit"),
    Column("class", "Whom its values are about.", "class"),
    Column("mask", "How those without clearance see it.", "mask"),
    Column("required", "Whether it is never NULL.", "required", text=_yes_or_no),
    Column.number("values", "That are not NULL, in the files that were examined.", "value_count", "{value}"),
    Column.size("stored", "What it takes in all live files.", "stored_bytes"),
)
_METRICS: Final = (
    Column("metric", "Its name.", "metric"),
    Column("meaning", "By the registry.", "doc"),
    Column("status", "As the registry has it.", "status"),
    Column("unit", "Of its values.", "unit"),
    Column("kind", "How it counts.", "kind"),
    Column("stored in", "Table and column.", "stored_in"),
    Column.number("values", "Seen by the refresh.", "seen_values", "{value}"),
    Column.moment("last seen", "The latest value.", "last_ts"),
    Column("owner", "Team that answers for it.", "owner"),
)
_FLOWS: Final = (
    Column("computed", "Table that was written.", "output_table"),
    Column("from", "Table that was read.", "input_table"),
    Column.number("partitions", "Dates of the former, or 1 for the whole table.", "partitions", "{partition}"),
    Column.moment("last computed", "When it was last written from it.", "computed_ts"),
)


def href(table: str) -> str:
    """Return the page of a table, from the site's root."""
    return f"{SECTION}/{table_file(table)}"


def section(catalog: CatalogState) -> Section:
    """Return the catalog's pages as a section of their own."""
    sums = catalog.sums.first_row
    if not catalog.tables.rows:
        headline, state = "Nothing to tell yet: run ranklake catalog refresh", "unchecked"
    else:
        odd = sums["unregistered_metrics"]
        stored = f"{counted(sums['rows'], 'row')} in {size_text(sums['stored_bytes'])}"
        facts = [counted(sums["tables"], "table"), stored, counted(sums["metrics"], "metric")]
        facts += [f"{odd:,} of them unregistered"] if odd else []
        headline, state = ", ".join(facts), "warning" if odd else "passed"
    pages = [Page(HOME, "Catalog", "catalog.html", partial(_parts, catalog, headline, state), digest_of(catalog))]
    trail = (("Catalog", HOME),)
    if catalog.metrics.rows:
        metrics = partial(_metrics_parts, catalog)
        pages.append(Page(METRICS, "Metrics", "catalog_table.html", metrics, digest_of(catalog.metrics), trail))
    entries = [Entry("Catalog", "page", state, HOME)]
    for row in catalog.tables.rows:
        name = row["table"]
        digest = digest_of((row, catalog.columns.get(name), catalog.flows))
        pages.append(Page(href(name), name, "catalog_table.html", partial(_table_parts, catalog, row), digest, trail))
        entries.append(Entry(f"{name} (catalog)", "table", row["kind"], href(name)))
    return Section(SECTION, "Catalog", state, headline, HOME, tuple(pages), tuple(entries))


def _parts(catalog: CatalogState, headline: str, state: str) -> Mapping[str, Any]:
    has_rows = bool(catalog.tables.rows)
    links = {row["table"]: href(row["table"]) for row in catalog.tables.rows}
    kinds = {row["table"]: row["kind"] for row in catalog.tables.rows}
    pairs = [(row["input_table"], row["output_table"]) for row in catalog.flows.rows]
    flows, none = "Which table is computed from which", "No rollup was computed yet."
    key = ["output_table", "input_table"]
    return {
        "lake": catalog.lake,
        "headline": headline,
        "state": state,
        "refreshed": catalog.sums.first_row["refreshed_ts"] if has_rows else None,
        "figures": list(figures("sums", catalog.sums, _MEASURES)) if has_rows else [],
        "metrics": METRICS if catalog.metrics.rows else "",
        "drawn": drawing(pairs, kinds),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "tables": [
            answer_table("tables", "Tables", catalog.tables, ["table"], _TABLES, f"None: {_NEVER}.", links=links),
            answer_table("flows", flows, catalog.flows, key, _FLOWS, none, links=links),
        ],
    }


def _metrics_parts(catalog: CatalogState) -> Mapping[str, Any]:
    table = answer_table("metrics", "Metrics, the unregistered first", catalog.metrics, ["metric"], _METRICS)
    return {"facts": [], "summary": "What runs record as values of their own, by name.", "tables": [table]}


def _table_parts(catalog: CatalogState, row: Row) -> Mapping[str, Any]:
    name = row["table"]
    columns = catalog.columns.get(name, QueriedFacts("", (), _NEVER))
    flows = catalog.flows.rows
    inputs = sorted({flow["input_table"] for flow in flows if flow["output_table"] == name})
    outputs = sorted({flow["output_table"] for flow in flows if flow["input_table"] == name})
    facts = [
        ("kind", row["kind"], ()),
        ("owner", row["owner"], ()),
        ("steward", row["steward"], ()),
        ("retention class", row["retention"], ()),
        ("contract version", str(row["contract_version"]), ()),
        ("partitions", f"{time_text(row['first_date'])} to {time_text(row['last_date'])}", ()),
        ("last written", time_text(row["written_ts"]), ()),
        ("computed from", "" if inputs else "nothing in the lake", [(table, href(table)) for table in inputs]),
        ("read by", "" if outputs else "no rollup", [(table, href(table)) for table in outputs]),
    ]
    table = answer_table("columns", "Columns", columns, ["column"], _COLUMNS)
    return {"facts": facts, "summary": row["summary"], "tables": [table]}


BOX_WIDTH: Final = 134
BOX_HEIGHT: Final = 26
_ACROSS: Final = 54
_DOWN: Final = 18
_SWEEPS: Final = 4


@dataclass(frozen=True, slots=True)
class Box:
    """Box of a table: its upper left corner, and its kind, which determines the colour."""

    name: str
    x: int
    y: int
    kind: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Boxes, the curves between them as one SVG path, and the total size."""

    boxes: tuple[Box, ...]
    curves: str
    width: int
    height: int


def drawing(flows: Iterable[tuple[str, str]], kinds: Mapping[str, str]) -> Drawing | None:
    """Return the drawing of flows from one table to another; None without any.

    A table is to the right of its inputs; in a cycle, which should not occur, the last flow is ignored. Tables of a
    layer are ordered by their neighbours, so that few curves cross.
    """
    into: defaultdict[str, set[str]] = defaultdict(set)
    out: defaultdict[str, set[str]] = defaultdict(set)
    for source, target in flows:
        if source != target:
            into[target].add(source)
            out[source].add(target)
    layers: defaultdict[int, list[str]] = defaultdict(list)
    levels: dict[str, int] = {}
    for name in sorted({*into, *out}):
        layers[_level(name, into, levels, ())].append(name)
    if not layers:
        return None
    for sweep in range(_SWEEPS):
        near = into if sweep % 2 == 0 else out
        place = {name: at / len(names) for names in layers.values() for at, name in enumerate(names)}
        for names in layers.values():
            names.sort(key=lambda name: (_mean([place[one] for one in near[name]], place[name]), name))
    height = max(map(len, layers.values())) * (BOX_HEIGHT + _DOWN)
    boxes = {}
    for level, names in layers.items():
        for at, name in enumerate(names):
            y = (2 * at + 1) * height // (2 * len(names)) - BOX_HEIGHT // 2
            boxes[name] = Box(name, level * (BOX_WIDTH + _ACROSS), y, kinds.get(name, "fact"))
    curves = "".join(_curve(boxes[one], boxes[name]) for name in sorted(into) for one in sorted(into[name]))
    width = max(layers) * (BOX_WIDTH + _ACROSS) + BOX_WIDTH
    return Drawing(tuple(boxes.values()), curves, width, height)


def _level(name: str, into: Mapping[str, set[str]], levels: dict[str, int], above: tuple[str, ...]) -> int:
    if name not in levels:
        sources = [one for one in sorted(into.get(name, ())) if one not in {*above, name}]
        levels[name] = 1 + max((_level(one, into, levels, (*above, name)) for one in sources), default=-1)
    return levels[name]


def _mean(places: list[float], own: float) -> float:
    return sum(places) / len(places) if places else own


def _curve(source: Box, target: Box) -> str:
    begin, end, middle = source.x + BOX_WIDTH, target.x, _ACROSS // 2
    high, low = source.y + BOX_HEIGHT // 2, target.y + BOX_HEIGHT // 2
    return f"M{begin} {high}C{begin + middle} {high} {end - middle} {low} {end} {low}"
