"""Encryption of segments as a run does it: from its first sealing on, whoever seals, and never in clear instead."""

import json
import signal
import stat
import subprocess
import sys

import pytest
from ciphered import ONE, TWO, decrypt_segment, ring, source_of
from recorded import read_segment

from ranklake.capture.common.settings import read_settings
from ranklake.capture.node.agent import Agent
from ranklake.capture.recover import recover
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.stream_files import SealedFile, sealed_files, streams

# A process that records 40 steps with an encryption key, seals half of them, and is killed.
KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(run="dead", spool=sys.argv[1], local_dir=sys.argv[2], encryption_key=sys.argv[3])
for number in range(40):
    with run.step(number):
        run.log(loss=0.5)
    if number == 19:
        run.flush(5)
os.kill(os.getpid(), signal.SIGKILL)
"""


def record(run, steps=20):
    """Record some steps."""
    for number in range(steps):
        with run.step(number):
            run.log(loss=0.5, extra=float(number))


def opened(spool, key, table="steps"):
    """Return (footer, rows) of the segments of a table that are encrypted with a key."""
    found = []
    for path in sorted(spool.glob(f"segments/*/{table}/*.{key.id}.enc")):
        footer, rows = read_segment(decrypt_segment(path, key))
        assert footer.key_id == key.id
        assert footer.rows == rows.num_rows
        found.append((footer, rows))
    return found


def in_clear(folder):
    """Return what below a folder is, or holds, a Parquet file in clear, or a key."""
    raw = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    marks = (b"PAR1", ONE.secret, ring(ONE).strip().encode(), ONE.secret.hex().encode())
    return [str(path) for path, bytes_ in raw.items() if any(mark in bytes_ for mark in marks)]


def killed(tmp_path, source):
    """Let a process record and be killed; return its local spool and its spool."""
    local, spool = tmp_path / "local", tmp_path / "spool"
    command = [sys.executable, "-c", KILLED, str(spool), str(local), source]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL
    return local, spool


def test_a_run_sends_nothing_in_clear(place, tmp_path, warnings_told):
    """All segments arrive encrypted under names that say the key; footers say it, too; no key is anywhere."""
    source = source_of(tmp_path / "keys", ONE, TWO)
    run = place.start(encryption_key=source)
    record(run)
    assert run.flush(20)
    owners = [json.loads(path.read_text()) for path in place.local.rglob("owner.json")]
    assert [owner["encrypted"] for owner in owners] == [True]
    assert not in_clear(place.local)
    run.close()
    assert not list(place.spool.rglob("*.parquet"))
    assert not in_clear(place.spool)
    assert sum(footer.rows for footer, _ in opened(place.spool, ONE)) == 20
    assert sum(footer.rows for footer, _ in opened(place.spool, ONE, "scalars")) == 20
    assert "extra" in str(opened(place.spool, ONE, "scalars")[0][1]["metric"])
    assert not warnings_told.records


@pytest.mark.parametrize("source", ["file:{}/none", "env:NOT_SET", "command:/bin/false", "not a source", "file:{}/bad"])
def test_without_its_key_nothing_leaves(place, tmp_path, warnings_told, source):
    """A key that cannot be had stops no training and sends nothing in clear: rows wait, and the warning says why.

    When the key is there again, recovery brings in all of them.
    """
    (tmp_path / "bad").write_text("secret-word\n")
    run = place.start(encryption_key=source.format(tmp_path), seal_every_s=0.05)
    record(run)
    assert not run.flush(0.5)
    run.close(5)
    assert not place.spool.exists()
    assert not in_clear(place.local)
    told = [record.getMessage() for record in warnings_told.records]
    assert any("nothing is sealed or sent" in line for line in told)
    assert not any("secret-word" in line for line in told)

    recovered = recover(place.local, place.spool)
    assert (recovered.segments, len(recovered.troubles)) == (0, 1)
    assert "no key is configured here" in recovered.troubles[0]
    assert not place.spool.exists()
    recovered = recover(place.local, place.spool, encryption_key=source_of(tmp_path / "keys", ONE))
    assert not recovered.troubles
    assert sum(footer.rows for footer, _ in opened(place.spool, ONE)) == 20
    (last,) = [footer for footer, _ in opened(place.spool, ONE, "events") if footer.totals]
    assert last.totals["steps"] == [20, 0]
    assert not in_clear(place.spool)
    assert not list(streams(place.local))


def test_the_key_may_come_late(place, tmp_path, monkeypatch):
    """A source that fails at first is asked again, and then everything goes, counted whole."""
    monkeypatch.setattr("ranklake.capture.sealing.keys.TRY_AGAIN_S", 0.05)
    run = place.start(encryption_key=f"file:{tmp_path}/keys", seal_every_s=0.05)
    record(run)
    assert not run.flush(0.3)
    source_of(tmp_path / "keys", ONE)
    record(run)
    assert run.flush(20)
    run.close()
    assert sum(footer.rows for footer, _ in opened(place.spool, ONE)) == 40


def test_the_environment_and_the_file_ask_for_it_as_well(tmp_path):
    """The setting comes from wherever settings come from; one that is misspelt or unreadable still asks for it."""
    told = []

    def chosen(given=None, **environment):
        environment = {"RANKLAKE_CONFIG": str(tmp_path / "ranklake.toml")} | environment
        return read_settings(given or {}, environment, lambda *line: told.append(line)).encryption_key

    assert chosen() == ""
    assert chosen(RANKLAKE_CAPTURE_ENCRYPTION_KEY="env:KEYS") == "env:KEYS"
    assert chosen({"encryption_key": "file:/x"}, RANKLAKE_CAPTURE_ENCRYPTION_KEY="env:KEYS") == "file:/x"
    assert not told
    assert SealingKeys(chosen({"encyption_key": "file:/x"})).encrypts
    (tmp_path / "ranklake.toml").write_text('[capture]\nencryption_key = "file:/x\n')
    assert SealingKeys(chosen()).encrypts
    assert len(told) == 2


def test_what_a_killed_process_left_is_sealed_with_the_key(tmp_path):
    """Recovery encrypts what it seals, and sealing what was sealed before gives the same bytes."""
    source = source_of(tmp_path / "keys", ONE)
    local, spool = killed(tmp_path, source)
    done = recover(local, spool, encryption_key=source)
    assert not done.troubles
    assert sum(footer.rows for footer, _ in opened(spool, ONE)) == 40
    assert not in_clear(spool)


def test_an_agent_without_the_key_sends_what_is_sealed(tmp_path):
    """It needs no key for what is encrypted already; what is not sealed yet waits for one that has the key."""
    source = source_of(tmp_path / "keys", ONE)
    local, spool = killed(tmp_path, source)
    (folder,) = streams(local)
    for path in list(spool.rglob("*.enc")):  # as if the process had been killed before it sent them
        name = path.name.split("~")
        digest, key_id, _ = name[6].split(".")
        table, date = path.parent.name, path.parent.parent.name
        path.rename(folder / SealedFile.local_name(table, int(name[4]), date, int(name[5]), digest, key_id))
    waiting = len(sealed_files(folder))
    done = Agent(local, str(spool)).look(pack_now=True)
    assert (done.segments, len(done.troubles)) == (waiting, 1)
    assert "no key is configured here" in done.troubles[0]
    assert folder.exists()
    done = Agent(local, str(spool), keys=SealingKeys(source)).look(pack_now=True)
    assert not done.troubles
    assert not folder.exists()
    assert not in_clear(spool)


@pytest.mark.parametrize("finishing", [ONE, TWO])
def test_a_sealing_that_was_cut_off_is_finished(tmp_path, finishing):
    """With slots and their segment both there, the key that opens it confirms it; else the slots are sealed anew."""
    local, spool = killed(tmp_path, source_of(tmp_path / "keys", ONE))
    (folder,) = streams(local)
    before = {path.name: path.read_bytes() for path in folder.iterdir() if path.name != "owner.json"}
    spool.rename(tmp_path / "aside")
    spool.write_text("in the way")
    Agent(local, str(spool), keys=SealingKeys(source_of(tmp_path / "keys", ONE))).look()  # seals and cannot send
    sealed = {path.read_bytes() for path in folder.glob("steps*.sealed")}
    assert len(sealed) == 1
    for name, raw in before.items():
        (folder / name).write_bytes(raw)
    spool.unlink()
    (tmp_path / "aside").rename(spool)
    assert not recover(local, spool, encryption_key=source_of(tmp_path / "keys", finishing)).troubles
    came = {path.read_bytes() for path in spool.rglob("*.enc")}
    assert (sealed <= came) is (finishing is ONE)
    assert sum(footer.rows for key in (ONE, TWO) for footer, _ in opened(spool, key)) == 40


def test_a_key_command_runs_beside_training(place, tmp_path):
    """A slow helper holds up the sealing and not the start of the run."""
    helper = tmp_path / "helper"
    helper.write_text(f"#!/bin/sh\nsleep 0.5\nprintf '%s' '{ring(ONE).strip()}'\n")
    helper.chmod(stat.S_IRWXU)
    run = place.start(encryption_key=f"command:{helper}")
    record(run)
    assert run.flush(20)
    assert sum(footer.rows for footer, _ in opened(place.spool, ONE)) == 20


def test_forked_children_are_encrypted_too(tmp_path):
    """What a forked child recorded is adopted by its parent under the parent's key."""
    script = """
import os, sys
from ranklake import capture
run = capture.start(run="fork", spool=sys.argv[1], local_dir=sys.argv[2], encryption_key=sys.argv[3])
pid = os.fork()
if pid == 0:
    with run.step(1):
        pass
    os._exit(0)
os.waitpid(pid, 0)
run.close()
"""
    source = source_of(tmp_path / "keys", ONE)
    command = [sys.executable, "-c", script, str(tmp_path / "spool"), str(tmp_path / "local"), source]
    assert subprocess.run(command, check=False, timeout=60).returncode == 0
    assert sum(footer.rows for footer, _ in opened(tmp_path / "spool", ONE)) == 1
    assert not in_clear(tmp_path / "spool")
