"""Report pages in a browser: no error, no request that leaves, no fault of accessibility, nothing too wide."""

import time
from contextlib import closing
from dataclasses import replace
from datetime import timedelta
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from cluster_hours import device_hours
from evaluated_slos import evaluated
from governed import Site, under
from histogram_rows import histogram_row
from live_child import Child
from opened import BEGUN, chromium, drawn, opened
from recorded_runs import SCRIPT, lake_of_runs, media_of
from retaining import CONTRACTS, POLICIES, TODAY
from rollup_inputs import NOON, append
from segments import DAY, step_rows
from slowdowns import SOUND
from sweep_lake import sweep_lake
from ui_client import ui_server
from wide_site import RUN, SLOW, wide_site

from ranklake.capture.node.endpoint import Endpoint
from ranklake.insight.catalog.refresh import refresh
from ranklake.insight.overview.alerts import alerts_state
from ranklake.insight.overview.fleet import cluster_state, fleet_state
from ranklake.insight.overview.oncall import on_call
from ranklake.insight.overview.pipeline import catalog_state, pipeline_state, serving_state
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.compare import compare
from ranklake.insight.runs.curves import plot_metrics
from ranklake.insight.runs.repeats import repeat_groups
from ranklake.insight.runs.report import runs_state
from ranklake.insight.runs.slowdown import MANY, Cause
from ranklake.lake.query.role_file import load_roles
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.live_page import LivePage
from ranklake.quality.check import run_checks
from ranklake.quality.report.gather import gather
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.report.compliance import compliance
from ranklake.retention.report.facts import governance
from ranklake.views.html import (
    alerts_pages,
    catalog_pages,
    cluster_pages,
    compare_pages,
    executive_pages,
    governance_pages,
    oncall_pages,
    pipeline_pages,
    run_pages,
)
from ranklake.views.html.quality_pages import section
from ranklake.views.html.site import publish

