"""Samplers within a rank's process: where there is no agent, and never beside one."""

import json
import os
import subprocess
import sys
import time

import pytest
from recorded import attributes, check_books, rows

from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.samplers.inprocess import InProcess, SpoolHolders, samples_here
from ranklake.capture.spool import frames
from ranklake.capture.spool.leader import Leadership
from ranklake.capture.spool.stream_files import streams

SEIZE = """
import sys
from pathlib import Path
from ranklake.capture.spool.owner import OwnerLock
print(OwnerLock.seize(Path(sys.argv[1]), 1))
"""
FAST = {"samplers": "auto", "sample_every_s": 0.1}


def until(true):
    """Wait until something holds."""
    deadline = time.monotonic() + 120
    while not true():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.01)


def sampled(place):
    """Return how many rows of the host the open streams hold."""
    files = place.local.glob("*/a*/*/host_samples-*.open")
    return sum(frame["subject"] == "host" for file in files for frame in frames.read(file).frames)


def test_one_process_samples_its_node(place):
    """The host, itself as the rank that it is, and that there is no GPU; the books hold."""
    run = place.start(**FAST)
    until(lambda: sampled(place) > 2)
    run.close()
    found = rows(place.spool, "host_samples")
    (process,) = [row for row in found if row["subject"] == "process"]
    assert (process["pid"], process["holder_run"], process["holder_rank"]) == (os.getpid(), "run", 0)
    assert process["process_rss_bytes"] > 1 << 20
    told = [row for row in rows(place.spool, "events") if row["event"] == "sampler_unavailable"]
    assert [attributes(row)["source"] for row in told] in (["nvml"], [])
    check_books(place.spool)


def test_an_agent_that_comes_up_takes_over(place):
    """Nothing is sampled twice: the process holds still while an agent holds the local spool, and goes on after it."""
    run = place.start(**FAST)
    until(lambda: sampled(place) > 1)
    lead = Leadership.take(place.local, "")
    try:
        thread = next(
            end.__self__ for end in run.rows.lifecycle.closers if isinstance(getattr(end, "__self__", None), InProcess)
        )
        ticks = []
        tick, thread._writer.tick = thread._writer.tick, lambda: ticks.append(tick())
        looked = thread._over.wait
        looks = []
        thread._over.wait = lambda timeout_s: looks.append(1) or looked(timeout_s)
        until(lambda: len(looks) > 3)
        before = len(ticks)
        until(lambda: len(looks) > 8)
        assert len(ticks) == before
    finally:
        lead.release()
    until(lambda: len(ticks) > before)
    run.close()
    check_books(place.spool)


@pytest.mark.parametrize(
    ("setting", "local_rank", "world_size", "samples"),
    [("auto", 0, 8, True), ("auto", 1, 8, False), ("auto", None, 1, True), ("auto", None, 8, False),
     ("on", 0, 8, True), ("on", 3, 8, False), ("off", 0, 1, False)],
)  # fmt: skip
def test_local_rank_0_samples(setting, local_rank, world_size, samples):
    """And no other; ranks that do not know where they are do not."""
    assert samples_here(setting, Launch("run", 0, 0, world_size, local_rank)) is samples


def test_others_processes_are_found_and_ones_own_lock_is_kept(place):
    """By the owner.json of the living; one's own must not be opened, which would drop its lock."""
    script = (
        "import sys; from ranklake import capture; run = capture.start(job='j', run='other', rank=1, world_size=2,"
        " local_dir=sys.argv[1], samplers='off'); print(flush=True); sys.stdin.read(); run.close()"
    )
    run = place.start(run="own")
    own = run.recording.recorder.stream.name
    command = [sys.executable, "-c", script, str(place.local)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        found = SpoolHolders(place.local, own)()
        assert {pid: (name.run, name.rank) for pid, name in found.items()} == {
            child.pid: ("other", 1),
            os.getpid(): ("own", 0),
        }
        child.communicate()
    assert set(SpoolHolders(place.local, own)()) == {os.getpid()}
    (folder,) = [folder for folder in streams(place.local) if "own" in folder.parts]
    done = subprocess.run([sys.executable, "-c", SEIZE, str(folder)], capture_output=True, text=True, check=True)
    assert done.stdout == "None\n"
    assert json.loads((folder / "owner.json").read_bytes())["pid"] == os.getpid()
