"""The bench of a remote cluster runs, and the cluster's results are those of one process."""

import pytest
from benched import benched


@pytest.mark.bench
def test_a_remote_cluster_gives_the_same_results():
    """A small job on two workers: the same results; bytes, tasks and CPU seconds come out."""
    figures = benched("cluster_bench.py", "--gpus", "2", "--hours", "0.02", "--workers", "2", "--tasks", "20")
    assert figures["same"]
    assert figures["pipeline"]["tasks"] > 0
    assert figures["plain_tasks"]["tasks"] >= 20
    assert all(value > 0 for value in figures["pipeline"].values())
