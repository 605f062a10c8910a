"""Owners: who is alive, as far as a file can tell."""

import os
import subprocess
import sys

import pytest

from ranklake.capture.spool.owner import HELD, Owner, OwnerLock, boot_id, start_ticks

OWNER = Owner(
    pid=os.getpid(),
    start_ticks=start_ticks(os.getpid()),
    boot_id=boot_id(),
    role="main",
    family=7,
    spool="s3://b/x",
    world_size=2,
    anchor=(1, 2),
)


def test_an_owner_comes_back_as_it_was():
    """owner.json says all of it again."""
    assert Owner.from_json(OWNER.to_json()) == OWNER


@pytest.mark.parametrize("raw", [b"", b"{", b"[]", b"{}", b'{"anchor": [1]}', OWNER.to_json()[:-5], b'"x"'])
def test_a_damaged_owner_is_no_owner(raw):
    """Anything else is told from it."""
    with pytest.raises(ValueError, match="damaged"):
        Owner.from_json(raw)


def test_a_process_is_known_by_its_start():
    """The same number later, or on another boot, is another process."""
    assert OWNER.runs()
    assert not Owner(**{**facts(), "start_ticks": OWNER.start_ticks + 1}).runs()
    assert not Owner(**{**facts(), "boot_id": "another"}).runs()
    assert not Owner(**{**facts(), "boot_id": ""}).runs()
    assert start_ticks(2**22 + 1) == 0


def facts():
    """Return the owner's fields."""
    return {name: getattr(OWNER, name) for name in Owner.__slots__}


SEIZE = """
import sys
from pathlib import Path
from ranklake.capture.spool.owner import OwnerLock
print(OwnerLock.seize(Path(sys.argv[1]), 7))
"""


def test_a_lock_keeps_others_off_as_long_as_it_is_held(tmp_path):
    """Another process gets the lock only after its release; a file that was removed meanwhile is nobody's."""
    assert HELD.take(7)
    assert not HELD.take(7)
    lock = OwnerLock.create(tmp_path, OWNER, 7)
    command = [sys.executable, "-c", SEIZE, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "None\n"
    lock.release()
    lock.release()
    assert HELD.take(7)
    seized = OwnerLock.seize(tmp_path, 7)
    assert seized is not None
    assert seized[1] == OWNER
    seized[0].release()


def test_a_living_process_without_a_lock_counts_as_alive(tmp_path):
    """Where locks do not reach, process number, start and boot do."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        owner = Owner(**{**facts(), "pid": process.pid, "start_ticks": start_ticks(process.pid)})
        (tmp_path / "owner.json").write_bytes(owner.to_json())
        assert OwnerLock.seize(tmp_path, 9) is None
        process.stdin.close()
        process.wait()
    seized = OwnerLock.seize(tmp_path, 9)
    assert seized is not None
    seized[0].release()
