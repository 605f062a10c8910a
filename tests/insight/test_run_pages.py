"""Pages of runs: numbers and curves are what their SQL gives, a page is small however long the run, names are text."""

import json
import re
import shutil
from dataclasses import replace
from datetime import timedelta

import altair as alt
import pyarrow as pa
import pytest
from page_read import Read, compared
from recorded_runs import RUNS, lake_of_runs
from rollup_inputs import NOON, append
from wide_site import steps_of

from ranklake.cli import run
from ranklake.insight.runs import report
from ranklake.insight.runs.curves import HEAT_PARTS, HEAT_ROWS, MOST_METRICS, STEP_PARTS
from ranklake.insight.runs.report import run_questions, runs_state
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.pipeline.report_sections import SECTIONS
from ranklake.views.html import site as publishing
from ranklake.views.html.run_pages import href, run_page, section
from ranklake.views.html.shell import Served, parts_of, render
from ranklake.views.html.site import publish

MOST_BYTES = 2_000_000


MOST_OF_HEAD = 14


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake of four runs."""
    return lake_of_runs(tmp_path_factory.mktemp("runs"))


@pytest.fixture
def light(monkeypatch):
    """Have sites without the chart library, which takes two seconds to make."""
    monkeypatch.setattr(publishing, "library", lambda: b"")


@pytest.mark.slow
def test_every_number_is_what_its_sql_gives(lake):
    """Figures and cells of every page, run as the SQL stands there; curves are rows of their SQL."""
    pages = section(runs_state(lake)).pages
    assert [page.path for page in pages] == ["runs/index.html", *(href(name) for name in reversed(RUNS))]
    counts, points = [], 0
    for page in pages:
        text = render(page).decode()
        assert len(text) < MOST_BYTES
        counts.append(compared(lake, text))
        found = Read(text)
        for source, spec in zip(found.specs_of, found.specs, strict=True):
            if "data" not in spec:  # a heat map, which the shell's own script draws
                continue
            alt.Chart.from_dict(spec)  # raises for what is no Vega-Lite
            answers = {row.get("step"): row for row in query(lake, found.sql[source]).to_pylist()}
            values = spec["data"]["values"]
            points += len(values)
            if source in {"curve", "utilization"}:
                for value in values:
                    known = {name: answers[value["step"]][name] for name in value if name in answers[value["step"]]}
                    assert {name: value[name] for name in known} == pytest.approx(known, rel=1e-5)
    assert min(counts) > 30
    assert points > 200


@pytest.mark.slow
def test_a_page_is_as_small_for_a_long_run_of_many_ranks(tmp_path):
    """Parts of steps, groups of ranks and metrics are at most as many as are drawn; the slow rank shows among 4,096."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "steps", steps_of("wide", 4096, 4))
    append(lake, "steps", steps_of("long", 2, 2000))
    append(lake, "steps", steps_of("full", HEAT_ROWS, STEP_PARTS))
    append(lake, "scalars", [
        {"run": "full", "ts": NOON, "rank": rank, "incarnation": 9, "slot": 1000 * rank + n, "step": n % 50,
         "metric": f"own/metric_{n // 50}", "kind": "gauge", "value": float(n)}
        for rank in range(2)
        for n in range(50 * (MOST_METRICS + 3))
    ])  # fmt: skip
    run_rollups(lake, ["run_summary"])
    state = runs_state(lake)
    sizes = {}
    for name, slow in (("wide", {0}), ("long", set()), ("full", {3})):
        curves = report.run_state(state.ask, name).curves
        assert len(curves.steps.rows) <= STEP_PARTS
        assert len(curves.heat.rows) <= HEAT_ROWS * HEAT_PARTS
        assert len({row["metric"] for row in curves.metrics.rows}) <= MOST_METRICS
        assert {row["row"] for row in curves.heat.rows if row["excess_ratio"] > 0.1} == slow
        page = next(one for one in section(state).pages if one.path == href(name))
        sizes[name] = len(render(page))
    assert max(sizes.values()) < MOST_BYTES, sizes
    shutil.rmtree(tmp_path / "lake")


@pytest.mark.slow
def test_the_head_of_a_page_asks_little(lake):
    """It is sent before the rest is asked for; each question takes some ten milliseconds."""
    asked = []
    questions = run_questions(lake)

    def ask(sql):
        asked.append(sql)
        return questions.ask(sql)

    parts = parts_of(run_page(replace(questions, ask=ask), "alpha-1"), Served(()))
    head = next(parts)
    assert b'class="verdict failing"' in head
    assert len(asked) <= MOST_OF_HEAD
    assert b"".join(parts).strip()
    assert len(asked) > MOST_OF_HEAD