pytestmark = [pytest.mark.pages, pytest.mark.leaky("a browser's driver keeps its pipes")]
PAGES = (
    "index.html",
    "quality/index.html",
    "quality/incidents.html",
    "quality/table-steps.html",
    "runs/index.html",
    run_pages.href("alpha-1"),
    run_pages.href("beta"),
    "compare/index.html",
    "executive/index.html",
    "oncall/index.html",
    "cluster/index.html",
    "serving/index.html",
    "slo/index.html",
    "alerts/index.html",
    "governance/index.html",
    "compliance/index.html",
    "pipeline/index.html",
    "catalog/index.html",
    "catalog/metrics.html",
    catalog_pages.href("runs"),
)
MOST_BYTES, MOST_ELEMENTS = 2_000_000, 3_000
MOST_PX = 7_500
"""Of a run's page on a phone."""
MOST_OF_A_RUN = 4_000
"""Elements of a page of few steps; an element a rank would be 4,096 alone."""
COLOURS = """
    () => [0.2, 0.9].map((share) => {
        const map = document.querySelector(".heat > canvas");
        return [...map.getContext("2d").getImageData(map.width - 3, map.height * share, 1, 1).data].join();
    })
"""
ROLES = Path(__file__).parents[2] / "retention" / "roles.yaml"
LIMIT_LOSS = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0}
"""


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """Give the folder of a site with failing, unchecked and sound partitions."""
    site = Site(tmp_path_factory.mktemp("pages"))
    overlay = site.overlay(steps=LIMIT_LOSS)
    for day in range(5):
        site.bring(step_rows(50, incarnation=10 + day, start=DAY + timedelta(days=day)))
    run_checks(under(site.lake, overlay))
    site.bring(step_rows(5, incarnation=9, start=DAY + timedelta(days=6)))
    (site.folder / "runs").mkdir()
    lake = lake_of_runs(site.folder / "runs")
    append(lake, "ingest_plans", [{
        "plan": 1, "kind": "ingest", "created_ts": NOON, "committed_ts": NOON + timedelta(hours=6), "date": NOON.date(),
    }])  # fmt: skip
    append(lake, "media", media_of("alpha-1"))
    ask, names = asking(lake), ("alpha-1", "alpha-2", "beta")
    side_by_side = compare(ask, names)
    drawn = [plot_metrics(ask, names, ["loss"], {})]
    made = (
        compare_pages.section(side_by_side, drawn, repeat_groups(ask, side_by_side)),
        run_pages.section(runs_state(lake)),
        executive_pages.section(fleet_state(lake)),
    )
    append(lake, "cluster_hourly", [{
        "hour": NOON, "scope": "cluster", "cluster": "c", "scope_name": "c", "gpu_total_s": 2.0, "gpu_delivered_s": 1.0,
        "queue_job_s": 3600.0, "queue_depth_max": 2, "date": NOON.date(),
    }])  # fmt: skip
    append(lake, "gpu_hourly", [
        {"hour": NOON, "host": f"h{node}", "device_uuid": f"GPU-{node}", "sample_count": 1, "observed_s": 1.0,
         "busy_observed_s": 1.0, "busy_s": node / 2, "energy_observed_s": 0.0, "date": NOON.date()}
        for node in range(3)
    ])  # fmt: skip
    refresh(site.lake)
    set_hold(site.lake, ["run=r1"], "a case", TODAY + timedelta(days=9), "Lena Legal")
    made = *made, governance_pages.section(governance(site.lake, POLICIES, TODAY))
    roles = load_roles(ROLES, CONTRACTS)
    made = (
        *made,
        governance_pages.compliance_section(compliance(site.lake, POLICIES, roles, "", {"[masking] key": "env:KEY"})),
    )
    made = *made, pipeline_pages.section(pipeline_state(lake, 3600.0))
    append(lake, "lineage", [
        {"output_table": target, "output_partition": "date=2026-03-01", "output_version": 1, "input_table": source,
         "input_partition": "", "transform": target, "ts": NOON, "date": NOON.date()}
        for source, target in (("steps", "step_rollup"), ("step_rollup", "run_summary"), ("events", "run_summary"))
    ])  # fmt: skip
    refresh(lake)
    made = *made, catalog_pages.section(catalog_state(lake))
    append(lake, "inference_hourly", [{
        "model": "ranker", "model_version": "3", "hour": NOON, "rows": 9, "requests": 90.0, "failed_requests": 1.0,
        "error_ratio": 0.1, "requests_with_status": 10.0,
        "latency_mean_s": 0.1, "latency_p95_s": 0.2, "latency_p99_s": 0.3, "date": NOON.date(),
    }])  # fmt: skip
    alert = {"alert_id": "a1", "ts": NOON, "rule": "run-hangs", "subject": "i1", "severity": "critical",
             "state": "firing", "message": "Step 7 <b>takes 12 minutes", "run": "alpha-1", "since_ts": NOON,
             "fired_ts": NOON, "receivers": "default,team", "messages": 2, "failures": 1,
             "date": NOON.date()}  # fmt: skip
    over = {"alert_id": "a2", "state": "resolved", "resolved_ts": NOON + timedelta(hours=1), "severity": "warning"}
    quiet = {"alert_id": "a3", "receivers": None, "messages": 0, "muted": "silence: a benchmark"}
    append(lake, "alerts", [alert, {**alert, **over}, {**alert, **quiet}])
    made = *made, alerts_pages.section(alerts_state(lake))
    made = *made, oncall_pages.section(on_call(lake)), cluster_pages.section(cluster_state(lake))
    made = *made, pipeline_pages.serving_section(serving_state(lake))
    made = *made, alerts_pages.slo_section(evaluated(lake))
    publish(Store.at(str(site.folder / "out")), section(gather(under(site.lake, overlay))), *made)
    return site.folder / "out"


@pytest.fixture(scope="module")
def browser():
    """Give headless Chromium."""
    with chromium() as found:
        yield found


def faults(page):
    """Return what axe-core finds wrong, with the first element of each; only that much comes back from the browser."""
    page.evaluate(files("axe_core_python").joinpath("axe.min.js").read_text(encoding="utf-8"))
    return page.evaluate("""
        () => axe.run(document, { resultTypes: ["violations"] })
            .then((found) => found.violations.map((one) => [one.id, one.nodes[0].html]))
    """)


def watched_page(browser, width, theme, height=900):
    """Return a new page in a context of its own, what its console says, and the addresses that it asks for."""
    page = browser.new_context(viewport={"width": width, "height": height}, color_scheme=theme).new_page()
    told, left = [], []
    page.on("console", lambda message: told.append(message.text))
    page.on("pageerror", lambda error: told.append(str(error)))
    page.on("request", lambda request: left.append(request.url))
    return page, told, left


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440, 2560])
def test_pages_are_sound(report, browser, width, theme):
    """At each width and in each theme: charts are drawn, the console is silent, nothing leaves, axe finds nothing."""
    page, told, left = watched_page(browser, width, theme)
    for name in PAGES:
        page.goto(f"file://{report}/{name}")
        drawn(page)
        page.eval_on_selector_all("details.fold", "all => all.forEach((one) => { one.open = true; })")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults(page) == []
    page.context.close()
    assert told == []
    assert [url for url in left if not url.startswith((f"file://{report}/", "data:"))] == []


def test_a_print_has_every_column_and_every_chart(report, browser):
    """On a sheet of paper no table is cut off, though none can be scrolled there; charts are drawn without a look."""
    page = browser.new_page(viewport={"width": 794, "height": 1123})
    for name in (run_pages.href("alpha-1"), "oncall/index.html", "quality/table-steps.html"):
        page.goto(f"file://{report}/{name}")
        drawn(page)
        page.emulate_media(media="print")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0, name
        page.emulate_media(media="screen")
    page.close()


def test_a_narrow_screen_folds_what_comes_later(report, browser):
    """A key unfolds it, an address that names something in it does, and print has all; a wide screen folds nothing."""
    page = browser.new_page(viewport={"width": 390, "height": 844})
    url = f"file://{report}/{run_pages.href('alpha-1')}"
    folds = "[...document.querySelectorAll('details.fold')].map((one) => one.open)"
    page.goto(url)
    drawn(page)
    assert faults(page) == []
    assert page.evaluate("document.documentElement.scrollHeight") < MOST_PX
    count = len(page.evaluate(folds))
    assert page.evaluate(folds) == [False] * count
    page.locator("details.fold > summary").nth(count - 1).press("Enter")
    assert page.evaluate(folds) == [False] * (count - 1) + [True]
    page.evaluate("""addEventListener("beforeprint", () => {
        window.printed = [...document.querySelectorAll("details.fold")].every((one) => one.open);
    })""")
    page.pdf()
    assert page.evaluate("printed")
    assert page.evaluate(folds) == [False] * (count - 1) + [True]
    page.goto(f"{url}#events")
    page.wait_for_function("() => document.getElementById('events').checkVisibility({ contentVisibilityAuto: true })")
    page.goto("about:blank")
    page.set_viewport_size({"width": 1440, "height": 900})
    page.goto(url)
    assert page.evaluate(folds) == [True] * count
    page.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_run_shows_images_matrices_tables_and_texts(report, browser, theme):
    """The image is decoded, a matrix is shaded by its rows, and markup in a label is a label."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme=theme)
    page = context.new_page()
    page.on("dialog", lambda _: pytest.fail("a label was run as a script"))
    page.goto(f"file://{report}/{run_pages.href('alpha-1')}")
    page.locator(".medium img").scroll_into_view_if_needed()
    page.wait_for_function("() => document.querySelector('.medium img').naturalWidth == 8")
    shades = page.eval_on_selector_all(
        ".matrix td", "cells => cells.map((one) => getComputedStyle(one).backgroundColor)"
    )
    assert len(shades) == len(set(shades)) == 4
    assert page.locator(".matrix thead th").nth(2).inner_text().startswith(SCRIPT[:-1])
    assert page.locator(".medium pre").first.inner_text().strip() == "at 3"
    assert page.locator(".medium table").count() == 2
    assert "images, tables and texts may be about persons" in page.locator("main").inner_text()
    left = "all => all.map((one) => one.getBoundingClientRect().left - one.parentNode.getBoundingClientRect().left)"
    assert min(page.eval_on_selector_all(".medium > *", left)) >= 0  # else it lies over its neighbour
    context.close()


