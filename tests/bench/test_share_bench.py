"""The bench of shares runs, and a refresh reads only what came."""

import pytest
from benched import benched


@pytest.mark.bench
def test_one_more_hour_costs_that_hour():
    """A small lake: each share has all rows that its role sees, and a refresh reads the one new file, or none."""
    told = benched("share_bench.py", "--rows", "7000000")
    for parts in told["costs"].values():
        assert parts["build"]["read"] == 4
        assert parts["nothing new"]["read"] == 0
        assert parts["one more hour"]["read"] == 1
