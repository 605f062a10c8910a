"""The pages of the catalog: tables with size and freshness, the columns of each, metrics, and lineage as a drawing."""

from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any, Final

from ranklake.insight.overview.catalog import CatalogState
from ranklake.insight.runs.asking import Answered, Row
from ranklake.views.html.figures import Column, FactTable, Figure, sourced, time_text
from ranklake.views.html.lineage_drawing import BOX_HEIGHT, BOX_WIDTH, drawing
from ranklake.views.html.shell import Entry, Page, digest_of, table_file
from ranklake.views.html.site import Section
from ranklake.views.words import counted, size_text
from ranklake.views.words import time_text as length_text

SECTION: Final = "catalog"
HOME: Final = f"{SECTION}/index.html"
METRICS: Final = f"{SECTION}/metrics.html"
_NEVER: Final = "the catalog was never refreshed"


def _yes(value: bool) -> str:
    return "yes" if value else "no"


_FIGURES: Final = (
    ("tables", "tables", "{table}", None, "That have a contract."),
    ("columns", "columns", "{column}", None, "Of all tables."),
    ("classified_columns", "classified columns", "{column}", None,
     "Of a class other than operational: about somebody, or confidential."),
    ("metrics", "metrics", "{metric}", None, "Registered, and recorded without being so."),
    ("unregistered_metrics", "unregistered metrics", "{metric}", None, "Recorded, and in no registry."),
    ("rows", "rows", "{row}", None, "In live files of all tables."),
    ("stored_bytes", "stored", "By", size_text, "Live files of all tables."),
    ("daily_growth_bytes", "a day adds", "By", size_text, "The mean over seven days, fewer if a table is younger."),
)  # fmt: skip
_TABLES: Final = (
    Column("table", "Name that queries know it by.", "table"),
    Column("kind", "fact: ranks record it; derived: rollups compute it; system: the lake writes it about itself.",
           "kind"),
    Column("rows", "In its live files.", "rows", "{row}", is_number=True),
    Column("stored", "Size of its live files.", "stored_bytes", "By", is_number=True, text=size_text),
    Column("a day adds", "Rows, the mean over seven days.", "daily_growth_rows", "{row}", is_number=True),
    Column("last date", "Latest partition with rows.", "last_date", text=time_text),
    Column("age", "From its last write to the refresh.", "freshness_s", "s", is_number=True, text=length_text),
    Column("columns", "Of its contract.", "column_count", "{column}", is_number=True),
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
    Column("required", "Whether it is never NULL.", "required", text=_yes),
    Column("values", "That are not NULL, in the files that were examined.", "value_count", "{value}", is_number=True),
    Column("stored", "What it takes in all live files.", "stored_bytes", "By", is_number=True, text=size_text),
)
_METRICS: Final = (
    Column("metric", "Its name.", "metric"),
    Column("meaning", "By the registry.", "doc"),
    Column("status", "As the registry has it.", "status"),
    Column("unit", "Of its values.", "unit"),
    Column("kind", "How it counts.", "kind"),
    Column("stored in", "Table and column.", "stored_in"),
    Column("values", "Seen by the refresh.", "seen_values", "{value}", is_number=True),
    Column("last seen", "The latest value.", "last_ts", text=time_text),
    Column("owner", "Team that answers for it.", "owner"),
)
_FLOWS: Final = (
    Column("computed", "Table that was written.", "output_table"),
    Column("from", "Table that was read.", "input_table"),
    Column("partitions", "Dates of the former, or 1 for the whole table.", "partitions", "{partition}", is_number=True),
    Column("last computed", "When it was last written from it.", "computed_ts", text=time_text),
)


def href(table: str) -> str:
    """Return the page of a table, from the site's root."""
    return f"{SECTION}/{table_file(table)}"


