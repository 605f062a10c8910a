"""The headline: its page is word for word what was measured once."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench" / "headline_bench.py"
MEASURED = ["headline_measured.json", "headline_300s_measured.json"]


def bench(*arguments):
    command = [sys.executable, str(BENCH), *arguments]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("name", MEASURED)
def test_the_page_shows_what_was_measured(name):
    """`docs/scale.md` has the bench's tables and arithmetic word for word."""
    told = bench("--of", str(BENCH.with_name(name))).strip()
    assert told in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    assert "10,000 GPUs x 3,600 s x 42 rows = 1,512,000,000 rows" in told
    (minutes,) = re.findall(r"wall time: .* = ([\d.]+) min on 2 cores", told)
    said = re.sub(r"\s+", " ", (ROOT / "README.md").read_text(encoding="utf-8"))
    of = "takes two cores some {} minutes" if "300" not in name else "{} where ranks seal every five minutes"
    assert of.format(round(float(minutes))) in said, "the README states wall time"