@pytest.mark.parametrize(("what", "hot"), [("rank 3", 1), (MANY, 0)])
def test_what_slowed_a_run_is_drawn_in_bars(tmp_path, browser, what, hot):
    """The longest bar has a colour of its own if its part stands out, else none; the console is silent."""
    cause = Cause(replace(SOUND, by_kind={"forward-compute": 1.15, "gc": 1.05}), "", what, None, "Look.")
    state = replace(runs_state(lake_of_runs(tmp_path)), why=lambda _: cause)
    publish(Store.at(str(tmp_path / "out")), run_pages.section(state))
    page, told = browser.new_page(viewport={"width": 1440, "height": 900}), []
    page.on("console", lambda message: told.append(message.text))
    page.goto(f"file://{tmp_path}/out/{run_pages.href('alpha-1')}")
    drawn(page)
    bars = "[data-chart=spec-slowed-parts] .mark-rect.role-mark path"
    fills = page.eval_on_selector_all(bars, "all => all.map((one) => one.getAttribute('fill'))")
    page.close()
    assert told == []
    assert len(fills) == 2
    assert len(set(fills)) == 1 + hot


def lake_of_starts(folder):
    """Return a lake of a run of two attempts, whose starts have parts: the first ten, one with markup in its name."""
    lake = Lake.create(str(folder / "lake"))
    own = {"run": "starts", "rank": 0, "world_size": 1}
    first = (
        "imports",
        "distributed",
        "device",
        "model",
        "checkpoint",
        "data",
        "compile",
        "train.py:vocabulary",
        SCRIPT,
    )
    spans, at = [], 0
    for attempt, names in ((0, first), (1, ("imports", "checkpoint", "model"))):
        begin = NOON + timedelta(minutes=5 * attempt)
        facts = {**own, "attempt": attempt, "incarnation": 20 + attempt}
        at = 0
        for place, name in enumerate(names):
            seconds = 2 + 3 * place
            spans.append({**facts, "name": f"init/{name}", "kind": "other", "span_id": place, "slot": place,
                          "ts": begin + timedelta(seconds=at), "duration_ns": seconds * 10**9})  # fmt: skip
            at += seconds
        append(lake, "runs", [{**facts, "ts": begin}])
        append(lake, "events", [{**facts, "event": "run_start", "severity": "info", "ts": begin}])
        append(lake, "steps", [
            {**facts, "step": step + 20 * attempt, "ts": begin + timedelta(seconds=at + 2 + step), "step_time_s": 1.0,
             "loss": 3.0}
            for step in range(20)
        ])  # fmt: skip
    append(lake, "spans", [{name: value for name, value in row.items() if name != "world_size"} for row in spans])
    run_rollups(lake)
    return lake


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (768, "light"), (1440, "light"), (2560, "dark")])
def test_the_parts_of_starts_are_bars(tmp_path, browser, width, theme):
    """A bar a part, the longest first, the shortest together; restarts apart; a name with markup is a name."""
    publish(Store.at(str(tmp_path / "out")), run_pages.section(runs_state(lake_of_starts(tmp_path))))
    page, told, _ = watched_page(browser, width, theme)
    page.goto(f"file://{tmp_path}/out/{run_pages.href('starts')}")
    drawn(page)
    labels = {}
    for kind in ("init", "restart"):
        chart = f"[data-chart=spec-{kind}-parts]"
        labels[kind] = page.locator(f"{chart} .role-axis-label text").all_text_contents()
        bars = page.locator(f"{chart} .mark-rect.role-mark path")
        widths = [box["width"] for box in (bar.bounding_box() for bar in bars.all())]
        assert len(widths) == len([label for label in labels[kind] if not label.endswith("%")])
        assert widths[:-1] == sorted(widths[:-1], reverse=True)
    assert any(label.startswith("train.py:vocabulary 23 s") for label in labels["init"])
    assert any("more" in label for label in labels["init"])
    assert any(label.endswith("\\u202e 26 s") for label in labels["init"])  # else its number would be read backwards
    assert [label for label in labels["restart"] if not label.endswith("%")][:2] == ["downtime 2.5 min", "model 8 s"]
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    page.context.close()
    assert told == []