def test_only_pages_of_runs_that_changed_are_written(tmp_path, light):
    """A second call writes nothing; a run that goes on changes its page and the list, and not the others' pages."""
    lake = lake_of_runs(tmp_path)
    place = Store.at(str(tmp_path / "out"))

    def again(**named):
        done = publish(place, section(runs_state(lake, **named)))
        return done.pages, done.written, done.removed

    assert again() == (6, 6, 0)
    assert again() == (6, 0, 0)
    assert again(run="bet") == (6, 0, 0)
    more = steps_of("beta", 1, 3).filter(pa.array([False, True, True]))
    append(lake, "steps", more)
    run_rollups(lake)
    assert again() == (6, 2, 0), "its page, and the list of runs"


@pytest.mark.slow
def test_nothing_in_names_becomes_markup(lake):
    """Markup and characters that turn the writing are text in every place where a run's words stand."""
    text = "".join(render(page).decode() for page in section(runs_state(lake)).pages)
    assert "&lt;b&gt;" in text
    assert "<b>" not in text
    assert "\u202e" not in text
    assert "\x1b" not in text
    assert "lovelace" not in text.replace("adam", "")
    assert href("../../etc/passwd").count("/") == 1
    assert href("a.b") != href("a-b")


@pytest.mark.slow
def test_the_command_says_what_it_wrote(lake, tmp_path, light, capsys):
    """It names the first page; a run that is not there is a line that tells which are."""
    assert (
        run(["report", "runs", "--run", "alpha-1", "--lake", lake.uri, "--out", str(tmp_path / "out"), "--json"]) == 0
    )
    told = json.loads(capsys.readouterr().out)
    assert told["runs"]["headline"] == "4 runs: 1 failed, 1 running"
    assert (tmp_path / "out" / href("alpha-1")).exists()
    assert run(["report", "runs", "--run", "nobody", "--lake", lake.uri, "--out", str(tmp_path / "out")]) == 2
    assert "no run 'nobody'" in capsys.readouterr().err


def test_without_a_section_all_are_written(tmp_path, light, capsys):
    """The plain command writes the whole site; the record is none of its pages."""
    lake = Lake.create(str(tmp_path / "lake"))
    assert run(["report", "--lake", lake.uri, "--out", str(tmp_path / "out")]) == 0
    assert capsys.readouterr().out.rstrip().endswith("/out/index.html")
    assert {name for name in SECTIONS if (tmp_path / "out" / name).is_dir()} == set(SECTIONS)
    assert run(["report", "runs", "record", "--lake", lake.uri]) == 2
    assert "record is printed by itself" in capsys.readouterr().err


def test_a_lake_without_runs_has_a_page(tmp_path):
    """The list says that there is none, and what to do."""
    (page,) = section(runs_state(Lake.create(str(tmp_path / "lake")))).pages
    text = render(page).decode()
    assert "No runs yet" in text
    assert "ranklake pipeline" in text
    shutil.rmtree(tmp_path / "lake")


@pytest.mark.slow
def test_what_is_no_number_is_a_gap_in_a_chart(tmp_path):
    """A browser reads no NaN and no Infinity in JSON: a run that diverged has its charts all the same."""
    lake = Lake.create(str(tmp_path / "lake"))
    append(lake, "runs", [{"run": "r1", "ts": NOON}])
    losses = [2.0, 1.5, float("nan"), float("inf"), float("-inf"), float("nan")]
    told = [{"step": step, "ts": NOON + timedelta(seconds=step)} for step in range(len(losses))]
    append(lake, "steps", [{**one, "loss": loss, "step_time_s": 1.0} for one, loss in zip(told, losses, strict=True)])
    append(lake, "scalars", [
        {**one, "metric": metric, "value": value}
        for metric, values in (("some", losses), ("none", losses[2:]))
        for one, value in zip(told, values, strict=False)
    ])  # fmt: skip
    run_rollups(lake)
    found = section(runs_state(lake))
    text = render(next(page for page in found.pages if page.path == href("r1"))).decode()
    blocks = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', text, re.DOTALL)
    specs = {one: json.loads(one, parse_constant=pytest.fail) for one in blocks}
    assert len(specs) >= 3
    values = next(spec["data"]["values"] for one, spec in specs.items() if '"loss_min"' in one)
    assert [(row["loss"], row["loss_min"], row["loss_max"]) for row in values] == [
        (2.0, 2.0, 2.0), (1.5, 1.5, 1.5), *[(None, None, None)] * 4,
    ]  # fmt: skip
    assert not any('"none"' in one for one in specs)
