"""`ranklake ui` on lakes as they should not be: runs without steps, thousands of metrics, a run erased while seen."""

import re
import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest
from erased import reach
from governed import Site, any_rows
from rollup_inputs import NOON, append
from segments import step_rows
from ui_client import asking

from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import subject_of
from ranklake.ui import pages as pages_module
from ranklake.ui.view import MOST_METRICS
from ranklake.views.html import run_pages

pytestmark = pytest.mark.leaky("a client keeps its event loop")
MANY = 2_000
MOST_BYTES = 1_000_000


@pytest.mark.slow
def test_runs_without_steps_and_one_of_two_thousand_metrics_have_every_page(tmp_path):
    """What is not known is said, no page fails; of many metrics as many are drawn and named as one can read."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [
        {"run": run, "incarnation": place, "ts": NOON + timedelta(minutes=place), "world_size": 1, "config": config}
        for place, (run, config) in enumerate((("bare", None), ("empty", "{}"), ("broken", '{"lr": '), ("many", "{}")))
    ])  # fmt: skip
    append(lake, "scalars", [
        {"run": "many", "incarnation": 3, "ts": NOON + timedelta(seconds=step), "metric": f"m/{n:04}", "step": step,
         "value": float(n)}
        for n in range(MANY) for step in range(2)
    ])  # fmt: skip
    run_rollups(lake)
    both = "run=bare&run=many"
    with asking(lake) as client:
        pages = {
            path: client.get(f"/{path}")
            for run in ("bare", "empty", "broken", "many")
            for path in (run_pages.href(run), f"explore/?run={run}", f"explore/media.html?run={run}")
        }
        pages |= {
            f"explore/{name}": client.get(f"/explore/{name}") for name in ("compare.html", "sweep.html", "view.md")
        }
        pages |= {"both": client.get(f"/explore/compare.html?{both}"), "all": client.get(f"/explore/?{both}&metric=*")}
        points = client.get(f"/explore/points.json?{both}&metric=m/*").json()["lines"]
        of_all = client.get(f"/explore/points.json?{both}&metric=*").json()["lines"]
    assert {path: page.status_code for path, page in pages.items() if page.status_code != 200} == {}
    assert {path: len(page.content) for path, page in pages.items() if len(page.content) > MOST_BYTES} == {}
    assert "No curves: no step of the run is in the lake" in pages[run_pages.href("bare")].text
    assert "more: " in pages[run_pages.href("many")].text
    assert pages["all"].text.count('class="plot"') == MOST_METRICS
    assert [line["metric"] for line in of_all] == [line["metric"] for line in points]  # no empty columns in their place
    assert {(line["run"], line["metric"]): len(line["points"]) for line in points} == {
        (run, f"m/{n:04}"): 2 * (run == "many") for run in ("bare", "many") for n in range(MOST_METRICS)
    }


@pytest.mark.slow
def test_a_run_that_is_erased_while_it_is_looked_at_is_gone_at_the_next_look(tmp_path, monkeypatch):
    """Six who look all the time get pages or none, no fault of a file that is gone; then no address tells of it."""
    monkeypatch.setattr(pages_module, "FRESH_S", 0.0)
    site = Site(tmp_path)
    for seed, run in ((100, "exp-erased"), (200, "exp-stays")):
        site.bring(any_rows("runs", 1, run=run, incarnation=seed), "runs")
        site.bring(step_rows(20, run=run, incarnation=seed + 1))
    run_rollups(site.lake)
    paths = (run_pages.href("exp-erased"), "runs/", "explore/", "explore/points.json?run=exp-erased", "assets/site.js",
             "explore/compare.html")  # fmt: skip
    subject = subject_of(site.lake, [], run="exp-erased")
    name = make_plan(reach(site), subject)
    propose(site.lake, name, "Petra")
    approve(site.lake, name.name, "Anna")
    is_over, statuses, faults = threading.Event(), [], []
    with asking(site.lake) as client, ThreadPoolExecutor(len(paths)) as viewers:
        assert "exp-erased" in client.get("/runs/").text
        assert client.get(f"/{paths[3]}").json()["lines"][0]["points"]

        def look(path):
            while not is_over.is_set():
                answer = client.get(f"/{path}")
                statuses.append((path, answer.status_code))
                faults.extend(re.findall("(?:DataFusion|Error|Traceback).*", answer.text))

        lookers = [viewers.submit(look, path) for path in paths]
        try:
            apply(reach(site), name.name, subject, "Otto")
        finally:
            is_over.set()
        for looker in lookers:
            looker.result()
        assert client.get(f"/{paths[0]}").status_code == 404
        assert not any(line["points"] for line in client.get(f"/{paths[3]}").json()["lines"])
        for path in ("runs/", "explore/", "assets/site.js", "explore/sweep.html"):
            assert "exp-erased" not in client.get(f"/{path}").text, path
        assert client.get(f"/{run_pages.href('exp-stays')}").status_code == 200
    assert faults == []
    assert {status for _, status in statuses} <= {200, 400, 404, 503}, statuses  # 400: one run is nothing to compare
