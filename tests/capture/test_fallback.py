"""The fallback spool: used while the first is away for long, moved back by ingest, stored once."""

import subprocess
import sys
import time
from dataclasses import fields, replace

import pytest
from segments import put_segment, step_rows

from ranklake.capture.common.settings import SPOOL_KEYS, read_spool
from ranklake.capture.node.agent import Agent
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.node.worker import WorkerTask, run
from ranklake.capture.recording.breaker import BreakerState
from ranklake.config import Config
from ranklake.context import Context
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.gate import TOO_LARGE
from ranklake.lake.ingest.spool.listing_cache import ListedDay, ListingCache
from ranklake.lake.ingest.spool.move_back import DIFFERS
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.backlog import read_backlog
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig, SpoolSection
from ranklake.lake_state import lake_state
from ranklake.retention.erasure.places import NotIngestedError, refuse_waiting

KILLED = """
import os, signal, sys
from ranklake import capture
run = capture.start(job="j", run=sys.argv[3], spool=sys.argv[1], local_dir=sys.argv[2])
for number in range(20):
    with run.step(number): pass
os.kill(os.getpid(), signal.SIGKILL)
"""


class Site:
    """A local spool with a dead run, a first spool, a fallback spool and a lake."""

    def __init__(self, folder):
        self.local, self.first, self.second = (folder / name for name in ("local", "first", "second"))
        self.lake = Lake.create(str(folder / "lake"))
        self.spool = Spool(str(self.first), config=LakeConfig(spool=SpoolSection(fallback_uri=str(self.second))))

    def record(self, name):
        """Have a run record into the local spool, and die."""
        subprocess.run([sys.executable, "-c", KILLED, str(self.first), str(self.local), name], check=False)

    def send(self, after_s=0.0, away=()):
        """Send once, with some places away: a file is in the way of their folders."""
        for path in away:
            path.write_text("in the way")
        agent = Agent(self.local, str(self.first), fallback=Fallback(str(self.second), after_s=after_s))
        done = agent.look(pack_now=True)
        for path in away:
            path.unlink()
        return done

    def packs(self, place):
        """Return the names of packs in a spool."""
        return sorted(path.name for path in place.rglob("*.zip"))

    def ingest(self):
        """Ingest once."""
        return ingest(self.lake, self.spool, InProcess())

    def context(self):
        """Return what commands work with."""
        config = Config().overridden(
            {"lake.uri": self.lake.uri, "spool.uri": str(self.first), "spool.fallback_uri": str(self.second)}
        )
        return Context.of(config)


@pytest.fixture
def site(tmp_path):
    """Give a `Site`."""
    return Site(tmp_path)


def test_a_segment_goes_to_the_fallback_while_the_first_is_away_and_is_stored_once(site):
    """Not before `after_s`; counted as waiting until ingest has moved it; gone from the fallback then."""
    site.record("away")
    done = site.send(after_s=60.0, away=[site.first])
    assert (done.segments, done.fallback, done.left) == (0, 0, 5)
    done = site.send(away=[site.first])
    assert (done.segments, done.fallback, done.left, done.rows) == (5, 5, 0, 44)
    assert "NotADirectory" in done.failure or "FileExists" in done.failure
    assert site.packs(site.second)
    backlog = read_backlog(site.lake, site.spool)
    assert (backlog.segments, backlog.rows) == (5, 44)
    state = lake_state(site.context())
    assert state.adds_up
    assert sum(item.in_flight for item in state.balances) == 44
    with pytest.raises(NotIngestedError, match="1 files wait in the fallback spool"):
        refuse_waiting(site.lake.store, site.spool, [])
    done = site.ingest()
    assert (done.moved, done.rows_stored, done.rows_duplicate, done.held) == (1, 44, 0, {})
    assert (site.packs(site.second), len(site.packs(site.first))) == ([], 1)
    assert read_backlog(site.lake, site.spool).segments == 0
    refuse_waiting(site.lake.store, site.spool, [])


def test_the_first_is_used_again_once_it_is_there(site):
    """The agent goes back by itself; with both away all waits."""
    site.record("one")
    done = site.send(away=[site.first, site.second])
    assert (done.segments, done.left) == (0, 5)
    assert site.send(away=[site.first]).fallback == 5
    site.record("two")
    done = site.send()
    assert (done.segments, done.fallback) == (5, 0)
    done = site.ingest()
    assert (done.moved, done.rows_stored) == (1, 88)


def test_a_segment_in_both_spools_is_stored_once_whichever_comes_first(site):
    """What the first took and did not confirm comes by the fallback, too, in another pack or alone."""
    site.record("both")
    site.send(away=[site.first])
    (pack,) = site.second.rglob("*.zip")
    raw, target = pack.read_bytes(), site.first / pack.relative_to(site.second)
    target.parent.mkdir(parents=True)
    subprocess.run(["unzip", "-q", "-o", str(pack), "-d", str(site.first / "segments")], check=True)
    done = site.ingest()
    assert (done.moved, done.rows_stored) == (1, 44)
    pack.parent.mkdir(parents=True, exist_ok=True)
    pack.write_bytes(raw)  # and once more, after it is stored
    done = site.ingest()
    assert (done.moved, done.rows_stored) == (1, 0)
    assert lake_state(site.context()).is_sound


