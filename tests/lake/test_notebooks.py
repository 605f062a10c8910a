"""The notebooks of docs/notebooks: every cell runs, and finds what was put into the lake."""

from datetime import timedelta

import pytest
from notebooks import FOLDER, NOTEBOOKS, run_notebook
from rollup_inputs import DAY, NOON, told

from ranklake.lake.store.lake import Lake

pytestmark = pytest.mark.slow


def later(seconds):
    return NOON + timedelta(seconds=seconds)


def job(name, submitted_s, begun_s, lasted_s, devices):
    times = {"submit_ts": later(submitted_s), "start_ts": later(begun_s), "end_ts": later(begun_s + lasted_s)}
    return {"job_id": name, "pool": "p", "gpu_count": devices, "ts": NOON, **times}


ROWS = {
    "steps": [
        {"run": "gpt-1", "rank": rank, "step": n, "ts": later(30 * n), "lr": 0.001 * (1 + n // 10),
         "loss": 5.0 - n / 10, "step_time_s": 1.0 + 0.5 * (rank == 3), "tokens": 150 if rank == 3 else 100,
         "data_time_s": 0.1, "collective_time_s": 0.1}
        for n in range(20)
        for rank in range(4)
    ],
    "run_summary": [{"run": "gpt-1", "ts": NOON}, {"run": "gpt-0", "ts": later(-3600)}],
    "gpu_samples": [
        {"holder_run": "gpt-1", "ts": later(30 * n), "gpu_utilization_ratio": 0.9 - 0.04 * n, "power_watts": 400.0}
        for n in range(20)
    ],
    "job_facts": [
        job("long", 0, 0, 1000, 6), job("large", 1, 1000, 100, 8), job("short", 2, 1100, 10, 2),
        job("later", 3, 1110, 50, 8),
    ],
    "cluster_hourly": [
        {"scope": "cluster", "scope_name": "c", "date": DAY + timedelta(days=7 * n), "hour": later(7 * 86400 * n),
         "gpu_total_s": 3600.0 * 200, "gpu_delivered_s": 3600.0 * (100 + 10 * n), "gpu_idle_allocated_s": 3600.0 * 25,
         "gpu_busy_s": 1800.0, "gpu_busy_observed_s": 3600.0, "queue_depth_max": n}
        for n in range(6)
    ],
    "run_goodput": [
        {"run": "gpt-1", "failures": 3, "mttf_s": 10_000.0, "checkpoint_mean_s": 50.0, "checkpoint_interval_s": 100.0},
        {"run": "gpt-2", "failures": 0},
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def lake(tmp_path_factory):
    """Give a lake with a run, a queue, six weeks and a run that failed."""
    lake = Lake.create(str(tmp_path_factory.mktemp("notebooks") / "lake"))
    for table, facts in ROWS.items():
        told(lake, table, facts)
    return lake


@pytest.fixture
def names(lake, monkeypatch):
    """Give a function that runs a notebook and returns its variables."""
    monkeypatch.setenv("RANKLAKE_LAKE", lake.uri)
    return run_notebook


def test_utilization_and_loss(names):
    """Utilization falls as the loss does, and as the learning rate grows; the chart has three parts."""
    found = names("utilization-and-loss")
    assert len(found["both"]) == 10
    assert found["correlation"]["utilization"]["loss"] == pytest.approx(1)
    assert found["correlation"]["utilization"]["lr"] < -0.8
    assert len(found["chart"].to_dict()["vconcat"]) == 3


def test_scheduler_policies(names):
    """In order nobody passes the large job that waits; shortest first and backfill let the short one through."""
    waits = names("scheduler-policies")["waits"]
    assert waits["first come"].to_dict() == {"long": 0, "large": 999, "short": 1098, "later": 1107}
    assert waits["backfill"].to_dict() == {"long": 0, "large": 999, "short": 0, "later": 1097}
    assert waits["shortest first"].to_dict() == {"long": 0, "large": 1049, "short": 0, "later": 997}


def test_data_skew(names):
    """The rank with half more tokens is named, and that its time follows them."""
    found = names("data-skew")
    (skewed,) = found["skewed"].itertuples()
    assert (skewed.rank, skewed.tokens_excess) == (3, pytest.approx(0.5))
    assert found["follows"] == pytest.approx(1)


def test_capacity_plan(names):
    """Ten device-hours more a week, of 200: five weeks after the last, which had 150."""
    found = names("capacity-plan")
    assert found["growth_h"] == pytest.approx(10)
    assert found["weeks_left"] == pytest.approx(5)
    assert found["idle"]["idle_h"][0] == pytest.approx(150)


def test_checkpoint_interval(names):
    """Young's interval; a shorter one loses more."""
    (run,) = names("checkpoint-interval")["runs"].itertuples()
    assert run.best_interval_s == pytest.approx(1000)
    assert run.lost_at_best == pytest.approx(0.1)
    assert run.lost_now == pytest.approx(0.505)


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_kept_without_outputs(name):
    """Outputs are somebody's data, and no diff; each is told of in the README."""
    code = [cell for cell in NOTEBOOKS[name]["cells"] if cell["cell_type"] == "code"]
    assert not [cell for cell in code if cell["outputs"] or cell["execution_count"]]
    assert f"({name}.ipynb)" in (FOLDER / "README.md").read_text(encoding="utf-8")
    assert NOTEBOOKS[name]["nbformat"] == 4
