"""What detectors say of real training logs: nothing of the sound ones."""

from itertools import groupby

import numpy as np
import pytest
from importing import ask, imported

from ranklake.detection.declaration import Series, of_detector, thresholds_of
from ranklake.lake.rollups.detectors.metrics import DETECTORS, series_anomaly
from ranklake.lake.rollups.runner import run_rollups


@pytest.mark.slow
def test_real_logs_give_no_false_finding(lake, spool, published, capsys):
    """Megatron-LM's and MLPerf's runs, one of which was preempted: no warning, and nothing worse."""
    for number, file in enumerate(sorted((published("megatron_logs") / "megatron_logs").glob("*.out.gz"))):
        imported(lake, spool, "megatron", file, run=f"megatron-{number}")
    files = sorted(published("mlperf").joinpath("mlperf").rglob("result_*.txt.gz"))
    for number, file in enumerate(files):
        imported(lake, spool, "mlperf", file, run=f"mlperf-{number}")
    run_rollups(lake, ["run_findings"])
    assert ask(lake, "SELECT count(*) n FROM step_rollup")[0]["n"] > 300
    loud = ask(lake, "SELECT run, detector, message FROM run_findings WHERE severity <> 'info'")
    assert loud == []
    # steps' columns, as if they were metrics without a detector: what `series_anomaly` would say of them
    limits = of_detector("series_anomaly", thresholds_of(DETECTORS))
    lengths = []
    for column in ("step_time_s", "loss", "grad_norm"):
        sql = f"SELECT run, attempt, ts, step, {column} AS value FROM steps WHERE rank = 0 AND {column} IS NOT NULL"
        rows = sorted(ask(lake, sql), key=lambda row: (row["run"], row["attempt"], row["ts"]))
        for run, of_run in groupby(rows, key=lambda row: row["run"]):
            series = _series(run, column, list(of_run))
            lengths.append(len(series))
            assert list(series_anomaly(series, limits)) == [], (run, column)
    with capsys.disabled():
        print(f"\n{sum(length >= limits['min_values'] for length in lengths)} series of {limits['min_values']} or more")
    assert max(lengths) >= limits["min_values"]


def _series(run, metric, rows):
    columns = {name: np.array([row[name] for row in rows], float) for name in ("attempt", "step", "value")}
    columns["ts"] = np.array([row["ts"].timestamp() * 1e6 for row in rows])
    return Series({"run": run, "metric": metric}, columns | {"agg_mean": np.full(len(rows), np.nan)})
