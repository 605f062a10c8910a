"""The agent's own run: written lightly, handed over stream by stream, stored whole."""

import signal
import subprocess
import sys
from dataclasses import replace

import pytest
from recorded import attributes, check_books, gaps, rows, segments

from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.node.agent import Agent
from ranklake.capture.node.agent_run import AgentRun
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.node.worker import WorkerTask, send
from ranklake.capture.recording.breaker import Breaker, BreakerState
from ranklake.capture.recording.budget import SHARES
from ranklake.capture.samplers.sample import Row, Value
from ranklake.capture.spool.stream_files import streams
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake

NODE = """
import os, signal, sys
from pathlib import Path
from ranklake.capture.node.agent_run import AgentRun
from ranklake.capture.samplers.sample import Row, Value
class Source:
    at = 0
    def sample(self, now_ns):
        self.at += 1
        yield Row("host_samples", {"subject": "host", "host": "h", "pid": self.at}, now_ns)
        yield Value("agent/lag", "gauge", float(self.at))
    def close(self): pass
node = AgentRun(Path(sys.argv[1]), sys.argv[2], hand_over_s=0.0)
sampling = node.sample_writer([Source()])
for _ in range(5):
    sampling.tick()
    node.tick()
sampling.tick()
if sys.argv[3] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
node.close()
print(*sys.modules)
"""


class Source:
    """Gives the same samples at each tick."""

    def __init__(self, *samples):
        self.samples = samples
        self.closed = False

    def sample(self, now_ns):
        """Give them."""
        for sample in self.samples:
            if isinstance(sample, Exception):
                raise sample
            yield sample._replace(at_ns=now_ns) if isinstance(sample, Row) else sample

    def close(self):
        """Take note."""
        self.closed = True


def recorded(place, how):
    """Run a node's run in a process of its own; return what it printed."""
    command = [sys.executable, "-c", NODE, str(place.local), str(place.spool), how]
    place.local.mkdir(exist_ok=True)
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("how", ["closed", "killed"])
def test_its_rows_are_stored_whatever_becomes_of_it(place, how):
    """Each stream that it handed over, and the one it was killed in, is adopted; ingest's books add up."""
    done = recorded(place, how)
    assert done.returncode == (0 if how == "closed" else -signal.SIGKILL)
    found = list(streams(place.local))
    assert len(found) == 6
    assert Agent(place.local, str(place.spool)).look().streams == len(found)
    assert list(streams(place.local)) == []
    assert [row["pid"] for row in rows(place.spool, "host_samples")] == [1, 2, 3, 4, 5, 6]
    assert [row["value"] for row in rows(place.spool, "scalars")] == [1, 2, 3, 4, 5, 6]
    events = [row["event"] for row in rows(place.spool, "events")]
    assert sorted(events[:2]) == ["rank_start", "run_start"]
    assert sorted(events[2:]) == (["rank_end", "run_end"] if how == "closed" else ["abandoned"])
    (run,) = rows(place.spool, "runs")
    assert run["job"] == "ranklake-agent"
    check_books(place.spool)
    lake, spool = Lake.create(str(place.local.parent / "lake")), Spool(str(place.spool))
    assert ingest(lake, spool, InProcess()).unreadable == 0
    books = balance(lake, spool.listing())
    assert [fault for item in books for fault in item.faults] == []
    assert {item.table: item.stored for item in books}["host_samples"] == 6


def test_recording_it_loads_neither_numpy_nor_pyarrow(place):
    """What seals and sends is another process's affair."""
    modules = set(recorded(place, "closed").stdout.split())
    assert modules
    assert modules.isdisjoint({"numpy", "pyarrow", "fsspec", "psutil", "torch", "ranklake.capture.sealing.seal"})


def test_the_agents_process_stays_light():
    """The command's own imports are without them, too."""
    script = "import sys, ranklake.commands.agent; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    modules = set(done.stdout.split())
    assert "ranklake.capture.node.spool_monitor" in modules
    assert modules.isdisjoint({"numpy", "pyarrow", "fsspec", "psutil", "torch", "pynvml"})


def test_a_sampler_that_fails_costs_no_other(place, caplog):
    """It is told once, as an event and in a warning; the others go on, and nothing is raised."""
    bad, good = Source(ValueError("oh")), Source(Value("agent/lag", "gauge", 1.0))
    node = AgentRun(place.local, str(place.spool))
    sampling = node.sample_writer([bad, good])
    for _ in range(3):
        sampling.tick()
    sampling.close()
    node.close()
    assert bad.closed
    assert good.closed
    assert Agent(place.local, str(place.spool)).look().troubles == ()
    assert len(rows(place.spool, "scalars")) == 3
    (told,) = [row for row in rows(place.spool, "events") if row["event"] == "sampler_failed"]
    assert attributes(told) == {"sampler": "Source", "error": "ValueError"}
    assert len([record for record in caplog.records if "Source failed" in record.message]) == 1


