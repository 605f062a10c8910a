"""How a rank says that it ends: real processes, real signals; what they did before, they do with capture."""

import json
import os
import signal
import subprocess
import sys
import threading
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from recorded import attributes, check_books, left_in, rows

from ranklake.capture.common.settings import CaptureSettings, read_settings
from ranklake.capture.lifecycle import preemption
from ranklake.capture.provenance.environment import NotSubmittedError, submitted_us

CHILD = Path(__file__).with_name("lifecycle_child.py")
SECRET = "hf_abcdefghijklmnopqrstuvwxyz"


class Child:
    """A process that records, and what it left."""

    def __init__(self, folder, how):
        self.spool, self.local = folder / "spool", folder / "local"
        command = [sys.executable, str(CHILD), how, str(self.spool), str(self.local)]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def line(self):
        """Wait for its next line."""
        return self.process.stdout.readline().strip()

    def end(self, number=None):
        """Send it a signal, wait for its end, and return its status."""
        if number is not None:
            self.process.send_signal(number)
        self.out, self.err = self.process.communicate(timeout=60)
        return self.process.returncode

    def events(self, name):
        """Return its events of a name."""
        return [row for row in rows(self.spool, "events") if row["event"] == name]


@pytest.fixture
def child(tmp_path):
    """Start a child; it is killed when the test ends."""
    started = []

    def start(how):
        started.append(Child(tmp_path, how))
        return started[-1]

    yield start
    for one in started:
        one.process.kill()
        one.process.wait()


@pytest.mark.slow
def test_sigterm_in_a_call_of_c_ends_the_process_as_ever(child):
    """A main thread that waits in C dies of SIGTERM at once; the event, the rows and the end are in the spool."""
    one = child("stuck")
    assert one.line() == "ready"
    assert one.end(signal.SIGTERM) == -signal.SIGTERM
    (told,) = one.events("preemption")
    assert attributes(told) == {"signal": "SIGTERM", "dies": True}
    assert (told["severity"], told["step"]) == ("warning", 2)
    (end,) = one.events("rank_end")
    assert attributes(end) == {"signal": "SIGTERM"}
    assert one.events("run_end") == []
    assert [row["step"] for row in rows(one.spool, "steps")] == [0, 1, 2]
    check_books(one.spool)
    assert left_in(one.local) == []


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_users_handler_stays(child, when):
    """Set before or after the start, a handler is called, the process goes on, and the event is recorded."""
    one = child(when)
    assert one.line() == "ready"
    assert one.end(signal.SIGTERM) == 0
    assert one.out == "handled SIGTERM\n"
    (told,) = one.events("preemption")
    assert attributes(told) == {"signal": "SIGTERM", "dies": False}
    assert len(rows(one.spool, "steps")) == 6
    assert attributes(one.events("rank_end")[0]) == {}


def test_a_forked_child_dies_of_sigterm_and_its_parent_does_not(child):
    """A loader's worker has the default handler; what it is sent is no preemption of its parent."""
    one = child("forked")
    assert one.line() == "ready"
    (pid,) = Path(f"/proc/{one.process.pid}/task/{one.process.pid}/children").read_text().split()
    subprocess.run(["kill", "-TERM", pid], check=True)
    assert one.line() == str(int(signal.SIGTERM))
    assert one.end() == 0
    assert one.events("preemption") == []


def test_an_exception_that_nobody_handles_is_a_failure(child):
    """The event says what and where to, without its secret; the traceback is printed as ever."""
    one = child("raises")
    assert one.end() == 1
    assert "ValueError: no such token" in one.err
    (told,) = one.events("failure")
    assert told["severity"] == "error"
    assert told["message"] == "ValueError: no such token: [redacted]"
    assert attributes(told) == {"exception": "ValueError", "exit_code": 1}
    assert attributes(one.events("rank_end")[0]) == {"exit_code": 1, "reason": "ValueError"}
    (line,) = rows(one.spool, "logs")
    assert (line["severity_text"], line["stream"], line["exception_type"]) == ("FATAL", "excepthook", "ValueError")
    assert line["message"] == "ValueError: no such token: [redacted]"
    assert line["exception_stacktrace"].startswith("Traceback (most recent call last)")
    assert 'lifecycle_child.py", line' in line["exception_stacktrace"]
    assert not any(SECRET.encode() in path.read_bytes() for path in one.spool.rglob("*.parquet"))


