"""Published logs of Megatron-LM: every iteration is there once."""

import pytest
from importing import ask, imported
from published_lakes import told_iterations


@pytest.mark.parametrize("name", ["meg_gpt2_perf_n16-1999618", "meg_ds_3d_gpt2_perf_n16-ds-off"])
def test_iterations(lake, spool, published, name):
    """The steps are those of the log's lines, with their times."""
    file = published("megatron_logs") / "megatron_logs" / f"{name}.out.gz"
    told = told_iterations(file)
    done = imported(lake, spool, "megatron", file)
    assert done.rows["steps"] == len(told) > 3
    steps = ask(lake, "SELECT step, step_time_s s FROM steps ORDER BY step")
    assert [(row["step"], round(row["s"], 4)) for row in steps] == [(step, round(ms / 1000, 4)) for step, ms in told]
