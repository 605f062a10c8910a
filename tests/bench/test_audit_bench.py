"""The bench of the audit log runs, and an append costs what it costs, however long the audit log is."""

import pytest
from benched import benched

MOST = 3.0
"""Times what an append takes on a trail of a hundredth: it would be a hundred if it read the audit log."""


@pytest.mark.bench
def test_an_append_does_not_read_the_trail():
    """A trail of 60,000 rows, verified whole and at its end."""
    told = benched("audit_bench.py", "--rows", "60000")
    assert told["append_to_short"] < MOST
    assert told["since_cpu_s"] < told["verify_cpu_s"]
