"""Published MLPerf logs give the figures of their README, exact in ms."""

import json
from statistics import fmean, median

import pytest
from importing import ask, imported

from ranklake.lake.rollups.runner import run_rollups


def test_gpt3_on_512(lake, spool, published):
    """Events, ranks, goodput and steps of GPT-3 on 512 H100."""
    folder = published("mlperf") / "v4.1" / "NVIDIA__eos_n64_ngc24.09_nemo_gpt3"
    done = imported(lake, spool, "mlperf", folder / "result_0.txt.gz", run="gpt3")
    assert (done.rows["events"], done.rows["steps"], done.refused) == (1_086, 288, {})
    counted = ask(lake, "SELECT event, count(*) n, count(DISTINCT rank) r FROM events GROUP BY event")
    by_event = {row["event"]: (row["n"], row["r"]) for row in counted}
    assert (by_event["init_start"], by_event["cache_clear"]) == ((512, 512), (64, 1))
    run_rollups(lake)
    account = ask(lake, "SELECT wall_ns, init_ns, productive_ns, evaluation_ns, unattributed_ns FROM goodput")[0]
    ms = {name: value // 10**6 for name, value in account.items()}
    assert ms == {"wall_ns": 252_509 + 2_986_485, "init_ns": 252_509, "productive_ns": 2_746_995,
                  "evaluation_ns": 238_373, "unattributed_ns": 1_117}  # fmt: skip
    assert all(value % 10**6 == 0 for value in account.values())
    steps = [row["s"] for row in ask(lake, "SELECT step_time_s s FROM steps")]
    assert median(steps) == pytest.approx(9.493094, abs=1e-6)
    assert sum(steps) == pytest.approx(2734.3427, abs=1e-4)


def test_lora(lake, spool, published):
    """The ten runs' minutes without best and worst, scaled, are the result."""
    folder = published("mlperf") / "v4.0" / "NVIDIA__eos_ngc24.04_nemo_llama2_70b_lora"
    done = imported(lake, spool, "mlperf", folder / "result_*.txt.gz", run="lora")
    assert len(done.runs) == 10
    minutes = sorted(row["d"] / 60e9 for row in ask(lake, "SELECT duration_ns d FROM spans WHERE name = 'run'"))
    factor = json.loads((folder / "scaling.json").read_text())["scaling_factor"]
    assert fmean(minutes[1:-1]) * factor == pytest.approx(28.1628, abs=5e-5)
