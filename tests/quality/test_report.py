"""The quality report: facts from SQL, and pages that show the same numbers and nothing that data could smuggle in."""

import re
from datetime import timedelta

import altair as alt
import pytest
from governed import under
from page_read import Read, compared
from segments import DAY, step_rows

from ranklake.lake.plans.plan import append_own
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.check import run_checks
from ranklake.quality.release import apply, approve, plan_release
from ranklake.quality.report.gather import NEVER, gather
from ranklake.quality.report.state import worst_state
from ranklake.quality.results import incidents
from ranklake.retention.proposals.releases import holds
from ranklake.views.html import site as publishing
from ranklake.views.html.charts import library
from ranklake.views.html.quality_pages import section, sparkline
from ranklake.views.html.shell import render
from ranklake.views.html.site import MANIFEST, NotASiteError, publish

SMALL_LOSS = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 0.5}
"""
EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\u202e"


@pytest.fixture
def checked(site):
    """Give a site of three dates: one sound, one with failing and errored checks, one that was never checked."""
    overlay = site.overlay(steps=SMALL_LOSS)
    site.bring(step_rows(50))
    site.bring(step_rows(20, incarnation=8, start=DAY + timedelta(days=1)))
    run_checks(under(site.lake, overlay))
    row = max(site.rows("quality_results"), key=lambda one: one["partition_date"])
    evil = {**row, "status": "errored", "check_id": EVIL, "message": EVIL, "rows_checked": None, "rows_failed": None}
    append_own(site.lake.tables, "quality_results", lambda _: [evil])
    site.bring(step_rows(5, incarnation=9, start=DAY + timedelta(days=2)))
    return site, overlay


@pytest.fixture
def light(monkeypatch):
    """Have sites without the chart library, which takes two seconds to make."""
    monkeypatch.setattr(publishing, "library", lambda: b"")


def test_facts_are_worst_first_and_unknown_has_its_reason(checked):
    """A failure leads, what could not be computed stands apart from it, and a date without results says why."""
    site, overlay = checked
    found = gather(under(site.lake, overlay))
    (steps,) = found.tables
    assert (found.state, steps.state, steps.checks[0].check_id) == ("failing", "failing", "loss_small")
    assert [one.check_id for one in steps.checks if one.state == "errored"] == [EVIL]
    assert steps.checks[0].rows_failed == 20 + 50
    assert [(one.state, one.reason) for one in steps.partitions] == [
        ("unchecked", NEVER), ("failing", None), ("failing", None)
    ]  # fmt: skip
    assert (found.totals.checks_failing, found.totals.checks_errored, found.totals.partitions_unchecked) == (1, 1, 1)
    assert worst_state([]) == "skipped"


def test_every_number_is_what_its_sql_gives(checked):
    """Each figure and each cell of each page is what the SQL beside it says, run as it stands on the page."""
    site, overlay = checked
    pages = section(gather(under(site.lake, overlay))).pages
    counts = [compared(site.lake, render(page).decode()) for page in pages]
    assert len(pages) == 3
    assert sum(counts) > 230


def test_nothing_in_the_data_becomes_markup(checked):
    """Markup in an id or a message is text; no page has a script, a handler or an address that is not the shell's."""
    site, overlay = checked
    for page in section(gather(under(site.lake, overlay))).pages:
        text = render(page).decode()
        found = Read(text)
        scripts = [given for tag, given in found.elements if tag == "script"]
        assert all(one.get("type") == "application/json" or one["src"].startswith("../assets/") for one in scripts)
        assert not [name for _, given in found.elements for name in given if name.startswith("on") or name == "style"]
        assert not [tag for tag, _ in found.elements if tag in {"img", "iframe", "style", "base", "form"}]
        addresses = [given.get(name, "") for _, given in found.elements for name in ("src", "href")]
        assert not [one for one in addresses if re.match(r"[a-z]+:(?!,)|//", one) and one != "data:,"]
        assert "\u202e" not in text
        assert "alert(1)" in text
        policy = next(given["content"] for tag, given in found.elements if given.get("http-equiv"))
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        for spec in found.specs:
            alt.Chart.from_dict(spec)  # raises for what is no Vega-Lite


