"""The bench of `make bench NAME=scale`: that it counts what ranks sent, and that `docs/scale.md` says what it says."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from governed import any_rows
from packing import pack_up
from segments import put_segment

ROOT = Path(__file__).resolve().parents[2]
BENCH = ROOT / "tests" / "bench" / "scale_bench.py"
MEASURED = ROOT / "tests" / "bench" / "scale_measured.json"


def bench(*options, timeout=120):
    """Run the bench; return what it printed."""
    command = [sys.executable, str(BENCH), *options]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=timeout).stdout


PER_STEP = {"steps": 1, "spans": 7, "scalars": 20}
"""Rows that the bench's ranks record of a step: its own, spans of it and of its phases, and values."""
REQUIRED = {
    "steps": {"step": 1, "step_time_s": 1.0},
    "spans": {"name": "step", "kind": "step", "duration_ns": 1, "span_id": 1},
    "scalars": {"metric": "x"},
}


def minutes_of(spool, ranks, minutes, steps):
    """Put a pack into a spool for each minute of ranks that seal all tables once a minute, last at their end."""
    for minute in range(minutes):
        for rank in range(ranks):
            for table, per_step in PER_STEP.items():
                count = steps * per_step
                told = {name: [value] * count for name, value in {**REQUIRED[table], "rank": rank}.items()}
                rows = any_rows(table, count, run="scale", segment=minute, incarnation=rank + 1, **told)
                put_segment(spool, rows, table, rows_before=minute * count, final=minute == minutes - 1)
        os.utime(pack_up(spool), (60 * minute, 60 * minute))


def test_whole_minutes_are_counted(tmp_path):
    """Of ranks that seal by the minute it tells just that, without the first and the last, which are no whole ones."""
    minutes_of(tmp_path, ranks=2, minutes=5, steps=6)
    code = "import json, sys; from dataclasses import asdict; from pathlib import Path; import scale_bench;"
    code += "print(json.dumps(asdict(scale_bench.read_spool(Path(sys.argv[1]), 5, 1, 10.0, 40.0))))"
    command = [sys.executable, "-c", code, str(tmp_path)]
    found = json.loads(subprocess.run(command, capture_output=True, check=True, cwd=BENCH.parent).stdout)
    assert (found["segments"], found["rows"], found["packs_per_node"]) == (3, 6 * 28, 1)
    assert (found["agent_cpu_s_per_node"], found["rank_cpu_s"]) == (2.0, 1.0)
    assert found["segment_bytes"] == pytest.approx(
        sum(found["bytes_per_row"][table] * 6 * count for table, count in PER_STEP.items())
    )


@pytest.mark.bench
@pytest.mark.slow
def test_the_bench_counts_what_a_rank_seals():
    """Sixty times as fast, it finds whole minutes of all tables, and no more of them than was recorded.

    How many rows a minute holds depends on how late a busy machine seals. A pack is a process of the agent's: where
    none comes to its end each second, it takes longer.
    """
    for minutes in (6, 12, 24, 48):
        try:
            found = json.loads(bench("--minutes", str(minutes), "--speed", "60", "--json", timeout=280))
        except subprocess.CalledProcessError as error:
            assert "record for longer" in error.stderr, error.stderr  # noqa: PT017 - anything else is a failure
        else:
            break
    assert 0 < found["segments"] <= len(PER_STEP)
    assert 0 < found["rows"] < minutes * 60 * sum(PER_STEP.values())
    assert set(found["bytes_per_row"]) == set(PER_STEP)
    assert 0 < found["bytes_per_row"]["scalars"] < found["bytes_per_row"]["spans"]
    assert found["packs_per_node"] > 0
    assert found["pack_bytes_per_node"] > 0


@pytest.mark.bench
def test_the_page_shows_what_was_measured():
    """`docs/scale.md` has the bench's tables word for word, so its figures are those of one dated measurement."""
    told = bench("--of", str(MEASURED)).strip()
    assert told in (ROOT / "docs" / "scale.md").read_text(encoding="utf-8")
    figures = json.loads(MEASURED.read_text(encoding="utf-8"))
    assert f"| PUTs a minute | {10_000 * figures['segments']:,.0f} | {1250 * figures['packs_per_node']:,.0f} |" in told
