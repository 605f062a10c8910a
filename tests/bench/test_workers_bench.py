"""The bench of workers runs, and what a cluster finds is what one process finds."""

import pytest
from benched import benched


@pytest.mark.bench
def test_results_do_not_depend_on_workers():
    """A small job, checked and rolled up by one process, one worker and two: the same results; ratios come out."""
    told = benched("workers_bench.py", "--gpus", "2", "--hours", "0.02", "--rounds", "1")
    assert told["same"]
    assert set(told["ratios"]) == {"check", "rollup", "both"}
    assert all(
        len(step["workers_s"]) == int(count) for count, steps in told["steps"].items() for step in steps.values()
    )