def test_only_what_changed_is_written(checked, light, tmp_path):
    """A second call writes nothing; after a check, only the pages whose facts changed; a lost page comes back."""
    site, overlay = checked
    place = Store.at(str(tmp_path / "out"))

    def again():
        done = publish(place, section(gather(under(site.lake, overlay))))
        return done.pages, done.written, done.removed

    assert again() == (4, 4, 0)
    stamps = {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.*")}
    assert again() == (4, 0, 0)
    assert stamps == {path: path.stat().st_mtime_ns for path in (tmp_path / "out").rglob("*.*")}
    (tmp_path / "out/quality/table-steps.html").unlink()
    assert again() == (4, 1, 0)
    run_checks(under(site.lake, overlay))
    assert again() == (4, 4, 0)
    publish(place, section(gather(Lake.create(str(tmp_path / "empty")))))
    assert not (tmp_path / "out/quality/table-steps.html").exists()
    assert "Nothing was checked yet" in (tmp_path / "out/index.html").read_text()


def test_a_site_is_not_written_over_other_files(checked, light, tmp_path):
    """A folder that holds something else is refused, and nothing of it changes."""
    site, overlay = checked
    (tmp_path / "home").mkdir()
    (tmp_path / "home/thesis.tex").write_text("years of work")
    with pytest.raises(NotASiteError, match=r"not a report, and not empty.*name an empty place"):
        publish(Store.at(str(tmp_path / "home")), section(gather(under(site.lake, overlay))))
    assert [path.name for path in (tmp_path / "home").iterdir()] == ["thesis.tex"]


def test_a_store_and_a_killed_call(checked, light, monkeypatch):
    """A bucket takes a site, too; a call that dies among the pages leaves whole pages, and the next one ends it."""
    site, overlay = checked
    place = Store.at("memory://report")
    made = section(gather(under(site.lake, overlay)))
    genuine, pages = render, []

    def dying(page):
        if pages:
            raise SystemExit
        pages.append(page)
        return genuine(page)

    monkeypatch.setattr(publishing, "render", dying)
    with pytest.raises(SystemExit):
        publish(place, made)
    assert not place.fs.exists(place.path(MANIFEST))
    monkeypatch.setattr(publishing, "render", genuine)
    assert publish(place, made).written == 4
    assert place.fs.exists(place.path("index.html"))


def test_a_partition_that_is_gone_counts_nowhere(checked):
    """Results of dates that a table no longer has are left out of every number, and of the SQL that gives it."""
    site, overlay = checked
    row = site.rows("quality_results")[0]
    gone = [
        {**row, "partition_date": DAY.date() - timedelta(days=9), "status": "failed", "rows_failed": 1},
        {**row, "table": "it's gone", "status": "failed", "rows_failed": 1},
    ]
    before = gather(under(site.lake, overlay))
    append_own(site.lake.tables, "quality_results", lambda _: gone)
    after = gather(under(site.lake, overlay))
    assert after.totals == before.totals
    assert query(site.lake, after.sources.totals).to_pylist()[0]["checks"] == before.totals.checks
    assert delta_table(site.lake.store, "quality_results").version() == after.version


def test_sparklines():
    """A few failures are seen beside many; what is unknown breaks the line; no dates make no marks."""
    drawn = sparkline("two dates", [("passed", 10, 0), ("errored", None, None), ("failing", 10, 3)])
    assert drawn.line.count("M") == 2
    assert [one.state for one in drawn.bars] == ["errored", "failing"]
    assert sparkline("none", []).line == ""


@pytest.mark.slow
@pytest.mark.leaky("V8 keeps the files that it unpacks itself from")
def test_the_chart_library_comes_from_its_package():
    """The library is one file, without anything to fetch when it loads."""
    code = library().decode()
    assert "vegaEmbed" in code
    assert not re.search(r"^import ", code, re.MULTILINE)


def test_incidents_have_a_page(checked):
    """Open ones are told as `ranklake check --incidents` has them, and the page of all tables links there."""
    site, overlay = checked
    found = gather(under(site.lake, overlay))
    told = {(row["table"], row["check_id"], row["state"], row["partitions"]) for row in found.overview.incidents.rows}
    assert told == {
        (one.table, one.check_id, "open" if one.closed is None else "closed", len(one.partitions))
        for one in incidents(site.lake)
    }
    assert found.overview.incident_counts.first_row["open_alarms"] == 2
    home, page, *_ = (render(one).decode() for one in section(found).pages)
    assert 'href="../quality/incidents.html"' in home
    assert "2 incidents open" in page
    assert "loss_small" in page


@pytest.mark.slow
def test_held_partitions_are_those_of_the_rollups(site):
    """What the page's SQL says is held is what `ranklake quality held` says, before and after a release."""
    site.bring(step_rows(60))
    lake = under(site.lake, site.overlay(steps=SMALL_LOSS.replace("max: 0.5", "max: 0.5, on_fail: hold")))
    run_checks(lake)

    def both():
        found = gather(lake)
        told = [(row["table"], row["partition_date"], row["rows_failed"]) for row in found.overview.held.rows]
        assert told == [(one.table, one.partition_date, one.rows_failed) for one in holds(lake.tables)]
        assert found.overview.held_counts.first_row["partitions"] == len(told)
        compared(lake, render(section(found).pages[1]).decode())
        return len(told)

    assert both() == 1
    name = plan_release(lake, "Pia", "as it is").name
    approve(lake, name, "Ada")
    assert both() == 1
    apply(lake, name, "Otto")
    assert both() == 0