def test_a_move_that_was_killed_before_it_deleted_goes_on(site, monkeypatch):
    """The object is in both; the next ingest takes it out of the fallback, and stores nothing twice."""
    site.record("killed")
    site.send(away=[site.first])
    with monkeypatch.context() as patch:
        patch.setattr(Spool, "delete", lambda *_: (_ for _ in ()).throw(KeyboardInterrupt))
        with pytest.raises(KeyboardInterrupt):
            site.ingest()
    assert site.packs(site.first) == site.packs(site.second) != []
    done = site.ingest()
    assert (done.moved, done.rows_stored, site.packs(site.second)) == (1, 44, [])


def test_what_cannot_be_moved_stays_and_is_told(site, tmp_path):
    """Links, files that are too large, other bytes of the name in the first; the rest is moved, ingest goes on."""
    site.record("sound")
    site.send(away=[site.first])
    (pack,) = site.second.rglob("*.zip")
    folder = pack.parent.parent / "steps"
    folder.mkdir()
    (folder / "link.parquet").symlink_to("/etc/passwd")
    (folder / "other.parquet").write_bytes(b"theirs")
    other = site.first / folder.relative_to(site.second) / "other.parquet"
    other.parent.mkdir(parents=True)
    other.write_bytes(b"ours")
    with (folder / "large.parquet").open("wb") as file:
        file.truncate(site.spool.config.ingest.segment_bytes + 1)
    done = site.ingest()
    assert (done.moved, done.rows_stored) == (1, 44)
    assert other.read_bytes() == b"ours"
    assert sorted(path.name for path in folder.iterdir()) == ["large.parquet", "link.parquet", "other.parquet"]
    assert {DIFFERS, TOO_LARGE, "not a regular file"} <= set(done.held)
    assert not (site.first / folder.relative_to(site.second) / "link.parquet").exists()


def test_a_day_that_needs_no_listing_is_listed_once_something_was_moved_there(site):
    """What was sealed long ago comes in at once, not an hour later."""
    site.ingest()
    put_segment(site.second, step_rows(10), day="2026-03-01")
    (site.first / "segments/2026-03-01").mkdir(parents=True)
    rounds, now = ListingCache.load(site.lake.store, site.spool.address), int(time.time())
    rounds.days["2026-03-01"] = ListedDay(now - 60, now - 7200)
    rounds.save(site.lake.store)
    done = site.ingest()
    assert (done.moved, done.rows_stored) == (1, 10)


def test_a_fallback_that_is_away_stops_no_ingest(site):
    """The first spool's rows come in; the reason is told."""
    site.record("here")
    site.send()
    site.second.write_text("in the way")
    done = site.ingest()
    assert done.rows_stored == 44
    assert [path for path in done.held_first.values() if path.startswith(str(site.second))]


def test_the_agent_passes_what_it_knows_to_its_worker():
    """The place, its options and how long the first has been away reach the process that sends."""
    fallback = Fallback("s3://other/spool", {"key": "k"}, 5.0)
    states = {"s3://first": BreakerState(3, is_open=False, wait_s=2.0, away_s=4.0)}
    task = WorkerTask("/local", "s3://first", {}, "", states, fallback=fallback)
    assert WorkerTask.from_json(task.to_json()) == task
    assert not fallback.replaces(states["s3://first"])
    assert fallback.replaces(states["s3://first"].later(1.0))
    assert not fallback.replaces(states["s3://first"].later(2.5))  # it may be tried now
    assert not replace(fallback, uri="").replaces(states["s3://first"].later(1.0))


def test_the_monitor_makes_a_worker_due_for_the_fallback(site):
    """While the first spool is left alone, what waits is due as soon as it may go to the fallback."""
    site.record("waits")
    fallback = Fallback(str(site.second), after_s=0.5)
    monitor = SpoolMonitor(site.local, str(site.first), 0.0, fallback)
    site.first.write_text("in the way")
    task = WorkerTask(
        str(site.local), str(site.first), {}, "", {str(site.first): BreakerState(6, is_open=True, wait_s=60.0)}
    )
    assert monitor.look()  # the dead stream is to be sealed
    monitor.add_result(run(replace(task, fallback=fallback), _Never()))
    assert not monitor.look()
    monitor._breaker_states[str(site.first)] = BreakerState(6, is_open=True, wait_s=60.0, away_s=1.0)
    monitor._rests.clear()
    assert monitor.look()
    done = run(replace(task, breaker_states=monitor.breaker_states(), fallback=fallback), _Never())
    monitor.add_result(done)
    assert (done.done.fallback, monitor.figures.fallback_segments) == (5, 5)


class _Never:
    """An event that is never set."""

    def is_set(self):
        """Return False."""
        return False


def test_a_rank_knows_each_key_of_the_spool(tmp_path, monkeypatch):
    """The file that configures the pipeline makes no rank warn."""
    section = "".join(f"{item.name} = []\n" for item in fields(SpoolSection) if item.name not in SPOOL_KEYS)
    (tmp_path / "ranklake.toml").write_text(f"[spool]\n{section}urj = 'x'\n")
    monkeypatch.chdir(tmp_path)
    told = {}
    assert read_spool({}, told.__setitem__) == {}
    assert list(told) == ["[spool].urj"]