@pytest.mark.parametrize("how", ["raises", "exits"])
def test_a_process_of_multiprocessing_tells_of_its_exception(tmp_path, how):
    """It is the cause, with its traceback, and comes before the SIGTERM that its parent sends the other rank."""
    spool = tmp_path / "spool"
    command = [sys.executable, str(CHILD.with_name("spawn_child.py")), how, str(spool), str(tmp_path / "local")]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    events = sorted(rows(spool, "events"), key=lambda row: row["ts"])
    told = [(row["rank"], row["event"]) for row in events if row["event"] in {"failure", "preemption"}]
    assert told == [(1, "failure"), (0, "preemption")]
    (failure,) = [row for row in events if row["event"] == "failure"]
    assert attributes(failure) == {"exception": "ValueError", "exit_code": 1}
    (line,) = rows(spool, "logs")
    assert line["rank"] == 1
    assert line["exception_stacktrace"].endswith("ValueError: a bad batch\n")


def test_ctrl_c_is_an_interruption(child):
    """No failure, and no traceback of somebody's wish."""
    one = child("hangs")
    assert one.line() == "ready"
    assert one.end(signal.SIGINT) == -signal.SIGINT
    (told,) = one.events("interruption")
    assert (told["severity"], attributes(told)["exception"]) == ("warning", "KeyboardInterrupt")
    assert one.events("failure") == []
    assert rows(one.spool, "logs") == []


def test_what_comes_after_a_sigterm_is_not_lost(child, monkeypatch):
    """A loop goes on while its run is closed: the closing line tells what was refused then apart from what is lost."""
    monkeypatch.setenv("RANKLAKE_CAPTURE_ANNOUNCE", "on")
    one = child("trains")
    assert one.line() == "ready"
    assert one.end(signal.SIGTERM) == -signal.SIGTERM
    (line,) = [line for line in one.err.splitlines() if " ended: " in line]
    assert ", 0 lost" in line


def test_an_exit_code_is_recorded(child):
    """``sys.exit(7)`` within the run's block is a failure with that code."""
    one = child("exits")
    assert one.end() == 7
    assert attributes(one.events("failure")[0])["exit_code"] == 7
    assert attributes(one.events("rank_end")[0]) == {"exit_code": 7, "reason": "SystemExit"}


def test_an_exit_outside_of_the_runs_block_is_a_failure(child):
    """``sys.exit(3)`` where nobody wrote ``with run:``; what it was raised for is the cause."""
    one = child("exits outside")
    assert one.end() == 3
    (told,) = one.events("failure")
    assert told["message"].startswith("ValueError: invalid literal")
    assert attributes(told) == {"exception": "ValueError", "exit_code": 3}
    assert attributes(one.events("rank_end")[0]) == {"exit_code": 3, "reason": "ValueError"}


def test_an_exit_that_is_caught_ends_nothing(child):
    """As tests of a command line do; the run goes on and has come to its end."""
    one = child("exit caught")
    assert one.end() == 0
    assert one.events("failure") == []
    assert attributes(one.events("rank_end")[0]) == {}


def test_sys_exit_is_as_before_when_the_run_has_closed(place):
    """The wrapper goes with the last run; within one, it raises as ever."""
    before = sys.exit
    run = place.start()
    with pytest.raises(SystemExit) as error:
        sys.exit("no")
    assert error.value.code == "no"
    run.close()
    assert sys.exit is before


