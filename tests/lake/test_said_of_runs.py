"""What a run is does not depend on the date of the row that says so, nor on when that row arrives."""

from datetime import timedelta
from decimal import Decimal

import pytest
from bringing import bring
from importing import ask, imported
from lake_fixtures import copied
from rollup_inputs import DAY, NOON, append, state

from ranklake.capture.importers.imports import import_files
from ranklake.lake.rollups.registry import select_rollups
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import CostSection
from ranklake.quality.check import run_checks

DAYS = 2
SHOWN = ["run_summary", "cost"]
FACTS = "device,devices,dtype,flops\nNVIDIA H100 80GB HBM3,256,bf16,1e12\n"
COLUMNS = {
    "runs": "{device_name: device, device_count: devices, compute_dtype: dtype}",
    "scalars": "{metric: {value: model/flops_per_step}, kind: {value: gauge}, value: flops}",
}
FIGURES = (
    "SELECT g.device_count, g.wall_ns, s.mfu_ratio, s.device_name, c.cost FROM goodput g JOIN run_summary s "
    "ON s.run = g.run AND s.attempt = g.attempt LEFT JOIN (SELECT run, attempt, sum(cost_total) cost FROM cost "
    "GROUP BY run, attempt) c ON c.run = g.run AND c.attempt = g.attempt ORDER BY g.attempt"
)
LOG = """:::MLLOG {"time_ms": 1772366400000, "key": "init_start"}
:::MLLOG {"time_ms": 1772366400000, "key": "submission_benchmark", "value": "gpt3", "event_type": "POINT_IN_TIME"}
:::SYSJSON {"number_of_nodes": "2", "accelerators_per_node": "8", "accelerator_model_name": "H100, the fast one"}
:::MLLOG {"time_ms": 1772366409000, "key": "run_stop"}
"""
PRICES = "device_name,pool,price_per_device_hour,currency,valid_from,valid_to\n,,2.00,EUR,2020-01-01,\n"


def logged(run="r1"):
    """Return {table: rows} of a run with steps on two days of which nothing else is known, then a restart."""
    base = {"run": run, "rank": 0}
    starts = [(0, NOON), (1, NOON + timedelta(days=DAYS))]
    return {
        "steps": [
            {
                **base, "attempt": n, "incarnation": n + 1, "step": 100 * n + at, "step_time_s": 3600.0,
                "ts": start + timedelta(hours=at),
            }
            for n, start in starts
            for at in range(24)
        ],
    }  # fmt: skip


def add_facts(lake, folder, when, run="r1", tables=("runs", "scalars")):
    """Import what a log does not say, dated to any time."""
    for table in tables:
        facts, mapping = folder / f"{when:%Y%m%d}-{table}.csv", folder / f"{when:%Y%m%d}-{table}.yaml"
        facts.write_text(FACTS)
        mapping.write_text(
            f"table: {table}\nrun: {run}\ntime: {{value: {when:%Y-%m-%dT%H:%M:%SZ}}}\ncolumns: {COLUMNS[table]}\n"
        )
        import_files("table", [str(facts)], str(folder / "spool"), mapping=str(mapping))
    bring(lake, folder / "spool")


@pytest.fixture
def priced(tmp_path):
    (tmp_path / "prices.csv").write_text(PRICES)
    lake = Lake.create(str(tmp_path / "lake")).configured(cost=CostSection(str(tmp_path / "prices.csv")))
    for table, rows in logged().items():
        append(lake, table, rows)
    return lake


@pytest.fixture(scope="module")
def rolled_up(tmp_path_factory):
    """Give a lake whose run was rolled up before anything was said of it; tests take copies."""
    folder = tmp_path_factory.mktemp("rolled_up")
    (folder / "prices.csv").write_text(PRICES)
    lake = Lake.create(str(folder / "lake")).configured(cost=CostSection(str(folder / "prices.csv")))
    for table, rows in logged().items():
        append(lake, table, rows)
    run_rollups(lake, SHOWN)
    assert ask(lake, FIGURES)[0]["cost"] is None
    return lake


@pytest.mark.slow
@pytest.mark.parametrize("offset", [timedelta(days=-400), timedelta(hours=3), timedelta(days=60)])
def test_facts_hold_whatever_their_date(priced, rolled_up, tmp_path, offset):
    """Devices, FLOPs and price of an imported run are the same, dated long before it, within it or long after it.

    Added after the rollups, they bring these to what they are where all was there at once.
    """
    add_facts(priced, tmp_path, NOON + offset)
    run_rollups(priced, SHOWN)
    day_ns = 24 * 3600 * 10**9
    # 1e12 FLOPs in 3,600 s on the one rank that the log has, which stands for no more than its own device
    first, again = ask(priced, FIGURES)
    assert (first["device_count"], first["wall_ns"], first["device_name"]) == (256, day_ns, "NVIDIA H100 80GB HBM3")
    assert (first["cost"], again["cost"]) == (Decimal(256 * 24 * 2), Decimal(256 * 48 * 2))
    assert first["mfu_ratio"] == pytest.approx(1e12 / 3600 / 989.4e12, rel=1e-3)
    assert (again["device_count"], again["device_name"], again["mfu_ratio"]) == (
        256,
        first["device_name"],
        first["mfu_ratio"],
    )
    assert not [one for one in run_checks(priced, ["runs"]).results if one.status == "failed"]
    if offset == timedelta(hours=3):
        return
    late = copied(rolled_up, tmp_path / "late").configured(cost=CostSection(str(tmp_path / "prices.csv")))
    bring(late, tmp_path / "spool")
    run_rollups(late, SHOWN)
    one, other = (state(lake, select_rollups(SHOWN)) for lake in (late, priced))
    for name in one:
        assert one[name].equals(other[name]), name


@pytest.mark.slow
def test_what_is_said_by_hand_goes_before_what_a_log_says(tmp_path):
    """Whoever adds facts corrects the log, whenever the fact is dated; what nobody corrects stays the log's."""
    lake = Lake.create(str(tmp_path / "lake"))
    (tmp_path / "r1.txt").write_text(LOG)
    imported(lake, tmp_path / "spool", "mlperf", tmp_path / "r1.txt", run="r1")
    for offset in (timedelta(days=60), timedelta(days=-400)):
        add_facts(lake, tmp_path, NOON + offset, tables=("runs",))
        run_rollups(lake, ["run_summary"])
        (row,) = ask(lake, "SELECT device_name n, device_count c FROM goodput_daily")
        assert row == {"n": "NVIDIA H100 80GB HBM3", "c": 256}
        (row,) = ask(lake, "SELECT job, world_size w, wall_ns FROM run_summary")
        assert row == {"job": "gpt3", "w": 16, "wall_ns": 9 * 10**9}


def test_a_run_known_by_facts_alone_stands_where_they_are_dated(tmp_path):
    """Where nothing else is known of a run, the fact's own date is all there is: it lasted no time."""
    lake = Lake.create(str(tmp_path / "lake"))
    add_facts(lake, tmp_path, NOON, tables=("runs",))
    run_rollups(lake, ["goodput"])
    (row,) = ask(lake, "SELECT date, wall_ns, device_count FROM goodput")
    assert row == {"date": DAY, "wall_ns": 0, "device_count": 256}