def test_search_theme_sorting_and_definitions_work_by_keyboard(report, browser):
    """A slash leads to the search, Enter to what it found; a definition opens; a head sorts; themes switch."""
    page = browser.new_page(color_scheme="light")
    page.goto(f"file://{report}/quality/index.html")
    page.keyboard.press("/")
    page.keyboard.type("loss_small")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    page.wait_for_url("**/table-steps.html#check-*")
    page.locator("#partitions-table .sort").nth(1).press("Enter")
    days = page.locator("#partitions-table tbody th").all_text_contents()
    assert days == sorted(days, reverse=True)
    page.locator("#partitions-table .sort").nth(1).press("Enter")
    assert page.locator("#partitions-table tbody th").all_text_contents() == sorted(days)
    page.locator(".tiles .how").first.press("Enter")
    assert "SELECT" in page.locator(".popover:popover-open").inner_text()
    page.keyboard.press("Escape")
    assert page.locator(".popover:popover-open").count() == 0
    before = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.locator("#theme").press("Enter")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != before
    page.close()


def test_a_day_of_4096_gpus_is_one_image_and_tells_cells_and_rows_by_keyboard(tmp_path, browser):
    """512 nodes by the hour: few elements, axe finds nothing, arrows tell a cell, Enter its row; nothing known, too."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "gpu_hourly", device_hours(512, 24))
    published = publish(Store.at(str(tmp_path / "out")), cluster_pages.section(cluster_state(lake)))
    assert published.largest_bytes < MOST_BYTES
    page = browser.new_page()
    page.goto(f"file://{tmp_path}/out/cluster/index.html")
    drawn(page)
    assert page.evaluate("document.querySelectorAll('*').length") < MOST_ELEMENTS
    assert faults(page) == []
    page.locator(".heat > canvas").focus()
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    page.keyboard.press("End")
    row = next(row for row in reversed(cluster_state(lake).heat.rows) if row["first_device"] == "GPU-000008")
    said = f"GPU-000008, {row['hour']:%b %d, %H:%M}: {100 * row['utilization_ratio']:.1f} %"
    assert page.locator(".told").inner_text() == said
    page.keyboard.press("Home")
    assert page.locator(".told").inner_text().endswith("not sampled")
    page.keyboard.press("Enter")
    assert "known in 24 of 48" in page.locator(".heat .row").inner_text()
    colours = page.evaluate(COLOURS)
    assert colours[0] != colours[1]
    page.close()


def test_what_is_on_the_screen_is_drawn_first(report, browser):
    """Charts further down are drawn later, though nobody scrolls."""
    context = browser.new_context(viewport={"width": 1440, "height": 1100})
    context.add_init_script(BEGUN)
    page = context.new_page()
    page.goto(f"file://{report}/{run_pages.href('alpha-1')}")
    drawn(page)
    seen = page.evaluate("drawnAt.filter(([place]) => place.dataset.chart).map(([, , isSeen]) => isSeen)")
    assert 0 < sum(seen) < len(seen)
    assert seen == sorted(seen, reverse=True)
    context.close()


def test_a_run_of_4096_ranks_is_as_light_as_one_of_two(tmp_path, browser, capsys):
    """The slow rank is named and shown; plots, elements and bytes are few, whatever the number of ranks."""
    published = wide_site(tmp_path)
    assert published.largest_bytes < MOST_BYTES
    url = f"file://{tmp_path}/out/{run_pages.href(RUN)}"
    found = opened(browser, url)
    with capsys.disabled():  # a figure of this machine, and no limit of a test
        print(f"\n{found.usable_ms:.0f} ms until usable, {found.last_ms:.0f} until all is drawn")
    assert found.seen < found.plots
    assert found.elements < MOST_OF_A_RUN
    page = browser.new_page()
    page.goto(url)
    drawn(page)
    assert faults(page) == []
    assert f"rank {SLOW}" in page.locator(".verdict").nth(1).inner_text()
    for name, said in (("workers", "stage 0, 0 to 31: 17.2 %"), ("ranks", "ranks 0 to 63, 0: 50.0 %")):
        page.locator(f"[data-heat=spec-{name}] > canvas").focus()
        page.keyboard.press("ArrowDown")
        assert page.locator(f"[data-heat=spec-{name}] .told").inner_text() == said
    page.close()


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """Give the address of `ranklake ui` of a lake of runs, and the lake."""
    lake = lake_of_runs(tmp_path_factory.mktemp("served"))
    append(lake, "media", [*media_of("alpha-1"), *media_of("alpha-2")])
    rng = np.random.default_rng(3)
    append(lake, "distributions", [
        histogram_row(rng.normal(step / 20, 1, 500), step, run="alpha-1", step=step, metric="grads/all")
        for step in range(60)
    ])  # fmt: skip
    with ui_server(lake) as url:
        yield url, lake


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_served_pages_are_sound(served, browser, width, theme):
    """From the home page by clicks alone: drawn, silent, accessible, within the screen, and nothing leaves."""
    url, _ = served
    page, told, left = watched_page(browser, width, theme)
    page.goto(url)
    assert page.locator(".card").count() == page.locator("#sections li").count() - 3 > 8  # Explore, Ask, Live: no cards
    assert faults(page) == []
    page.locator("#sections a", has_text="Runs").click()
    page.locator("#runs-table a", has_text="alpha-1").click()
    page.wait_for_url(f"**/{run_pages.href('alpha-1')}")
    page.wait_for_load_state()  # its curves come after its figures
    drawn(page)
    assert page.locator("h1").inner_text() == "alpha-1"
    assert page.locator("#sections [aria-current]").inner_text() == "Runs"
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    page.keyboard.press("/")
    page.keyboard.type("alpha-3")
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/{run_pages.href('alpha-3')}")
    page.context.close()
    assert told == []
    assert [one for one in left if not one.startswith((url, "data:"))] == []


SHOWN = """() => [...document.querySelectorAll('.plot')].map((one) => {
    const { min, max } = one.chart.scales.x;
    return [min, max];
})"""
PLOTTED = "() => [...document.querySelectorAll('.plot')].every((one) => one.dataset.drawn)"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1440])
def test_a_view_is_zoomed_by_dragging_and_sent_by_its_address(served, browser, width, theme):
    """A drag asks for its range, of all charts; one cursor tells what each run had; the address opens the same."""
    url, _ = served
    page, told, left = watched_page(browser, width, theme)
    page.goto(f"{url}explore/?run=alpha-1&run=alpha-2&metric=loss+step_time_s")
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    over = page.locator(".plot .u-over").first
    over.scroll_into_view_if_needed()
    box = over.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.4, box["y"] + 60)
    assert all("alpha-1" in one and "alpha-2" in one for one in page.locator(".plot + .told").all_text_contents())
    assert page.locator(".u-cursor-x:visible").count() == 2
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.6, box["y"] + 60, steps=4)
    assert page.evaluate("document.querySelector('.u-select').clientWidth") > 20
    page.mouse.up()
    page.wait_for_url("**from=**")
    page.wait_for_function(PLOTTED, timeout=60_000)
    domains = page.evaluate(SHOWN)
    assert domains[0] == domains[1]
    assert 5 < domains[0][0] < domains[0][1] < 25
    address = page.url
    page.locator("#wider").press("Enter")
    page.wait_for_url(lambda there: there != address)
    page.wait_for_function(PLOTTED, timeout=60_000)
    wider = page.evaluate(SHOWN)[0]
    assert wider[0] < domains[0][0] < domains[0][1] < wider[1]
    page.goto(address)
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.evaluate(SHOWN) == domains
    page.locator("input[name=log]").press("Space")
    page.wait_for_function("() => location.search.includes('log=on')")
    page.locator("input[name=find]").fill("alpha-3")
    page.locator("input[name=find]").press("Enter")
    page.wait_for_url("**find=alpha-3**")
    assert page.locator("input[name=run]").count() == 3  # those that are drawn, and the one that was looked for
    page.context.close()
    assert told == []
    assert [one for one in left if not one.startswith((url, "data:"))] == []


def test_steps_are_drawn_and_zoomed_on_a_logarithmic_scale(served, browser):
    """At a key: from the first step above 0; zooming goes about the middle of the axis; the address keeps it."""
    url, _ = served
    page, told, _ = watched_page(browser, 1440, "light")
    page.goto(f"{url}explore/?run=alpha-1&metric=loss+step_time_s")
    page.wait_for_function(PLOTTED, timeout=60_000)
    page.locator("input[name=logx]").press("Space")
    page.wait_for_function("() => location.search.includes('logx=on')")
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.evaluate(SHOWN) == [[1, 29], [1, 29]]
    middle = page.evaluate("""() => {
        const { chart } = document.querySelector('.plot');
        return chart.posToVal(chart.over.clientWidth / 2, 'x');
    }""")
    assert middle == pytest.approx(29**0.5, rel=0.05)
    page.locator(".plot").first.press("+")
    page.wait_for_url("**from=**")
    page.wait_for_function(PLOTTED, timeout=60_000)
    low, high = page.evaluate(SHOWN)[0]
    assert 1 < low < high < 29
    assert low * high == pytest.approx(29, rel=0.01)
    page.goto(page.url)
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.evaluate(SHOWN)[0] == [low, high]
    page.context.close()
    assert told == []


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (768, "dark"), (1440, "light"), (1440, "dark")])
def test_media_follow_a_slider_and_histograms_are_told_by_keyboard(served, browser, width, theme):
    """From the run's page: arrows in the slider show another step, the address with it; cells of the map are told."""
    url, _ = served
    page, told, left = watched_page(browser, width, theme)
    page.goto(f"{url}{run_pages.href('alpha-1')}")
    page.locator("#views a").nth(1).click()
    page.wait_for_url("**/media.html?run=alpha-1")
    drawn(page)
    assert "at 3" in page.locator("#media").inner_text()
    assert faults(page) == []
    page.locator("#slider").press("ArrowLeft")
    page.wait_for_url("**step=8**")
    page.wait_for_function("() => document.getElementById('media').dataset.step === '8'")
    assert "at 2" in page.locator("#media").inner_text()
    assert page.locator("#slider").get_attribute("aria-valuetext") == "step 8"
    page.wait_for_function("() => [...document.querySelectorAll('#media img')].every((one) => one.naturalWidth)")
    page.locator(".heat > canvas").first.press("ArrowDown")
    assert "%" in page.locator(".heat .told").first.inner_text()
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    page.context.close()
    assert told == []
    assert [one for one in left if not one.startswith((url, "data:"))] == []


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (1440, "light")])
def test_a_run_is_tagged_from_its_page_by_keyboard(tmp_path, browser, width, theme):
    """From the run's page: a tag is typed, and told to be on its way; axe finds nothing, nothing leaves."""
    spool = {"RANKLAKE_SPOOL": str(tmp_path / "spool")}
    with ui_server(lake_of_runs(tmp_path), "--write", environment=spool) as url:
        page, told, left = watched_page(browser, width, theme)
        page.goto(f"{url}{run_pages.href('alpha-1')}")
        page.get_by_role("link", name="annotate it").press("Enter")
        page.wait_for_url("**/annotate/index.html?run=alpha-1")
        page.get_by_label("New tag").fill("night=owl")
        page.get_by_label("New tag").press("Enter")
        page.wait_for_selector("text=In the spool")
        assert page.locator(".verdict .tag").all_inner_texts() == ["tag night=owl"]
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults(page) == []
        page.context.close()
        assert told == []
        assert [one for one in left if not one.startswith((url, "data:"))] == []
    assert list((tmp_path / "spool").rglob("*.parquet"))


