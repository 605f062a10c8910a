"""The bench of following runs."""

import pytest
from benched import benched


@pytest.mark.bench
def test_following_a_rank_is_measured():
    """One pair by turns: both ranks work, each step is told after it ended, and the difference adds up."""
    told = benched("watch_bench.py", "--pairs", "1", "--turns", "2", "--seconds", "3")
    assert told["pairs"] == 2
    assert told["steps"] > 20
    assert min(told["alone_percent"], told["followed_percent"], told["behind_median_s"]) > 0
    assert abs(told["followed_percent"] - told["alone_percent"] - told["more_percent"]) < 1e-9