def test_samples_give_way_before_steps(place):
    """With their share of the disk budget used, samples are counted as gaps; steps and events still find room."""
    node = AgentRun(place.local, str(place.spool), CaptureSettings(disk_budget_bytes=1 << 20))
    budget = node.run.recording.recorder.budget
    for table in ("gpu_samples", "host_samples"):
        assert SHARES[table] < min(share for lane, share in SHARES.items() if not lane.endswith("samples"))
    budget.used_bytes = int(0.65 * budget.limit_bytes)
    sampling = node.sample_writer([Source(Row("host_samples", {"subject": "host"}, 0))])
    sampling.tick()
    with node.run.step(0):
        pass
    node.close()
    Agent(place.local, str(place.spool)).look()
    assert gaps(place.spool)["host_samples"] == {"backpressure": 1}
    assert len(rows(place.spool, "steps")) == 1
    check_books(place.spool)


def test_what_waits_for_a_store_that_is_away_counts_against_the_budget(place):
    """Not the present stream alone: those that were handed over, too."""
    node = AgentRun(place.local, str(place.spool), hand_over_s=0.0)
    sampling = node.sample_writer([Source(Row("host_samples", {"subject": "host", "host": "h" * 1000}, 0))])
    for _ in range(3):
        sampling.tick()
        node._next_anchor = 0.0
        node.tick()
    assert node.run.recording.recorder.budget.used_bytes > 2000
    node.close()


# ── watching and sending ──


def test_the_watch_sees_what_an_errand_would_do(place):
    """Dead streams are due; the living are not, nor is a spool with nothing in it, nor what is meant elsewhere."""
    place.local.mkdir()
    watch = SpoolMonitor(place.local, str(place.spool))
    assert not watch.look()
    node = AgentRun(place.local, str(place.spool))
    assert not watch.look()
    assert watch.alive == 1
    node.close()
    assert not SpoolMonitor(place.local, "s3://elsewhere").look()
    assert watch.look()
    report = send(
        WorkerTask(str(place.local), str(place.spool), {}, "", watch.breaker_states(), watch.read()), _Never(), 1.0
    )
    assert (report.done.streams, report.failed) == (1, False)
    watch.add_result(report)
    assert not watch.look()
    assert watch.figures.sent_segments == len(segments(place.spool)) > 0
    assert watch.figures.sent_bytes > 0


def test_a_stream_that_cannot_be_finished_is_left_alone_for_a_while(place):
    """It does not start a process at every look; what else is due, does."""
    node = AgentRun(place.local, str(place.spool))
    node.close()
    (folder,) = streams(place.local)
    (folder / "meta.frames").unlink()
    (folder / "meta.frames").mkdir()
    watch = SpoolMonitor(place.local, str(place.spool))
    assert _look(place, watch).done.troubles
    assert not watch.look()
    AgentRun(place.local, str(place.spool)).close()
    assert watch.look()


def test_a_store_that_fails_is_left_alone_as_its_breaker_says(place):
    """What one worker process learns of the store the next one knows; meanwhile nothing is due."""
    AgentRun(place.local, str(place.spool)).close()
    place.spool.write_text("in the way")
    watch = SpoolMonitor(place.local, str(place.spool))
    report = _look(place, watch)
    assert report.retries == 1
    (state,) = watch.breaker_states().values()
    assert state.failures == 1
    assert watch.figures.retries == 1
    watch._breaker_states = {uri: replace(found, wait_s=60.0) for uri, found in watch._breaker_states.items()}
    watch._rests.clear()
    assert not watch.look()


def test_a_breaker_goes_on_where_another_stood():
    """Failures, openness and the wait are carried over."""
    breaker = Breaker()
    for _ in range(6):
        breaker.failed()
    found = breaker.snapshot()
    assert found.is_open
    again = Breaker.from_state(found)
    assert again.state == "open"
    assert 0 < again.left_s() <= found.wait_s
    assert Breaker.from_state(BreakerState()).wait_s() == 0


def test_an_errand_that_comes_to_nothing_is_told(place, monkeypatch):
    """No process, or one that says nothing, is a trouble in one line."""
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    report = send(WorkerTask(str(place.local), "", {}, ""), _Never(), 1.0)
    assert report.failed
    assert "no process can be started" in report.done.troubles[0]
    monkeypatch.setattr(sys, "executable", "/bin/false")
    report = send(WorkerTask(str(place.local), "", {}, ""), _Never(), 1.0)
    assert "status 1" in report.done.troubles[0]


class _Never:
    @staticmethod
    def is_set():
        return False


def _look(place, watch):
    assert watch.look()
    report = send(
        WorkerTask(str(place.local), str(place.spool), {}, "", watch.breaker_states(), watch.read()), _Never(), 1.0
    )
    watch.add_result(report)
    return report