SENT_SQL = "SELECT run, step, avg(loss) AS loss FROM steps GROUP BY run, step ORDER BY run, step"


@pytest.mark.parametrize(("width", "theme"), [(390, "dark"), (768, "light"), (1440, "light"), (1440, "dark")])
def test_a_question_is_asked_completed_plotted_and_sent_by_keyboard(served, browser, width, theme):
    """A name is taken from those offered, an error is said, the answer is drawn and paged, the address opens it."""
    url, _ = served
    page, told, left = watched_page(browser, width, theme)
    page.goto(f"{url}ask/")
    box = page.locator("#sql")
    box.fill("SELECT loss FROM step")
    box.press("Control+Space")
    page.wait_for_selector("#words [role=option]", timeout=60_000)
    assert faults(page) == []
    words = page.locator("#words [role=option]").all_inner_texts()
    for _ in range(words.index("steps") + 1):
        box.press("ArrowDown")
    assert box.get_attribute("aria-activedescendant") == f"word-{words.index('steps')}"
    box.press("Enter")
    assert box.input_value() == "SELECT loss FROM steps"
    box.fill("SELECT los FROM steps")
    box.press("Control+Enter")
    page.wait_for_selector("#fault:visible", timeout=60_000)
    assert "did you mean 'loss'?" in page.locator("#fault").inner_text()
    box.fill(SENT_SQL)
    box.press("Control+Enter")
    page.wait_for_selector("#answer:visible", timeout=60_000)
    assert page.locator("#fault").is_hidden()
    page.locator("select[name=chart]").select_option("line")
    page.locator("select[name=x]").select_option("step")
    page.locator("select[name=colour]").select_option("run")
    drawn(page)
    assert page.locator("[data-chart=spec-ask] .mark-line.role-mark path").count() == 4
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    with page.expect_download() as downloaded:
        page.get_by_role("button", name="CSV").press("Enter")
    assert downloaded.value.path().read_text().startswith("run,step,loss\nalpha-1,0,")
    address = page.url
    page.goto("about:blank")
    page.goto(address)
    drawn(page)
    assert box.input_value() == SENT_SQL
    assert page.locator("#rows tbody tr").first.inner_text().split()[:2] == ["alpha-1", "0"]
    page.locator("#before summary").press("Enter")
    assert SENT_SQL in page.locator("#before li").all_inner_texts()
    box.fill("SELECT * FROM generate_series(1, 250)")
    page.locator("#run").press("Enter")
    page.wait_for_function("() => document.getElementById('count').textContent === 'rows 1 to 100 of 250'")
    page.locator("#later").press("Enter")
    assert page.locator("#count").inner_text() == "rows 101 to 200 of 250"
    assert page.locator("#rows tbody td").first.inner_text() == "101"
    page.context.close()
    assert [line for line in told if "400 (Bad Request)" not in line] == []  # the browser tells of a refusal, too
    assert [one for one in left if not one.startswith((url, "data:", "about:", f"blob:{url}"))] == []