def section(found: CatalogState) -> Section:
    """Return the catalog's pages as a section of their own."""
    sums = found.sums.one
    if not found.tables.rows:
        headline, state = "Nothing to tell yet: run ranklake catalog refresh", "unchecked"
    else:
        told = [
            counted(sums["tables"], "table"),
            f"{counted(sums['rows'], 'row')} in {size_text(sums['stored_bytes'])}",
        ]
        told += [counted(sums["metrics"], "metric")]
        odd = sums["unregistered_metrics"]
        told += [f"{odd:,} of them unregistered"] if odd else []
        headline, state = ", ".join(told), "warning" if odd else "passed"
    pages = [Page(HOME, "Catalog", "catalog.html", partial(_facts, found, headline, state), digest_of(found))]
    trail = (("Catalog", HOME),)
    if found.metrics.rows:
        facts = partial(_of_metrics, found)
        pages.append(Page(METRICS, "Metrics", "catalog_table.html", facts, digest_of(found.metrics), trail))
    for row in found.tables.rows:
        name = row["table"]
        digest = digest_of((row, found.columns.get(name), found.flows))
        pages.append(Page(href(name), name, "catalog_table.html", partial(_of_table, found, row), digest, trail))
    entries = [Entry("Catalog", "page", state, HOME)]
    entries += [
        Entry(f"{row['table']} (catalog)", "table", row["kind"], href(row["table"])) for row in found.tables.rows
    ]
    return Section(SECTION, "Catalog", state, headline, HOME, tuple(pages), tuple(entries))


def _facts(found: CatalogState, headline: str, state: str) -> Mapping[str, Any]:
    links = {row["table"]: href(row["table"]) for row in found.tables.rows}
    kinds = {row["table"]: row["kind"] for row in found.tables.rows}
    pairs = [(row["input_table"], row["output_table"]) for row in found.flows.rows]
    return {
        "lake": found.lake,
        "headline": headline,
        "state": state,
        "refreshed": found.sums.one["refreshed_ts"] if found.tables.rows else None,
        "figures": list(_figures(found.sums)) if found.tables.rows else [],
        "metrics": METRICS if found.metrics.rows else "",
        "drawn": drawing(pairs, kinds),
        "box": (BOX_WIDTH, BOX_HEIGHT),
        "tables": [
            FactTable("Tables", sourced("tables", found.tables), _TABLES, ["table"], "tables", found.tables.rows, links,
                      empty=f"None: {_NEVER}."),
            _flows(found, found.flows, links, "Which table is computed from which", "No rollup was computed yet."),
        ],
    }  # fmt: skip


def _figures(sums: Answered) -> Iterator[Figure]:
    source = sourced("sums", sums)
    for name, label, unit, text, definition in _FIGURES:
        value = sums.one[name]
        why = "no table grew yet" if value is None else ""
        mark = "warning" if name == "unregistered_metrics" and value else ""
        shown = text(value) if text is not None and value is not None else ""
        yield Figure(label, value, unit, definition, source, name, mark, why, shown)


def _flows(found: CatalogState, answered: Answered, links: Mapping[str, str], caption: str, empty: str) -> FactTable:
    key = ["output_table", "input_table"]
    return FactTable(caption, sourced("flows", found.flows), _FLOWS, key, "flows", answered.rows, links, empty=empty)


def _of_metrics(found: CatalogState) -> Mapping[str, Any]:
    listed = FactTable("Metrics, the unregistered first", sourced("metrics", found.metrics), _METRICS, ["metric"],
                       "metrics", found.metrics.rows)  # fmt: skip
    return {"told": [], "summary": "What runs record as values of their own, by name.", "tables": [listed]}


def _of_table(found: CatalogState, row: Row) -> Mapping[str, Any]:
    name = row["table"]
    columns = found.columns.get(name, Answered("", (), _NEVER))
    read = sorted({one["input_table"] for one in found.flows.rows if one["output_table"] == name})
    fed = sorted({one["output_table"] for one in found.flows.rows if one["input_table"] == name})
    told = [
        ("kind", row["kind"], ()),
        ("owner", row["owner"], ()),
        ("steward", row["steward"], ()),
        ("retention class", row["retention"], ()),
        ("contract version", str(row["contract_version"]), ()),
        ("partitions", f"{time_text(row['first_date'])} to {time_text(row['last_date'])}", ()),
        ("last written", time_text(row["written_ts"]), ()),
        ("computed from", "" if read else "nothing in the lake", [(one, href(one)) for one in read]),
        ("read by", "" if fed else "no rollup", [(one, href(one)) for one in fed]),
    ]
    listed = FactTable("Columns", sourced("columns", columns), _COLUMNS, ["column"], "columns", columns.rows,
                       empty=f"Unknown: {_NEVER}.")  # fmt: skip
    return {"told": told, "summary": row["summary"], "tables": [listed]}
