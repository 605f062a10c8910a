"""Slowed: which part is to blame, said in words at the top of a run's page; or why that is not known."""

from dataclasses import replace

import pytest
from recorded_runs import lake_of_runs
from segments import phase_rows, put_segment, step_rows
from slowdowns import SOUND

from ranklake.insight.diagnosis.critical_path import CriticalPath
from ranklake.insight.diagnosis.what_if import Worker
from ranklake.insight.runs import slowdown as slowdown_module
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.report import runs_state
from ranklake.insight.runs.slowdown import NO_SPANS, Cause, slowdown_cause
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.views.html.run_pages import section
from ranklake.views.html.shell import render
from ranklake.views.html.slowdown_charts import slowdown_charts, slowdown_map, slowdown_tables, verdict
from ranklake.views.run_causes import path_facts, path_line, path_words


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"s": 1.019}, "Stragglers cost 1.9 %: nothing to mend"),
        ({"m_s": 0.5, "m_w": 0.9}, "through the last stage (stage 1 of 0 to 1); 50.0 % of that goes"),
        ({"m_s": 1.3}, "through the last stage (stage 1 of 0 to 1); all of that goes"),
        ({"m_w": 0.7}, "through rank 3; 70.0 % of that goes"),
        ({"m_w": 0.7, "worst_ranks": [3, 5]}, "through ranks 3, 5; "),
        (
            {"m_w": 0.7, "worst_ranks": [3, 5], "by_worker": [Worker(3, 1, 1, 1.5), Worker(5, 0, 0, 1.01)]},
            "through rank 3; 70.0 % of that goes if the slowest 2 ranks alone are ideal",
        ),
        ({"m_w": 0.7, "worst_ranks": list(range(123))}, "through ranks 0, 1, 2, 3, 4, 5, 6, 7, … (123); "),
        ({"m_s": None, "by_stage": {0: 1.2}, "by_dp_rank": {1: 1.15, 0: 1.0}}, "through data-parallel rank 1"),
        ({"by_stage": {0: 1.19, 1: 1.0}}, "through stage 0 of 0 to 1"),
        ({"by_kind": {"gc": 1.11}}, "through gc operations on all ranks"),
        ({}, "through many parts, none of which stands out"),
    ],
)
def test_the_part_that_makes_half_of_the_loss_is_to_blame(changed, said):
    """The paper's shares decide first, then what a part makes alone; small losses are nothing to mend."""
    assert said in verdict(slowdown_module._cause(replace(SOUND, **changed)))


def test_who_holds_the_critical_path_is_said_or_why_nobody_knows():
    """The stage, or the rank of a run of one stage; of one rank, or without spans, nothing; else the reason."""
    path = SOUND.critical_path
    assert (
        path_words(path)
        == "stage 1 holds 75.0 % of the steps' critical path; by kind of operation forward-compute 100.0 %"
    )
    assert path_words(replace(path, by_stage={0: 1.0})).startswith("rank 3 holds 75.0 %")
    assert path_words(replace(path, by_stage={0: 1.0}), "rank 0").startswith("rank 0 holds 25.0 %")
    assert path_words(replace(path, by_stage={0: 1.0}, by_rank={0: 1.0})) == ""
    assert path_words(CriticalPath({}, {}, {}, [])) == ""
    assert path_line(Cause(SOUND)).endswith(" (ranklake what-if r)")
    assert path_line(Cause(None, NO_SPANS)) == ""
    assert path_line(Cause(None, "stages differ")) == "path        unknown: stages differ"
    assert path_facts(Cause(None, "stages differ")) == {
        "by_stage": None, "by_rank": None, "by_kind": None, "reason": "stages differ",
    }  # fmt: skip
    assert path_facts(Cause(SOUND))["by_rank"] == {3: 0.75, 0: 0.25}


def test_tables_tell_each_part_and_the_way_to_a_timeline():
    """By kind, stage and rank, worst first; of one stage and one rank there is nothing to compare."""
    found = slowdown_tables(slowdown_module._cause(replace(SOUND, per_step={1: 1.1, 7: 1.3})))
    told = {one.name: [tuple(row.values()) for row in one.rows] for one in found}
    assert told == {
        "what-if-kinds": [("forward-compute", 1.05, 1.0)],
        "what-if-stages": [(1, 1.0, 0.75), (0, 1.0, 0.25)],
        "what-if-ranks": [(3, 1, 1, 1.0, 0.75), (0, 0, 0, 1.0, 0.25)],
        "what-if-steps": [
            (7, 1.3, None, None, "ranklake trace r --step 7"),
            (1, 1.1, 3, "forward-compute", "ranklake trace r --step 1"),
        ],
    }
    alone = replace(SOUND, by_stage={0: 1.2}, by_worker=[Worker(0, 0, 0, 1.0)])
    assert [one.name for one in slowdown_tables(slowdown_module._cause(alone))] == ["what-if-kinds", "what-if-steps"]
    assert not list(slowdown_tables(Cause(None, "no spans")))


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with a run of two ranks whose steps have phases."""
    folder = tmp_path_factory.mktemp("slowed")
    lake = Lake.create(str(folder / "lake"))
    for rank in range(2):
        put_segment(folder / "spool", step_rows(20, rank=rank, incarnation=7 + rank))
        put_segment(folder / "spool", phase_rows(20, rank=rank, incarnation=7 + rank), "spans")
    ingest(lake, Spool(str(folder / "spool")), InProcess())
    run_rollups(lake)
    return lake


def test_a_map_of_thousands_of_ranks_shows_the_slow_one():
    """A column stands for as many as are needed, and shows the slowest; of few ranks the bars say it all."""
    workers = [Worker(rank=n, stage=0, dp_rank=n, s=1.5 if n == 3 else 1.0) for n in range(4096)]
    found = replace(SOUND, by_stage={0: 1.0}, by_dp_rank={one.dp_rank: one.s for one in workers}, by_worker=workers)
    heat = slowdown_map(Cause(found))
    assert len(heat.columns) == 128
    assert (heat.columns[0], heat.values[0], set(heat.values[1:])) == ("0 to 31", 0.5, {0.0})
    assert slowdown_map(Cause(replace(SOUND, by_stage={0: 1.0}))) is None
    assert slowdown_map(Cause(SOUND)).columns == ["0", "1"]


@pytest.mark.slow
def test_pages_say_what_slowed_a_run_or_why_that_is_unknown(lake, tmp_path):
    """With spans of phases a verdict and charts; without spans, and with too many, the reason; each page is whole."""
    found = slowdown_cause(lake, asking(lake), "r1")
    assert found.simulation is not None
    assert verdict(found)
    assert [one.name for one in slowdown_charts(found)] == ["slowed-parts"]  # of two ranks a map tells no more
    text = text_of(lake, "r1")
    assert 'id="slowed"' in text
    assert "ranklake trace r1 --step" in text
    assert '<h2 id="what-if-kinds">' in text
    none = text_of(lake_of_runs(tmp_path), "beta")
    assert "What slowed it is unknown: no spans of its steps were recorded." in none
    assert slowdown_cause(lake, asking(lake), "r1", most=3).reason.endswith("run 'ranklake what-if r1'")


def text_of(lake, run):
    """Return a run's page."""
    (page,) = (one for one in section(runs_state(lake)).pages if one.title == run)
    return render(page).decode()
