"""What detectors say of real training logs: nothing of the sound ones."""

import pytest
from importing import ask, imported

from ranklake.lake.rollups.runner import run_rollups


@pytest.mark.slow
def test_real_logs_give_no_false_finding(lake, spool, published):
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
