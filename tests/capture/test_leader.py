"""Leader: one agent a local spool, by a lock that dies with its process."""

import os
import shutil
import signal
import subprocess
import sys

import pytest

from ranklake.capture.spool.leader import LEADER_FILE, Leadership, leader

HOLDER = """
import sys
from pathlib import Path
from ranklake.capture.spool.leader import Leadership
lead = Leadership.take(Path(sys.argv[1]), sys.argv[2])
print("mine" if lead else "taken", flush=True)
sys.stdin.readline()
"""

ASKING = """
import sys
from pathlib import Path
from ranklake.capture.spool.leader import leader
print("asking", flush=True)
while True:
    leader(Path(sys.argv[1]))
"""

PREEMPTED = """
import fcntl, sys, time
with open(sys.argv[1]) as file:
    fcntl.lockf(file, fcntl.LOCK_SH)
    print("asking", flush=True)
    time.sleep(0.5)
"""


def holder(root, spool=""):
    """Start a process that tries to lead a local spool; return it and what came of it."""
    command = [sys.executable, "-c", HOLDER, str(root), spool]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return process, process.stdout.readline().strip()


def end(process):
    """Kill a process, and wait for it."""
    process.kill()
    process.communicate()


def test_a_local_spool_has_one_leader(tmp_path):
    """Whoever comes second, from this process or another, is told so; everybody can see who it is."""
    assert leader(tmp_path) is None
    lead = Leadership.take(tmp_path, "spool")
    try:
        assert Leadership.take(tmp_path, "spool") is None
        process, told = holder(tmp_path)
        assert told == "taken"
        end(process)
        assert leader(tmp_path) == lead.leader
        assert lead.leader.pid == os.getpid()
        assert lead.still_holds()
    finally:
        lead.release()
    lead.release()
    assert leader(tmp_path) is None


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGSTOP])
def test_leading_ends_with_the_process(tmp_path, how):
    """A killed leader leads no more, at once; one that is only stopped still does."""
    process, told = holder(tmp_path)
    assert told == "mine"
    assert leader(tmp_path).pid == process.pid
    process.send_signal(how)
    if how == signal.SIGSTOP:
        assert leader(tmp_path).pid == process.pid
        end(process)
    process.communicate()
    assert leader(tmp_path) is None
    again = Leadership.take(tmp_path, "")
    assert again is not None
    again.release()


def test_asking_does_not_take_the_lock_away(tmp_path):
    """The leader's own process asks, too: that must not close the file that it holds."""
    lead = Leadership.take(tmp_path, "")
    for _ in range(3):
        assert leader(tmp_path) is not None
    process, told = holder(tmp_path)
    assert told == "taken"
    end(process)
    lead.release()


def test_a_forked_child_leads_nothing(tmp_path):
    """A child sees its parent lead, and its end takes nothing from the parent."""
    lead = Leadership.take(tmp_path, "")
    pid = os.fork()
    if pid == 0:
        seen = leader(tmp_path)
        right = seen is not None and seen.pid == os.getppid() and Leadership.take(tmp_path, "") is None
        lead.release()
        os._exit(0 if right else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    process, told = holder(tmp_path)
    assert told == "taken"
    end(process)
    lead.release()


def test_a_local_spool_that_was_removed_has_another_lock(tmp_path):
    """The leader of a spool that is no more notices; the one that is made anew has no leader yet."""
    root = tmp_path / "local"
    root.mkdir()
    lead = Leadership.take(root, "")
    shutil.rmtree(root)
    assert not lead.still_holds()
    root.mkdir()
    (root / LEADER_FILE).write_text("{")
    assert not lead.still_holds()
    lead.release()
    assert leader(root) is None


def test_it_serves_its_own_spool_or_all(tmp_path):
    """A leader that was given a spool leaves streams for other spools to their processes."""
    lead = Leadership.take(tmp_path, "s3://a/spool")
    assert lead.leader.uploads_to("s3://a/spool")
    assert not lead.leader.uploads_to("s3://b/spool")
    lead.release()
    lead = Leadership.take(tmp_path, "")
    assert lead.leader.uploads_to("s3://b/spool")
    lead.release()


@pytest.mark.slow
def test_asking_hinders_no_election(tmp_path):
    """While many ask again and again whether there is a leader, one can still be elected, every time."""
    (tmp_path / LEADER_FILE).touch()
    command = [sys.executable, "-c", ASKING, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE) for _ in range(2)]
    try:
        for process in processes:
            process.stdout.readline()
        for _ in range(2000):
            lead = Leadership.take(tmp_path, "")
            assert lead is not None
            lead.release()
    finally:
        for process in processes:
            end(process)


def test_an_election_waits_for_who_asks_and_has_no_core(tmp_path):
    """Somebody who asked is preempted just as it shares the lock: it is no leader, and so one is elected."""
    (tmp_path / LEADER_FILE).touch()
    asking = subprocess.Popen([sys.executable, "-c", PREEMPTED, tmp_path / LEADER_FILE], stdout=subprocess.PIPE)
    asking.stdout.readline()
    lead = Leadership.take(tmp_path, "")
    assert lead is not None
    lead.release()
    end(asking)
