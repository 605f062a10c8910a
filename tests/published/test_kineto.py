"""Published profiler traces: unions of intervals per step are those of the reference."""

import pytest
from published_data import table
from published_lakes import STEP_PARTS, kineto


def test_per_step_reference(lake, spool, published):
    """Busy, compute, communication and overlap of both ranks and steps, in µs, clipped to the step."""
    data = published("kineto")
    found = kineto(data, lake, spool)
    assert found == {
        f"{row['file']}/{row['step']}/{name}": pytest.approx(float(row[name]), abs=5e-4)
        for row in table(data / "kineto" / "per_step_reference.csv")
        for name in STEP_PARTS
    }