def test_ctrl_c_in_a_process_that_swallows_it_is_an_interruption(tmp_path):
    """Below torch.multiprocessing.spawn nothing else tells of it."""
    spool = tmp_path / "spool"
    command = [sys.executable, str(CHILD.with_name("spawn_child.py")), "swallowed", str(spool), str(tmp_path / "local")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as parent:
        pid = int(parent.stdout.readline())
        assert parent.stdout.readline() == "ready\n"
        os.kill(pid, signal.SIGINT)
        assert parent.wait(60) == 0
    told = [row["event"] for row in rows(spool, "events") if row["event"] in {"failure", "interruption", "preemption"}]
    assert told == ["interruption"]


def test_a_thread_that_fails_is_told_and_ends_nothing(child):
    """The event names the thread; the end knows of no failure."""
    one = child("thread")
    assert one.end() == 0
    assert "KeyError" in one.err
    (told,) = one.events("failure")
    assert attributes(told) == {"exception": "KeyError", "thread": "loader"}
    assert attributes(one.events("rank_end")[0]) == {}


def test_signals_are_as_before_when_the_run_has_closed(place):
    """Neither handler nor pipe is left."""
    before = signal.getsignal(signal.SIGTERM)
    run = place.start()
    assert signal.getsignal(signal.SIGTERM) != before
    run.close()
    assert signal.getsignal(signal.SIGTERM) == before
    assert signal.set_wakeup_fd(-1) == -1


def test_somebody_elses_pipe_is_left_alone(place):
    """Where signals are heard of by somebody else (asyncio, say), no handler is set."""
    reader, writer = os.pipe()
    os.set_blocking(writer, False)
    signal.set_wakeup_fd(writer)
    try:
        place.start()
        assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    finally:
        assert signal.set_wakeup_fd(-1) == writer
        os.close(reader)
        os.close(writer)


def test_a_signal_is_told_once_however_long_that_takes(place):
    """The thread that waits for the main one to tell of it does not take over in the middle."""
    calls, again = [], threading.Event()
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    try:
        run = place.start(preemption_signals="SIGUSR1")
        tell = run.rows.lifecycle.preempted

        def slowly(name, *, dies):
            if threading.current_thread() is threading.main_thread():
                again.wait(10 * preemption._MAIN_THREAD_WAIT_S)  # as on a machine that is busy
            else:
                again.set()
            tell(name, dies=dies)

        run.rows.lifecycle.preempted = slowly
        for _ in range(3):
            signal.raise_signal(signal.SIGUSR1)
        run.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(calls) == 3
    assert not again.is_set()
    assert len([row for row in rows(place.spool, "events") if row["event"] == "preemption"]) == 3


def test_a_handler_that_calls_ours_has_each_signal_told_once(place):
    """One that is set later and passes on what it is called with."""
    calls = []
    before = signal.signal(signal.SIGUSR1, lambda *_: calls.append(1))
    try:
        run = place.start(preemption_signals="SIGUSR1")
        ours = signal.getsignal(signal.SIGUSR1)

        def passes_on(number, frame):
            ours(number, frame)

        signal.signal(signal.SIGUSR1, passes_on)
        signal.raise_signal(signal.SIGUSR1)
        run.close()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert calls == [1]
    assert len([row for row in rows(place.spool, "events") if row["event"] == "preemption"]) == 1


def test_a_signal_that_is_none_is_told(place, warnings_told):
    """A misspelt name is told once; the run records."""
    run = place.start(preemption_signals="SIGTREM")
    assert run.enabled
    assert "SIGTREM is not a signal" in warnings_told.text


def test_settings():
    """No signals are a choice."""
    assert read_settings({"preemption_signals": ""}, {}, print).preemption_signals == ""
    assert CaptureSettings().heartbeat_every_s == 60.0
    assert json.dumps(CaptureSettings().preemption_signals) == '"SIGTERM"'


def test_the_wait_in_the_queue_is_known_where_the_environment_says(place, monkeypatch):
    """Seconds or ISO 8601 in RANKLAKE_SUBMITTED_TS are runs.submitted_ts; else the row says why there is none."""
    then = datetime.now(UTC).replace(microsecond=0) - timedelta(hours=2)
    given = [str(int(then.timestamp())), then.isoformat(), then.astimezone().replace(tzinfo=None).isoformat(), "soon"]
    for number, word in enumerate(given):
        monkeypatch.setenv("RANKLAKE_SUBMITTED_TS", word)
        place.start(run=f"run{number}").close()
    *known, unknown = sorted(rows(place.spool, "runs"), key=lambda row: row["run"])
    assert [row["submitted_ts"] for row in known] == [then] * 3
    assert unknown["submitted_ts"] is None
    assert json.loads(unknown["unavailable"])["submitted_ts"].startswith("RANKLAKE_SUBMITTED_TS is neither")
    with pytest.raises(NotSubmittedError, match="future"):
        submitted_us({"RANKLAKE_SUBMITTED_TS": "2999-01-01"})


@pytest.mark.slow
def test_torchrun_restarts_a_run(tmp_path):
    """A rank that fails is a failure, the one that torchrun ends then a preemption; the next attempt is of that run."""
    os.mkfifo(tmp_path / "waits")
    place = [str(tmp_path / name) for name in ("spool", "local", "waits")]
    script = str(CHILD.with_name("elastic_child.py"))
    options = ["--standalone", "--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    command = [sys.executable, "-m", "torch.distributed.run", *options, script, *place]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    events = [row for row in rows(tmp_path / "spool", "events") if row["event"] not in {"run_start", "run_end", "gap"}]
    assert len({row["run"] for row in events}) == 1
    told = {(row["attempt"], row["rank"]): [] for row in events}
    for row in events:
        told[row["attempt"], row["rank"]].append(row["event"])
    assert told == {
        (0, 0): ["rank_start", "preemption", "rank_end"],
        (0, 1): ["rank_start", "failure", "rank_end"],
        (1, 0): ["rank_start", "rank_end"],
        (1, 1): ["rank_start", "rank_end"],
    }
    starts = [attributes(row) for row in events if row["event"] == "rank_start"]
    assert {start["launcher"] for start in starts} == {"torchrun"}
    assert {start["world_size"] for start in starts} == {2}
    check_books(tmp_path / "spool")


def test_a_source_that_fails_at_the_end_keeps_no_other_from_it(place, warnings_told):
    """The others are closed, and the end is recorded: without it the rank would count as dead."""
    run, closed = place.start(), []
    run.rows.lifecycle.closers += [lambda: closed.append("first"), lambda: 1 / 0, lambda: closed.append("last")]
    run.rows.lifecycle.drains.append(lambda _: 1 / 0)
    run.close()
    assert closed == ["last", "first"]
    assert "ZeroDivisionError" in warnings_told.text
    assert [row["event"] for row in rows(place.spool, "events")][-2:] == ["run_end", "rank_end"]


def test_a_hang_is_recorded_with_the_stacks_of_all_threads(place):
    """Once, and by default: where the main thread stands comes first; our own threads are left out.

    That it went on is recorded, too.
    """
    recorded, went_on = threading.Event(), threading.Event()
    beside = threading.Thread(target=recorded.wait, name="worker", daemon=True)
    with place.start(hang_s=0.2) as run:
        beside.start()
        put = run.rows.logs.lines().put
        run.rows.logs.lines().put = lambda columns: (
            put(columns),
            columns["thread_name"] == "worker" and recorded.set(),
        )
        with run.step(3):
            assert recorded.wait(60)
        add = run.rows.events.add
        run.rows.events.add = lambda name, **facts: (add(name, **facts), name == "hang_end" and went_on.set())
        with run.step(4):
            while not went_on.wait(0.05):  # phases begin, so that this is no second hang
                with run.phase("forward"):
                    pass
    lines = [row for row in rows(place.spool, "logs") if row["logger"] == "stacks"]
    assert lines[0]["thread_name"] == "MainThread"
    assert "assert recorded.wait(60)" in lines[0]["exception_stacktrace"]
    assert sum(line["thread_name"] == "worker" for line in lines) == 1
    assert not any(line["thread_name"].startswith("ranklake-") for line in lines)
    assert "no step or phase began for" in lines[0]["message"]
    (event,) = (row for row in rows(place.spool, "events") if row["event"] == "hang")
    assert (event["step"], event["severity"]) == (3, "error")
    assert json.loads(event["attributes"])["still_s"] >= 0.2
    (event, *_) = (row for row in rows(place.spool, "events") if row["event"] == "hang_end")
    assert json.loads(event["attributes"])["still_s"] >= 0.2
