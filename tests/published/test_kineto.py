"""Published profiler traces: unions of intervals per step are those of the reference."""

from published_data import table
from published_lakes import kineto


def test_per_step_reference(lake, spool, published):
    """Busy, compute, communication and overlap of both ranks and steps, in µs, clipped to the step."""
    data = published("kineto")
    found = kineto(data, lake, spool)
    names = ("step_us", "gpu_busy_us", "compute_us", "nccl_us", "overlap_us")
    assert found == {
        f"{row['rank']}/{row['step']}/{name}": float(row[name])
        for row in table(data / "kineto" / "per_step_reference.csv")
        for name in names
    }
