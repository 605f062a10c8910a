"""The agent under SIGKILL: all that ranks acknowledged is in the lake once, whenever whoever sent it was killed."""

import json
import os
import random
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig, SpoolSection
from ranklake.lake.tables.read import read

KILLS = int(os.environ.get("RANKLAKE_KILLS", "30"))
SEED = int(os.environ.get("RANKLAKE_SEED", str(random.SystemRandom().randrange(10**9))))
CHILD = Path(__file__).with_name("agent_child.py")


class Nursery:
    """Runs processes, one at a time or some beside each other, and tells how they ended."""

    def __init__(self, spool):
        self.spool = spool
        self.process = subprocess.Popen(
            [sys.executable, str(CHILD)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def run(self, place, mode, *, at=0, seed=0, most=0, fallback=""):
        """Run one job; return whether it was killed, and what it counted."""
        job = {"mode": mode, "at": at, "seed": seed, "most": most, "run": place.name, "spool": str(self.spool)}
        job["fallback"] = str(fallback)
        job |= {"local": str(place / "local"), "journal": str(place / "journal")}
        self.process.stdin.write(json.dumps(job) + "\n")
        self.process.stdin.flush()
        told = json.loads(self.process.stdout.readline())
        assert told["status"] in {0, signal.SIGKILL}, (job, told)
        return told["status"] == signal.SIGKILL, told["count"]

    def close(self):
        """End the nursery."""
        self.process.stdin.close()
        self.process.wait()
        self.process.stdout.close()


@pytest.fixture
def nursery(tmp_path):
    """Give a nursery."""
    made = Nursery(tmp_path / "spool")
    yield made
    made.close()


def make(place):
    """Make a folder with a local spool."""
    (place / "local").mkdir(parents=True)
    return place


def acknowledged(place):
    """Return the steps that ranks have written into their journals, by run."""
    found = {}
    for path in place.glob("journal*"):
        run = place.name + path.name.removeprefix("journal")
        found[run] = {int(line.split()[1]) for line in path.read_text().split("\n")[:-1] if line.startswith("step")}
    return found


def _digests(spool):
    """Return which segments are in a spool, those in packs among them."""
    return {item.sha256 for item in Spool(str(spool)).listing()}


@pytest.mark.crash
@pytest.mark.parametrize("has_fallback", [False, True], ids=["one spool", "fallback"])
def test_killed_agents_lose_and_repeat_nothing(tmp_path, nursery, capsys, has_fallback):
    """After kills at random points of adopting, packing, sending and acknowledging, each row is in the lake once.

    With a fallback spool, too, where the first one fails every second PUT, some of them after it stored the bytes.
    """
    second = tmp_path / "fallback" if has_fallback else ""
    rng = random.Random(SEED)
    with capsys.disabled():
        print(f"\n{KILLS} kills of the agent, RANKLAKE_SEED={SEED}")
    counting = make(tmp_path / "count")
    nursery.run(counting, "led", seed=1)
    _, most = nursery.run(counting, "agent")
    assert most > 100
    most *= 2 if has_fallback else 1  # more of them end alive: what fails, and goes to the fallback, comes late
    places, kills = [counting], Counter()
    while kills.total() < KILLS:
        place = make(tmp_path / f"round-{len(places)}")
        places.append(place)
        if rng.random() < 0.5:  # what a rank left, sent by agents that die one after the other
            nursery.run(place, "led", seed=rng.random())
            while rng.random() < 0.8:
                mode = rng.choice(["agent", "agent", "recover"])
                killed, _ = nursery.run(place, mode, at=rng.randint(1, most), fallback=second)
                kills[mode] += killed
        else:  # agents that die beside ranks that live
            _, count = nursery.run(place, "beside", seed=rng.random(), most=most, fallback=second)
            kills["beside"] += count
        nursery.run(place, "agent")
        assert sorted(path.name for path in (place / "local").iterdir()) == [".claims", "agent.json"]
    lake = Lake.create(str(tmp_path / "lake"))
    spool = Spool(str(nursery.spool), config=LakeConfig(spool=SpoolSection(fallback_uri=str(second))))
    twice = _digests(nursery.spool) & _digests(second) if has_fallback else set()
    done = ingest(lake, spool, InProcess())
    assert (done.unreadable, done.rows_rejected, bool(done.moved)) == (0, 0, has_fallback)
    assert not has_fallback or (twice and not _digests(second))
    books = balance(lake, spool.listing())
    assert [fault for item in books for fault in item.faults] == []
    assert all(item.recorded == item.stored and item.gaps == item.in_flight == 0 for item in books), books
    stored = Counter(
        zip(*read(lake.tables, contract("steps"), ["run", "step"]).to_pydict().values(), strict=True),
    )
    assert set(stored.values()) == {1}
    for place in places:
        for run, steps in acknowledged(place).items():
            there = {step for of, step in stored if of == run}
            assert there >= steps, run
            assert len(there) - len(steps) <= 1  # a step that ended just before the journal was written
    sent = read(lake.tables, contract("segments"), ["uri_name"])["uri_name"].to_pylist()
    assert any(".zip#" in path for path in sent)
    assert any(path.endswith(".parquet") and ".zip#" not in path for path in sent)
    with capsys.disabled():
        print(f"{len(twice)} segments in both spools, {done.moved} files moved")
        print(f"{kills.total()} kills in {len(places)} rounds: {dict(sorted(kills.items()))}; {len(sent)} segments")
