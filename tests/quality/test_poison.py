"""Every command over a spool and a lake that somebody poisoned: no traceback, and the others' rows are there."""

import contextlib
import json
import os

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from segments import put_bytes, put_segment, step_rows

from ranklake.cli import run
from ranklake.segments.segment import METADATA_KEY, SegmentFooter

SAID = SegmentFooter("steps", 1, "evil", 0, 0, 1, 66, 0, rows=3)
FACTS = [
    {"gaps": []},
    {"final": "yes"},
    {"rows_before": 2**70},
    {"totals": 3},
    {"contract_version": "1"},
    {"refused": 1},
]
NAMES = [
    str(SAID.run) + "~a0~r00000~ffffffffffffffff~000000~3~" + "0" * 64 + ".parquet",
    str(SAID.run) + "~a0~r\u0660\u0660~0000000000000042~000000~3~" + "0" * 64 + ".parquet",
    "odd.parquet\nsteps: all is well",
    "x.zip#0+10",
]


def poison(spool):
    """Put one of each kind into a spool, beside a sound segment."""
    day = put_segment(spool, step_rows(50)).parent
    for facts in FACTS:
        text = json.dumps(json.loads(SAID.to_json()) | facts).encode()
        sink = pa.BufferOutputStream()
        pq.write_table(step_rows(3, incarnation=66, run="evil").replace_schema_metadata({METADATA_KEY: text}), sink)
        put_bytes(spool, sink.getvalue().to_pybytes(), SAID)
    for name in NAMES:
        (day / name).write_bytes(b"x")
    os.mkfifo(day / "fifo")
    (day / "link").symlink_to("/etc/passwd")
    with contextlib.suppress(OSError):
        (day / os.fsdecode(b"\xff")).write_bytes(b"x")


@pytest.mark.slow
def test_every_command_over_poison(tmp_path, capsys):
    """Ingest, status, check, rollup, upkeep, catalog, sql and replay end as they do elsewhere; the books add up."""
    spool = tmp_path / "spool"
    poison(spool)
    place = ["--lake", str(tmp_path / "lake")]
    where = [*place, "--spool", str(spool)]
    day = ["--from", "2026-03-01", "--to", "2026-03-01"]
    assert run(["ingest", *where]) == 1, "segments that nobody can read were new"
    for command in (
        ["check", *place],
        ["rollup", *place],
        ["upkeep", *place],
        ["catalog", "steps", *place],
        ["replay", "--table", "steps", *day, *where],
        ["ingest", *where],
        ["status", *where],
    ):
        assert run(command) == 0, (command, capsys.readouterr())
    told = capsys.readouterr()
    assert "left alone (not a regular file)" in told.err
    assert "\nsteps: all is well" not in told.err + told.out
    assert run(["sql", "SELECT count(*) AS n FROM steps", "--format", "json", *place]) == 0
    assert json.loads(capsys.readouterr().out) == [{"n": 53}]
