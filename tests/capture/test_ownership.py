"""A local spool that users share: what others leave there is neither followed, nor changed, nor waited for, nor sent.

The tests run as root where they can, and make folders of another user; what needs no root runs without.
"""

import json
import os
import shutil
import signal
import stat
import subprocess
import sys

import pytest

from ranklake.capture.node import agent as agent_module
from ranklake.capture.node.agent import Agent
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.recover import recover
from ranklake.capture.spool.files import with_rights_of, write_whole
from ranklake.capture.spool.leader import Leadership, leader
from ranklake.capture.spool.owner import OWNER_FILE
from ranklake.capture.spool.stream import META_FILE
from ranklake.capture.spool.stream_files import streams

OTHER = 54321
KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(run=sys.argv[2], local_dir=sys.argv[1], spool=sys.argv[3])
for number in range(3):
    with run.step(number):
        pass
os.kill(os.getpid(), signal.SIGKILL)
"""
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="takes root to make files of another user")


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """Return a local spool with the stream of a process that was killed before it sent anything."""
    place = tmp_path_factory.mktemp("left")
    killed(place / "local", "ours", "")
    return place / "local"


def killed(local, run, spool):
    command = [sys.executable, "-c", KILLED, str(local), run, str(spool)]
    assert subprocess.run(command, check=False, timeout=60).returncode == -signal.SIGKILL


@pytest.fixture
def local(left, tmp_path):
    """Return a copy of that local spool, in a place that all users may enter."""
    copy = tmp_path / "local"
    subprocess.run(["cp", "-a", str(left), str(copy)], check=True)
    for folder in (tmp_path, *tmp_path.parents[:3]):
        if folder.stat().st_uid == os.geteuid() and not folder.stat().st_mode & stat.S_IXOTH:
            folder.chmod(0o711)
    copy.chmod(0o1777)
    return copy


def stream_of(local):
    return next(local.glob("*/a*/r*"))


def give_away(folder, uid=OTHER):
    """Let a run's folder and all below it belong to another user."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, uid, uid, follow_symlinks=False)


def sent(spool):
    """Return the tables of the segments in a spool."""
    return sorted({path.parent.name for path in spool.rglob("*") if path.is_file()}) if spool.exists() else []


def look(local, spool=""):
    return Agent(local, str(spool)).look(pack_now=True)


@pytest.mark.parametrize(
    "name", [META_FILE, "steps-000000.open", "scalars-000007.open", "faults.txt", "logs-000000.open"]
)
def test_a_link_is_not_followed(local, tmp_path, name):
    """A link in place of a stream's file is neither cut, nor sealed, nor sent, and its target stays as it was."""
    target = tmp_path / "target"
    target.write_bytes(b"\x10\x00\x00\x00precious" * 100)
    target.chmod(0o640)
    path = stream_of(local) / name
    path.unlink(missing_ok=True)
    path.symlink_to(target)
    assert look(local, tmp_path / "spool").streams == 1
    assert target.read_bytes() == b"\x10\x00\x00\x00precious" * 100
    assert stat.S_IMODE(target.stat().st_mode) == 0o640
    assert not any(b"precious" in path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file())


def test_a_link_with_a_segments_name_is_not_sent(local, tmp_path):
    """Nor is what it leads to made read-only: a sealed segment's name is no reason to follow it."""
    target = tmp_path / "target"
    target.write_text("secret")
    target.chmod(0o644)
    link = stream_of(local) / f"steps-000009~2026-03-01~5~{'ab' * 32}.sealed"
    link.symlink_to(target)
    look(local, tmp_path / "spool")
    assert sent(tmp_path / "spool") == ["packs"]
    assert stat.S_IMODE(target.stat().st_mode) == 0o644
    assert not any(b"secret" in path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file())


@pytest.mark.parametrize("name", [OWNER_FILE, META_FILE, "steps-000000.open", "faults.txt"])
def test_a_fifo_holds_nobody_up(local, tmp_path, name):
    """Whatever name it has, nobody waits for its other end: the look comes to an end, by a process with a deadline."""
    path = stream_of(local) / name
    path.unlink(missing_ok=True)
    os.mkfifo(path)
    command = [sys.executable, "-m", "ranklake", "agent", "--once", "--local-dir", str(local), "--spool"]
    done = subprocess.run([*command, str(tmp_path / "spool")], check=False, timeout=60, capture_output=True)
    assert done.returncode in {0, 1}
    SpoolMonitor(local, str(tmp_path / "spool")).look()


def test_folders_that_are_links_are_no_streams(local, tmp_path):
    """A run's, attempt's or stream's folder that is a link is passed by."""
    (run,) = [path for path in local.iterdir() if path.is_dir() and path.name == "ours"]
    aside = run.rename(tmp_path / "aside")
    (local / "linked").symlink_to(aside)
    (local / "half").mkdir()
    (local / "half" / "a0").symlink_to(next(aside.iterdir()))
    assert list(streams(local)) == []
    before = sorted(aside.rglob("*"))
    assert look(local, tmp_path / "spool").streams == 0
    assert sorted(aside.rglob("*")) == before


