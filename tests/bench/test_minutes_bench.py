"""The bench of minutes."""

import pytest
from benched import benched


@pytest.mark.bench
def test_rounds_with_and_without_news_are_measured():
    """Each round has its stages, those without news come last, and a round costs at least what its stages do."""
    rounds = benched("minutes_bench.py", "--gpus", "2", "--rounds", "2")
    assert [one["minute"] for one in rounds] == [1, 2, 0, 0]
    for one in rounds:
        assert {"ingest", "check", "check again", "rollup", "catalog", "slo"} <= one["stages"].keys()
        assert one["cpu_s"] > sum(one["stages"].values()) * 0.9
