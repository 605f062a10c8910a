"""Ingest, audit and upkeep under SIGKILL, with poison in the spool: run again they store each row once, and no more."""

import os
import random
import subprocess
import sys
import time
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from mutations import faults_of_others, poison
from segments import put_segment, step_rows

from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import FAN_IN
from ranklake.lake.ingest.maintenance.vacuum import garbage
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

KILLS = int(os.environ.get("RANKLAKE_KILLS", "20"))
SEED = int(os.environ.get("RANKLAKE_SEED", "20261120"))
CHILD = Path(__file__).with_name("ingest_child.py")
ROWS = 200
CANARY = b"canary that nobody may read or copy: 5f0c1d"


def run_child(lake, spool, mode, number):
    command = [sys.executable, str(CHILD), str(lake), str(spool), mode, str(number)]
    return subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)


def some_rows(segment):
    """Return rows of one segment, a few of them bad; every third segment is sent again with a longer cut."""
    rows = step_rows(ROWS, segment=segment)
    times = [-1.0 if slot % 50 == 7 else 0.5 for slot in range(ROWS)]
    place = rows.schema.get_field_index("step_time_s")
    return rows.set_column(place, rows.schema.field(place), pa.array(times, pa.float32()))


@pytest.mark.crash
def test_killed_ingest_and_upkeep_lose_and_repeat_nothing(tmp_path, capsys):
    """After many kills at random points every row is stored or quarantined exactly once, and the books add up.

    Between the kills hostile objects come into the spool: they cost no row, their lies are named and no others, nothing
    outside is read, and the audit log is whole.
    """
    rng = random.Random(SEED)
    lake, spool = tmp_path / "lake", tmp_path / "spool"
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "canary").write_bytes(CANARY)
    put_segment(spool, some_rows(0))
    began = time.monotonic()
    first = run_child(lake, spool, "never", 0)
    assert first.returncode == 0, first.stderr
    events, whole_ms = int(first.stdout), int((time.monotonic() - began) * 1000)
    kills, segment = 0, 1
    while kills < KILLS:
        for _ in range(rng.randint(1, 3)):
            rows = some_rows(segment)
            if segment % 3 == 0:
                put_segment(spool, rows.slice(0, ROWS // 2), rows_before=ROWS * segment)
            put_segment(spool, rows, rows_before=ROWS * segment)
            segment += 1
        poison(rng, segment, spool, outside)
        while True:
            mode, most = rng.choice([("event", events * 2), ("event", events), ("time", whole_ms // 2)])
            child = run_child(lake, spool, mode, rng.randint(1, most))
            if child.returncode == 0:
                break
            assert child.returncode == -9, child.stderr
            kills += 1
            if kills % 50 == 0:
                with capsys.disabled():
                    print(f"{kills} of {KILLS} kills, {segment} segments", flush=True)
    final = run_child(lake, spool, "never", 0)
    assert final.returncode == 0, final.stderr

    opened = Lake.open(str(lake))
    assert read_plan(opened.store, last_finished(opened.tables) + 1) is None
    assert list(garbage(opened, timedelta(0))) == []
    assert len(data_files(opened)) == files(delta_table(opened.store, "steps")).num_rows
    assert len(data_files(opened, "2026-03-01")) <= FAN_IN
    stored = keys(opened, "steps")
    refused = keys(opened, "rejects")
    expected = {(7, number, slot) for number in range(segment) for slot in range(ROWS)}
    bad = {key for key in expected if key[2] % 50 == 7}
    assert stored == Counter(expected - bad)
    assert refused == Counter(bad)
    faults = [fault for item in balance(opened, Spool(str(spool)).listing()) for fault in item.faults]
    assert faults_of_others(faults) == []
    proof = prove(opened.configured(audit=AuditSection(f"file:{lake}-witness")))
    assert (proof.why, set(proof.witnessed.values())) == ("", {proof.rows})
    assert Counter(row["action"] for row in trail(opened.tables))["test.once"] == 3
    assert CANARY not in b"".join(path.read_bytes() for path in lake.rglob("*") if path.is_file())
    with capsys.disabled():
        print(f"\n  ingest: {kills} kills, seed {SEED}, {segment} segments, 0 rows lost, 0 rows twice")


def data_files(lake, day="*"):
    return list(Path(lake.path("tables", "steps")).glob(f"date={day}/*"))


def keys(lake, table):
    rows = read(lake.tables, contract(table), ["incarnation", "segment", "slot"])
    every = zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True)
    return Counter(key for key in every if key[0] == 7)