@as_root
def test_recovery_leaves_other_users_streams_alone(local, tmp_path):
    """A process takes over the streams of its own user, and touches no other's."""
    give_away(local / "ours")
    before = sorted(local.rglob("*"))
    done = recover(local, tmp_path / "spool")
    assert (done.streams, done.segments, done.troubles) == (0, 0, ())
    assert sorted(local.rglob("*")) == before


@as_root
def test_an_agent_of_a_user_leaves_others_alone(local, tmp_path, monkeypatch):
    """An agent that is not root serves its own user's streams, and says how many are others'."""
    give_away(local / "ours")
    spool = tmp_path / "spool"
    monkeypatch.setattr("ranklake.capture.spool.files.os.geteuid", lambda: 1)
    done = look(local, spool)
    assert (done.streams, done.others, done.segments) == (0, 1, 0)
    assert not spool.exists()


@as_root
def test_root_serves_others_with_their_own_rights(local, tmp_path):
    """Root's agent seals and sends a user's stream, as that user: what root may read helps nobody."""
    private = tmp_path / "private"
    private.mkdir(mode=0o700)
    (private / "x").write_text("secret")
    give_away(local / "ours")
    killed(local, "roots", "")
    spool = tmp_path / "spool"
    done = look(local, spool)
    assert (done.streams, done.others, done.troubles) == (2, 0, ())
    assert sent(spool)
    assert not list(streams(local, lambda _: True))
    (local / "ours/a0").mkdir(parents=True, exist_ok=True)
    folder = local / "ours/a0/r00000-0000000000000001"
    folder.mkdir()
    give_away(local / "ours")
    with with_rights_of(folder), pytest.raises(PermissionError):
        (private / "x").read_text()
    assert os.geteuid() == 0
    assert (private / "x").read_text() == "secret"


@as_root
def test_the_destination_is_never_taken_from_others(local, tmp_path):
    """Where another user's owner.json says that segments should go, root's agent writes nothing."""
    stream = stream_of(local)
    said = json.loads((stream / OWNER_FILE).read_text())
    elsewhere = tmp_path / "elsewhere"
    (stream / OWNER_FILE).write_text(json.dumps({**said, "spool": str(elsewhere)}))
    give_away(local / "ours")
    done = look(local)
    assert (done.streams, done.segments) == (1, 0)
    assert done.left > 0
    assert not elsewhere.exists()
    assert look(local, elsewhere).segments == done.left


def test_a_stream_that_its_process_removes_in_passing_is_no_trouble(local, monkeypatch):
    """A stream closed between the agent's listing and its look at it is passed over without a word."""
    stream = stream_of(local)
    before = agent_module.is_mine

    def closed_meanwhile(folder):
        mine = before(folder)
        shutil.rmtree(local / folder.relative_to(local).parts[0])
        return mine

    monkeypatch.setattr(agent_module, "is_mine", closed_meanwhile)
    assert look(local).troubles == ()
    assert not stream.exists()


@as_root
def test_a_file_of_another_user_in_a_stream_does_not_count(local, tmp_path):
    """Only what belongs to the folder's own user is sealed or sent."""
    name = f"steps-000009~2026-03-01~5~{'ab' * 32}.sealed"
    planted = stream_of(local) / name
    planted.write_text("planted")
    os.chown(planted, OTHER, OTHER)
    look(local, tmp_path / "spool")
    assert not any(b"planted" in path.read_bytes() for path in (tmp_path / "spool").rglob("*") if path.is_file())


@as_root
def test_another_users_agent_json_leads_nobody(tmp_path):
    """Neither do ranks leave their segments to it, nor is it taken over."""
    with pytest.MonkeyPatch.context() as patch:
        lead = Leadership.take(tmp_path, "")
        assert lead is not None
        lead.release()
        os.chown(tmp_path / "agent.json", OTHER, OTHER)
        assert leader(tmp_path) is None
        with pytest.raises(PermissionError, match="another user"):
            Leadership.take(tmp_path, "")
        patch.undo()
    (tmp_path / "agent.json").unlink()
    os.mkfifo(tmp_path / "agent.json")
    assert leader(tmp_path) is None


def test_a_temporary_name_is_not_written_through(tmp_path):
    """A link under the name that a file has while it is written is replaced, not followed."""
    target = tmp_path / "target"
    target.write_text("as it was")
    (tmp_path / ".made.tmp").symlink_to(target)
    write_whole(tmp_path / "made", b"new")
    assert target.read_text() == "as it was"
    assert (tmp_path / "made").read_bytes() == b"new"
