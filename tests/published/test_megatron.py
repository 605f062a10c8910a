"""Published logs of Megatron-LM: every iteration is there once."""

import gzip
import re

import pytest
from importing import ask, imported


@pytest.mark.parametrize("name", ["meg_gpt2_perf_n16-1999618", "meg_ds_3d_gpt2_perf_n16-ds-off"])
def test_iterations(lake, spool, published, name):
    """The steps are those of the log's lines, with their times."""
    file = published("megatron_logs") / f"{name}.out.gz"
    text = gzip.decompress(file.read_bytes()).decode(errors="replace")
    told = re.findall(r"iteration +(\d+)/ +\d+ \|.*?elapsed time per iteration \(ms\): ([\d.]+)", text)
    done = imported(lake, spool, "megatron", file)
    assert done.rows["steps"] == len(told) > 3
    steps = ask(lake, "SELECT step, step_time_s s FROM steps ORDER BY step")
    assert [(row["step"], round(row["s"], 4)) for row in steps] == [
        (int(step), round(float(ms) / 1000, 4)) for step, ms in sorted(told, key=lambda one: int(one[0]))
    ]
