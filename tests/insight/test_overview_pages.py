"""The pages of the catalog and of the pipeline: numbers equal their SQL, lineage is in order, stages are behind."""

from datetime import timedelta
from pathlib import Path

import altair as alt
import pytest
from page_read import Read, compared
from rollup_inputs import NOON, append

from ranklake.cli import run as command
from ranklake.insight.catalog.refresh import refresh
from ranklake.insight.overview.pipeline import catalog_state, pipeline_state
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.views.html import catalog_pages, pipeline_pages
from ranklake.views.html import site as publishing
from ranklake.views.html.catalog_pages import drawing
from ranklake.views.html.shell import render

HOUR = 3600.0
LOST = ("pipeline", "catalog", "governance")
FLOWS = [("steps", "step_rollup"), ("step_rollup", "mfu"), ("mfu", "goodput"), ("steps", "mfu")]


def ingest(plan, hours, **told):
    """Return an ingest's row of the ledger, some hours after noon."""
    at = NOON + timedelta(hours=hours)
    facts = {"rows_stored": 10, "rows_rejected": 0, "tables": '{"steps": 1}', "segments": 1, **told}
    return {"plan": plan, "kind": "ingest", "created_ts": at - timedelta(seconds=5), "committed_ts": at,
            "date": at.date(), **facts}  # fmt: skip


@pytest.fixture
def lake(tmp_path):
    """Give an empty lake."""
    return Lake.create(str(tmp_path / "lake"))


def lineage(lake, flows=FLOWS, hours=1):
    """Write down that tables were computed from others."""
    append(lake, "lineage", [
        {"output_table": target, "output_partition": "date=2026-03-01", "output_version": 1, "input_table": source,
         "input_partition": "", "transform": target, "ts": NOON + timedelta(hours=hours), "date": NOON.date()}
        for source, target in flows
    ])  # fmt: skip


def test_the_catalog_lists_tables_columns_classes_and_lineage(lake):
    """Each table has a page with its columns and classes, what it is computed from and who reads it; SQL agrees."""
    lineage(lake)
    refresh(lake)
    made = catalog_pages.section(catalog_state(lake))
    pages = {page.path: render(page).decode() for page in made.pages}
    home = pages[catalog_pages.HOME]
    assert compared(lake, home) > 300
    assert home.count("<rect ") == 4
    for table in ("steps", "runs", "mfu"):
        assert f'href="../{catalog_pages.href(table)}"' in home
        assert compared(lake, pages[catalog_pages.href(table)]) > 50
    assert compared(lake, pages[catalog_pages.METRICS]) > 50
    mfu = pages[catalog_pages.href("mfu")]
    assert [f'table-{name}.html">{name}</a>' in mfu for name in ("steps", "step_rollup", "goodput")] == [True] * 3
    rows = Read(pages[catalog_pages.href("runs")]).rows["columns"]
    assert "personal" in {row["class"] for row in rows}
    assert max(map(len, pages.values())) < 500_000


def test_a_lake_without_a_catalog_says_what_to_run(lake):
    """One page, with the command; the pipeline's says that no stage did anything."""
    made = catalog_pages.section(catalog_state(lake))
    assert [page.path for page in made.pages] == [catalog_pages.HOME]
    assert "ranklake catalog refresh" in made.headline
    compared(lake, render(made.pages[0]).decode())
    made = pipeline_pages.section(pipeline_state(lake, HOUR))
    assert made.headline == "No stage of the pipeline has run yet"
    compared(lake, render(made.pages[0]).decode())


def test_a_table_stands_right_of_what_it_was_computed_from():
    """Also where it is computed from tables of several layers; a cycle is drawn, and nothing is drawn without flows."""
    places = {one.name: one.x for one in drawing(FLOWS, {}).boxes}
    assert places["steps"] < places["step_rollup"] < places["mfu"] < places["goodput"]
    assert len({(one.x, one.y) for one in drawing([("a", "b"), ("b", "a"), ("a", "a")], {}).boxes}) == 2
    assert drawing([], {}) is None


def test_nothing_is_drawn_of_what_no_ingest_tells(lake):
    """Without numbers of rows there is no chart of rows: a chart of nothing has no extent."""
    append(lake, "ingest_plans", [ingest(1, 0, rows_stored=None, rows_rejected=None)])
    (page,) = pipeline_pages.section(pipeline_state(lake, HOUR)).pages
    assert [spec["data"]["values"][0]["part"] for spec in Read(render(page).decode()).specs] == ["longest"]


def test_stages_are_behind_what_came_since_they_last_wrote(lake):
    """Rows that came after the last check wait, and are overdue after an hour; rollups wait for tables they read."""
    append(lake, "ingest_plans", [
        ingest(1, 0), ingest(2, 2), ingest(3, 4, tables='{"logs": 2}', rows_rejected=3), ingest(4, 4.5, rows_stored=0),
    ])  # fmt: skip
    lineage(lake, hours=2.5)
    found = pipeline_state(lake, HOUR)
    told = {row["stage"]: (row["state"], row["waiting_ingests"], row["behind_s"]) for row in found.stages.rows}
    assert told["ingest"] == ("up to date", None, None)
    assert told["check"] == ("overdue", 3, 4.5 * HOUR)
    assert told["rollup"] == ("up to date", 0, None)
    assert told["catalog"] == ("waiting", 3, 4.5 * HOUR)
    assert told["upkeep"] == ("never ran", None, None)
    (page,) = pipeline_pages.section(found).pages
    text = render(page).decode()
    assert compared(lake, text) > 40
    assert "check overdue" in text
    for spec in Read(text).specs:
        alt.Chart.from_dict(spec)


def test_a_section_that_cannot_be_made_costs_itself_alone(lake, tmp_path, monkeypatch, capfd):
    """A data file is gone: pages that read it say so, the others are there, and the command exits 1 and names it."""
    monkeypatch.setattr(publishing, "library", lambda: b"")
    refresh(lake)
    (file,) = (Path(lake.store.root) / "tables" / "catalog_tables").glob("date=*/*.parquet")
    file.unlink()
    out = tmp_path / "site"
    assert command(["report", "--lake", lake.uri, "--out", str(out)]) == 1
    printed = capfd.readouterr().err.splitlines()
    assert [line.split(" cannot")[0] for line in printed] == [f"report: {one}" for one in LOST]
    assert all("a data file is missing" in line for line in printed)
    for section in SECTIONS:
        page = (out / section / "index.html").read_text()
        assert ("This section cannot be made: a data file is missing" in page) is (section in LOST), section
