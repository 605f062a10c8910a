"""Signing of segments as a run does it: all of them, whoever seals, and never unsigned instead."""

import signal
import subprocess
import sys

from ciphered import ONE, TWO, decrypt_segment, source_of
from signed import footer_of, is_genuine

from ranklake.capture.importers.imports import import_files
from ranklake.capture.node.worker import WorkerTask
from ranklake.capture.recover import recover
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.stream_files import streams
from ranklake.segments.envelope import BLANK
from ranklake.segments.segment import SegmentName

# A process that records 40 steps with a key to sign with, seals half of them, and is killed.
KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(run="dead", spool=sys.argv[1], local_dir=sys.argv[2], signing_key=sys.argv[3])
for number in range(40):
    with run.step(number):
        run.log(loss=0.5)
    if number == 19:
        run.flush(5)
os.kill(os.getpid(), signal.SIGKILL)
"""

MAPPING = "table: pools\ntime: {column: when}\ncolumns: {pool: name, gpu_total: total}\n"


def signed_rows(spool, key, table="steps"):
    """Return the rows of a table's segments, all of which are signed with a key under their own name alone."""
    rows = 0
    for path in spool.glob("segments/*/*/*.parquet"):
        name, raw = SegmentName.parse(path.name), path.read_bytes()
        assert is_genuine(name, path.parent.name, raw, key), path
        assert not is_genuine(name, "another", raw, key)
        rows += name.rows * (path.parent.name == table)
    return rows


def test_all_that_a_run_sends_is_signed(place, tmp_path, warnings_told):
    """Each segment's footer has the key's id and a MAC that holds for these bytes under this name; no key is there."""
    run = place.start(signing_key=source_of(tmp_path / "keys", ONE, TWO))
    for number in range(20):
        with run.step(number):
            run.log(loss=0.5)
    run.close()
    assert signed_rows(place.spool, ONE) == 20
    assert not any(ONE.secret in path.read_bytes() for path in place.spool.rglob("*.parquet"))
    assert not warnings_told.records


def test_unsigned_segments_are_as_ever(place):
    """Without a key to sign with, the footer has no place for a MAC."""
    run = place.start()
    with run.step(0):
        pass
    run.close()
    (path,) = place.spool.glob("segments/*/steps/*.parquet")
    assert b'"mac"' not in path.read_bytes()
    assert footer_of(path.read_bytes()).signer == ""


def test_what_is_encrypted_was_signed_first(place, tmp_path):
    """With both keys, the MAC is in what is encrypted."""
    keys = {"signing_key": source_of(tmp_path / "sign", ONE), "encryption_key": source_of(tmp_path / "encrypt", TWO)}
    run = place.start(**keys)
    with run.step(0):
        pass
    run.close()
    (path,) = place.spool.glob("segments/*/steps/*.enc")
    assert is_genuine(SegmentName.parse(path.name), "steps", decrypt_segment(path, TWO), ONE)


def test_what_a_killed_process_left_is_signed_or_waits(tmp_path):
    """Recovery without the key says so and sends nothing unsigned; with it, all that the process recorded is signed.

    The same holds for the agent's worker_task, which gets the key's source along with what is to be done.
    """
    source = source_of(tmp_path / "keys", ONE)
    local, spool = tmp_path / "local", tmp_path / "spool"
    command = [sys.executable, "-c", KILLED, str(spool), str(local), source]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    before = signed_rows(spool, ONE)
    done = recover(local, spool)
    assert len(done.troubles) == 1
    assert "must be signed, but no key is configured here" in done.troubles[0]
    assert signed_rows(spool, ONE) == before
    task = WorkerTask.from_json(WorkerTask(str(local), str(spool), {}, "", signing_key=source).to_json())
    assert task.signing_key == source
    done = recover(local, spool, signing_key=source)
    assert not done.troubles
    assert signed_rows(spool, ONE) == 40
    assert not list(streams(local))


def test_without_its_key_nothing_leaves(place, tmp_path, warnings_told):
    """A key to sign with that cannot be had stops no training; rows wait, and the warning says why."""
    run = place.start(signing_key=f"file:{tmp_path}/none", seal_every_s=0.05)
    with run.step(0):
        pass
    assert not run.flush(0.3)
    run.close(5)
    assert not place.spool.exists()
    assert any("nothing is sealed or sent" in record.getMessage() for record in warnings_told.records)


def test_importers_sign(tmp_path):
    """What is imported is signed, too; the same import gives the same bytes."""
    table = tmp_path / "log.csv"
    table.write_text("when,name,total\n2020-05-01 00:01:00,x,8\n")
    mapping = tmp_path / "m.yaml"
    mapping.write_text(MAPPING)
    came = []
    for place in ("one", "two"):
        keys = SealingKeys(signing=source_of(tmp_path / "keys", ONE))
        import_files("table", [str(table)], str(tmp_path / place), run="r", mapping=str(mapping), keys=keys)
        packs = [path for path in (tmp_path / place).rglob("*") if path.is_file() and path.suffix != ".json"]
        came.append([path.read_bytes() for path in packs])
        assert came[-1]
        assert all(ONE.id.encode() in raw and BLANK.encode() not in raw for raw in came[-1])
    assert came[0] == came[1]
