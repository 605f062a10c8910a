"""The bench of `make bench-scale`: that it counts what ranks sent, and that `docs/scale.md` says what it says."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.bench

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench" / "scale_bench.py"
MEASURED = ROOT / "tests" / "bench" / "scale_measured.json"


def bench(*options, timeout=120):
    """Run the bench; return what it printed."""
    command = [sys.executable, str(BENCH), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout).stdout


@pytest.mark.slow
def test_the_bench_counts_what_a_rank_seals():
    """Sixty times as fast: three segments a minute, and the rows that a minute's steps, phases and values make.

    A pack is a process of the agent's. A busy machine does not bring one to its end each second: then it takes longer.
    """
    for minutes in ("6", "12", "24", "48"):
        try:
            found = json.loads(bench("--minutes", minutes, "--speed", "60", "--json"))
        except subprocess.CalledProcessError as error:
            assert "record for longer" in error.stderr, error.stderr  # noqa: PT017 - anything else is a failure
        else:
            break
    assert found["segments"] == pytest.approx(3, abs=0.5)
    assert found["rows"] == pytest.approx(60 * (1 + 7 + 20), rel=0.4)  # steps, spans of step and phases, values
    assert set(found["bytes_per_row"]) == {"scalars", "spans", "steps"}
    assert 0 < found["bytes_per_row"]["scalars"] < 8
    assert 0 < found["packs_per_node"] < found["segments"] * found["ranks"]
    assert found["pack_bytes_per_node"] > 0


def test_the_page_shows_what_was_measured():
    """`docs/scale.md` has the bench's tables word for word, so its figures are those of one dated measurement."""
    told = bench("--of", str(MEASURED)).strip()
    assert told in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))
    assert f"| PUTs a minute | {10_000 * figures['segments']:,.0f} | {1250 * figures['packs_per_node']:,.0f} |" in told