@pytest.mark.parametrize(("width", "theme"), [(390, "light"), (768, "dark"), (1440, "light")])
def test_a_view_gets_a_name_by_keyboard(tmp_path, browser, width, theme):
    """From Explore as it is zoomed: saved, opened by its name, renamed, deleted, brought back; axe finds nothing."""
    spool = {"RANKLAKE_SPOOL": str(tmp_path / "spool")}
    with ui_server(lake_of_runs(tmp_path), "--write", environment=spool) as url:
        page, told, left = watched_page(browser, width, theme)
        page.goto(f"{url}explore/?run=alpha-1&metric=loss")
        page.wait_for_function(PLOTTED, timeout=60_000)
        page.locator("input[name=log]").press("Space")
        page.wait_for_function("() => location.search.includes('log=on')")
        page.get_by_role("link", name="Save the view").press("Enter")
        page.wait_for_url("**/saved/index.html?**log=on**")
        assert faults(page) == []
        page.get_by_label("Name", exact=True).fill("losses, logarithmic")
        page.get_by_label("Name", exact=True).press("Enter")
        page.wait_for_selector("#saved")
        page.get_by_role("textbox", name="New name of losses, logarithmic").fill("nights")
        page.get_by_role("button", name="Rename losses, logarithmic").press("Enter")
        page.wait_for_selector("#saved >> text=nights")
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults(page) == []
        page.locator("#saved").get_by_role("link", name="nights").press("Enter")
        page.wait_for_url("**/explore/index.html?**log=on**")
        page.wait_for_function(PLOTTED, timeout=60_000)
        assert page.locator("input[name=log]").is_checked()
        page.get_by_role("link", name="Saved views").press("Enter")
        page.get_by_role("button", name="Delete nights").press("Enter")
        page.wait_for_selector("text=nights deleted")
        page.get_by_role("button", name="Save nights again as it was then").press("Enter")
        page.wait_for_selector("#saved >> text=nights")
        page.context.close()
        assert told == []
        assert [one for one in left if not one.startswith((url, "data:"))] == []


