"""The bench of ranks that are slow at times: it judges the times that it is given."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

BENCH = Path(__file__).with_name("straggler_bench.py")


@pytest.mark.bench
@pytest.mark.parametrize(("noise", "found", "code"), [(0.01, 16, 0), (0.2, 0, 1)])
def test_it_finds_what_the_noise_leaves(tmp_path, noise, found, code):
    """With steps that vary by 1 % every slowed rank is found, with 20 % none; nobody else is named in either."""
    times = tmp_path / "times.json"
    times.write_text(json.dumps(np.random.default_rng(1).lognormal(-3, noise, 1000).tolist()))
    command = [sys.executable, str(BENCH), "--times", str(times), "--clean", "8"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert f"found in {found} of 16 runs" in done.stdout, done.stderr
    assert "false names: 0," in done.stdout
    assert done.returncode == code