@pytest.fixture(scope="module")
def swept(tmp_path_factory):
    """Give the address of `ranklake ui` of a lake of a sweep."""
    with ui_server(sweep_lake(tmp_path_factory.mktemp("swept"))) as url:
        yield url


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_runs_are_grouped_and_set_against_a_baseline_by_keyboard(swept, browser, width, theme):
    """By the form alone: three lines of twelve runs, samples under the loss; cursor and address tell the groups."""
    page, told, left = watched_page(browser, width, theme)
    page.goto(f"{swept}explore/?find=sweep%3Dlr&x=relative&metric=loss+gpu/power_watts")
    page.wait_for_function(PLOTTED, timeout=60_000)
    page.locator("input[name=group]").fill("optimizer.lr")
    page.locator("select[name=band]").select_option("quartiles")
    page.locator("input[name=column]").fill("last_loss optimizer.lr")
    page.locator("select[name=baseline]").select_option(index=1)
    for box in page.locator("input[name=run]").all():
        box.check()
    page.locator("input[name=group]").press("Enter")
    page.wait_for_url("**group=optimizer.lr**")
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    assert page.evaluate("() => document.querySelector('.plot').lines.length") == 3
    assert page.evaluate("() => document.querySelectorAll('.plot')[1].lines.some((line) => line.points.length)")
    assert page.locator("#view-runs tbody tr").count() == 12
    assert page.locator("#view-runs thead th").all_inner_texts() == ["run", "last_loss", "config.optimizer.lr"]
    assert page.locator("#differences strong").count() > 3
    plot = page.locator(".plot").first
    for key in ("ArrowRight", "ArrowLeft"):
        plot.press(key)
    page.wait_for_function("() => document.querySelector('.plot + .told').textContent.includes('4 there')")
    assert page.locator(".u-cursor-x:visible").count() == 2
    page.locator(".legend button").first.press("Enter")
    assert (
        page.locator(".legend [aria-pressed=false]").count()
        == 1 + page.locator(".legend").nth(1).locator("[aria-pressed=false]").count()
    )
    page.locator(".legend button").first.press("Enter")
    plot.press("+")
    page.wait_for_url("**from=**")
    page.wait_for_function(PLOTTED, timeout=60_000)
    plot.press("Home")
    page.wait_for_url(lambda there: "from=" not in there)
    page.wait_for_function(PLOTTED, timeout=60_000)
    address = page.url
    page.goto(address)
    page.wait_for_function(PLOTTED, timeout=60_000)
    assert page.locator("input[name=group]").input_value() == "optimizer.lr"
    assert page.locator("select[name=band]").input_value() == "quartiles"
    page.context.close()
    assert told == []
    assert [one for one in left if not one.startswith((swept, "data:"))] == []


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 768, 1440])
def test_a_sweep_is_drawn_and_leads_to_its_curves(swept, browser, width, theme):
    """From Explore by a link: a line a run, a point a run of any two columns; and back to the same runs."""
    page, told, _ = watched_page(browser, width, theme, height=1000)
    page.goto(f"{swept}explore/?find=sweep%3Dlr")
    page.get_by_role("link", name="Sweep", exact=True).click()
    page.wait_for_url("**/sweep.html?**")
    drawn(page)
    assert page.locator("[data-chart=spec-parallel] .mark-line.role-mark").count() > 0
    assert page.locator("[data-chart=spec-parallel] .mark-line.role-mark path").count() == 12
    page.locator("select[name=across]").select_option("config.seed")
    page.locator("select[name=up]").select_option("mean_step_time_s")
    page.locator("button[type=submit]").press("Enter")
    page.wait_for_url("**across=config.seed**")
    drawn(page)
    assert page.locator("[data-chart=spec-scatter] .mark-symbol.role-mark path").count() == 12
    assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert faults(page) == []
    page.locator("main .hint a").first.click()
    page.wait_for_url("**/explore/index.html?find=sweep**")
    page.context.close()
    assert told == []


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_a_step_is_on_a_served_page_while_the_run_records(tmp_path, browser, theme, capsys):
    """On the page of the run, which the lake knows too, and on the live page; new rows of the lake are offered."""
    places = SimpleNamespace(spool=tmp_path / "spool", local=tmp_path / "local")
    lake = lake_of_runs(tmp_path)
    append(lake, "steps", [{"run": "live", "step": 0, "ts": NOON, "step_time_s": 1.0}])
    run_rollups(lake, ["run_summary"])
    child = Child(places)
    child.record(*range(20))
    with ui_server(lake, environment={"RANKLAKE_LOCAL_SPOOL": str(places.local)}) as url:
        page = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme=theme)
        told, left = [], []
        page.on("console", lambda message: told.append(message.text))
        page.on("request", lambda request: left.append(request.url))
        now = "() => document.querySelector('{} dd')?.textContent === '{}'"
        page.goto(url + run_pages.href("live"))
        page.wait_for_function(now.format("#recording", 19), timeout=60_000)
        ended_ns = child.record(20)
        page.wait_for_function(now.format("#recording", 20), timeout=60_000)
        with capsys.disabled():  # a figure of this machine, and no limit of a test
            print(f"\n{(time.time_ns() - ended_ns) / 1e9:.2f} s from the end of a step until it is on the page")
        assert faults(page) == []
        append(lake, "annotations", [{"run": "live", "ts": NOON, "kind": "tag", "key": "night", "value": "owl"}])
        page.locator("#newer button").click(timeout=60_000)
        page.wait_for_function("() => document.querySelector('.said')?.textContent.includes('night')", timeout=60_000)
        page.wait_for_function(now.format("#recording", 20), timeout=60_000)
        page.locator("#recording a").click()
        page.wait_for_function(now.format("#tiles", 20), timeout=60_000)
        assert page.locator("#run").inner_text() == "live"
        assert page.locator("#state").inner_text() == "records"
        assert page.locator("#losses path.drawn").count() == 1
        assert page.locator("#ranks tr").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults(page) == []
        assert told == []
        assert [one for one in left if not one.startswith((url, "data:"))] == []
        page.close()
    child.close()


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_the_agents_page_follows_a_run_and_asks_nobody_else(tmp_path, browser, theme):
    """A step appears by itself, with its curve and its rank; axe finds nothing; all requests go to the agent."""
    places = SimpleNamespace(spool=tmp_path / "spool", local=tmp_path / "local")
    child = Child(places)
    child.record(*range(20))
    with closing(LivePage(places.local)) as made, Endpoint(0, made.answer) as endpoint:
        page = browser.new_page(viewport={"width": 390, "height": 900}, color_scheme=theme)
        told, left = [], []
        page.on("console", lambda message: told.append(message.text))
        page.on("request", lambda request: left.append(request.url))
        url = made.url(endpoint.port)
        page.goto(url)
        page.wait_for_function("() => document.getElementById('run').textContent === 'live'", timeout=60_000)
        assert page.locator("#tiles dd").first.inner_text() == "19"
        child.record(20)
        page.wait_for_function("() => document.querySelector('#tiles dd').textContent === '20'", timeout=60_000)
        assert page.locator("#state").inner_text() == "records"
        assert page.locator("#troubles").inner_text() == "none"
        assert page.locator("#ranks tr").count() == 1
        assert page.locator("#losses path.drawn").count() == 1
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        assert faults(page) == []
        assert told == []
        assert [one for one in left if not one.startswith((url, "data:"))] == []
        page.close()
    child.close()
