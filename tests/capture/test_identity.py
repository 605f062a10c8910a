"""Identity: every rank is recorded as the rank that it is, whenever that is known, and as nobody else's."""

import json
import os
import subprocess
import sys
import textwrap

import pytest
from recorded import attributes, check_books, gaps, left_in, rows, segments

from ranklake.capture.frameworks.follower import follow

torch = pytest.importorskip("torch")


@pytest.fixture
def group():
    """Initialise torch.distributed as one rank of several, none of which is needed."""
    from torch.testing._internal.distributed.fake_pg import FakeStore

    def initialise(rank, world_size):
        torch.distributed.init_process_group("fake", store=FakeStore(), rank=rank, world_size=world_size)

    yield initialise
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


def told(caplog):
    return [record.getMessage() for record in caplog.records]


def test_torch_distributed_says_which_rank_this_is(place, group, monkeypatch):
    """It comes before the variables, which may be those of a node whose script started a process for each GPU."""
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    group(3, 8)
    with place.start() as run:
        assert (run.rank, run.world_size) == (3, 8)
    (row,) = (row for row in rows(place.spool, "events") if row["event"] == "rank_start")
    assert (row["rank"], attributes(row)["world_size"]) == (3, 8)
    assert rows(place.spool, "runs") == []


def test_a_rank_that_is_known_late_is_that_rank_from_its_first_row(place, group, caplog):
    """What was recorded before torch.distributed was initialised becomes the rank's; nothing is rank 0's."""
    run = place.start()
    run.event("before")
    run.log(warmup=1.0)
    group(1, 4)
    for number in range(3):
        with run.step(number, loss=1.0), run.phase("forward"):
            pass
    torch.distributed.destroy_process_group()
    run.close()
    assert (run.rank, run.world_size) == (1, 4)
    found = {table: rows(place.spool, table) for table in ("steps", "events", "scalars", "spans")}
    assert {row["rank"] for table in found.values() for row in table} == {1}
    assert [row["step"] for row in found["steps"]] == [0, 1, 2]
    names = [row["event"] for row in found["events"]]
    assert names == ["rank_start", "before", "rank_start", "rank_end"]
    assert attributes(found["events"][2])["world_size"] == 4
    assert rows(place.spool, "runs") == []
    assert {(s.footer.rank, s.footer.world_size) for s in segments(place.spool)} == {(1, 4)}
    assert gaps(place.spool) == {}
    check_books(place.spool)
    assert left_in(place.local) == []
    assert told(caplog) == []


def test_rank_0_that_is_known_late_has_the_worlds_size_in_its_row(place, group):
    """It keeps its stream; its row of ``runs`` says how many ranks there are."""
    with place.start() as run:
        group(0, 4)
        with run.step(0):
            pass
    (row,) = rows(place.spool, "runs")
    assert (row["rank"], row["world_size"]) == (0, 4)
    assert [event["event"] for event in rows(place.spool, "events")] == [
        "run_start", "rank_start", "rank_start", "run_end", "rank_end",
    ]  # fmt: skip
    assert len({s.footer.incarnation for s in segments(place.spool)}) == 1
    check_books(place.spool)


def test_rows_that_were_sent_before_the_rank_was_known_are_told(place, group, caplog):
    """They stay rank 0's, in a stream that has ended, and a warning says so; the others are the rank's."""
    run = place.start()
    with run.step(0):
        pass
    assert run.flush()
    group(2, 4)
    run.flush()
    with run.step(1):
        pass
    run.close()
    assert [(row["step"], row["rank"]) for row in rows(place.spool, "steps")] == [(0, 0), (1, 2)]
    ends = [(row["rank"], row["event"]) for row in rows(place.spool, "events") if row["event"].endswith("end")]
    assert ends == [(0, "rank_end"), (2, "rank_end")]
    (line,) = told(caplog)
    assert "rank 2 of 4" in line
    assert "init_process_group" in line
    check_books(place.spool)


def test_a_forked_child_is_the_rank_that_its_parent_is(place, group):
    """A worker that was forked before the look of the second records as the rank, not as rank 0."""
    run = place.start()
    group(1, 2)
    pid = os.fork()
    if pid == 0:
        run.event("in the child")
        os._exit(0)
    os.waitpid(pid, 0)
    run.close()
    (event,) = (row for row in rows(place.spool, "events") if row["event"] == "in the child")
    assert event["rank"] == 1


def test_a_forked_rank_whose_parent_has_a_run_is_a_rank_of_its_own(place, group, caplog):
    """What follows frameworks begins the child's own recording, of the parent's run, once it is in a group."""
    parent = follow(place.start())
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            group(rank, 2)
            child = follow()
            child.begin_step()
            child.end_step()
            child.run.close()
            os._exit(0)
        os.waitpid(pid, 0)
    parent.run.close()
    found = sorted((row["run"], row["attempt"], row["rank"], row["step"]) for row in rows(place.spool, "steps"))
    assert found == [("run", 0, 0, 0), ("run", 0, 1, 0)]
    starts = [
        (row["rank"], attributes(row)["world_size"])
        for row in rows(place.spool, "events")
        if row["event"] == "rank_start"
    ]
    assert sorted(starts) == [(0, 1), (0, 2), (1, 2)]
    assert told(caplog) == []
    check_books(place.spool)


def test_what_is_wrong_with_variables_is_told_once(place, group, monkeypatch, caplog):
    """Not again when torch.distributed has said which rank this is."""
    monkeypatch.setenv("RANKLAKE_ATTEMPT", "x1")
    with place.start() as run:
        group(1, 2)
    assert run.rank == 1
    (line,) = told(caplog)
    assert "RANKLAKE_ATTEMPT='x1'" in line


SPAWNED = """
import os, sys
import torch
from ranklake import capture

def work(rank, spool, local, port, named):
    torch.set_num_threads(1)
    run = capture.start("gpt", spool=spool, local_dir=local, **({"run": named} if named else {}))
    torch.distributed.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    for number in range(2):
        with run.step(number):
            torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    run.close()

if __name__ == "__main__":
    torch.multiprocessing.spawn(work, args=(*sys.argv[1:4], sys.argv[4]), nprocs=2)
"""


@pytest.mark.slow
@pytest.mark.parametrize("named", ["", pytest.param("mine", marks=pytest.mark.frameworks)])
def test_processes_that_torch_spawns_are_the_ranks_that_they_are(tmp_path, named):
    """Under `torch.multiprocessing.spawn` no variable says who is who; all come to one run, named or not."""
    from stores import free_port

    script = tmp_path / "train.py"
    script.write_text(SPAWNED)
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RANKLAKE_")}
    environ["RANKLAKE_CAPTURE_ANNOUNCE"] = "off"
    command = [sys.executable, str(script), str(tmp_path / "spool"), str(tmp_path / "local"), str(free_port()), named]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "ranklake:" not in done.stderr
    found = rows(tmp_path / "spool", "steps")
    assert sorted((row["rank"], row["step"]) for row in found) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (name,) = {row["run"] for table in ("steps", "events", "spans", "runs") for row in rows(tmp_path / "spool", table)}
    assert not named or name == named
    (row,) = rows(tmp_path / "spool", "runs")
    assert (row["rank"], row["world_size"], row["launcher"]) == (0, 2, "multiprocessing")
    assert {row["attempt"] for row in found} == {0}
    check_books(tmp_path / "spool")


HOLDER = """
import sys
from ranklake import capture
run = capture.start(run="run", spool=sys.argv[1], local_dir=sys.argv[2])
with run.step(0): pass
run.flush()
print("records", flush=True)
sys.stdin.read()
run.close()
"""


@pytest.fixture
def holder(place):
    """Have another process record rank 0 of the run."""
    environ = {key: value for key, value in os.environ.items() if not key.startswith("RANKLAKE_")}
    command = [sys.executable, "-c", textwrap.dedent(HOLDER), str(place.spool), str(place.local)]
    process = subprocess.Popen(command, env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout.readline() == b"records\n"
    yield process
    process.communicate(timeout=30)


def test_a_rank_that_is_claimed_twice_is_told_and_kept_apart(place, holder, caplog):
    """The later process becomes a run of its own, and both processes and the mend are named, there and in an event."""
    with place.start(attempt=0) as run, run.step(0):
        pass
    assert run.name.startswith("run-claim-")
    (line,) = told(caplog)
    assert f"process {holder.pid}" in line
    assert f"process {os.getpid()}" in line
    assert "rank=" in line
    (event,) = (row for row in rows(place.spool, "events") if row["event"] == "rank_claimed_twice")
    assert attributes(event) == {"run": "run", "attempt": 0, "pids": [holder.pid, os.getpid()]}
    assert [row["run"] for row in rows(place.spool, "steps")] == ["run", run.name]
    assert json.loads(event["attributes"])["run"] == "run"
    check_books(place.spool)


def test_a_run_that_is_recorded_again_is_the_next_attempt(place, holder, caplog):
    """Another launch under the same name has the next number, which is told, and the steps are there once each."""
    holder.communicate(timeout=30)
    for _ in range(2):
        with place.start() as run, run.step(0):
            pass
    assert [(row["attempt"], row["step"]) for row in rows(place.spool, "steps")] == [(0, 0), (1, 0), (2, 0)]
    assert next(line for line in told(caplog) if "this is attempt" in line).endswith("this is attempt 1")
    with place.start(attempt=7) as run:
        assert run.attempt == 7


@pytest.mark.slow
def test_restarts_of_one_launch_stay_together_behind_those_of_earlier_ones(place, monkeypatch, caplog):
    """What torchrun counts is counted from the launch's first attempt, the same for all of its ranks."""

    def launch(folder, restart, rank, ranks_here=2):
        monkeypatch.setenv("TORCHELASTIC_ERROR_FILE", f"/tmp/{folder}/none_b/attempt_{restart}/{rank}/error.json")
        monkeypatch.setenv("TORCHELASTIC_RESTART_COUNT", str(restart))
        for name, value in (("RANK", rank), ("LOCAL_RANK", rank), ("WORLD_SIZE", 2), ("LOCAL_WORLD_SIZE", ranks_here)):
            monkeypatch.setenv(name, str(value))
        with place.start() as run, run.step(0):
            return run.attempt

    assert [launch("a", 0, 0), launch("a", 0, 1), launch("a", 1, 0), launch("a", 1, 1)] == [0, 0, 1, 1]
    assert [launch("b", 0, 0), launch("b", 0, 1), launch("b", 1, 1), launch("b", 1, 0)] == [2, 2, 3, 3]
    assert launch("b", 1, 0) == 3  # an elastic launch starts ranks anew and counts no restart
    monkeypatch.setenv("GROUP_WORLD_SIZE", "2")
    caplog.clear()
    assert launch("c", 0, 0, ranks_here=1) == 0
    assert any("set RANKLAKE_ATTEMPT" in line for line in told(caplog))


def test_a_run_begun_again_in_one_process_is_the_next_attempt(place, caplog):
    """A notebook's cell run twice, the earlier run never closed: it goes on, and which attempt this is is told."""
    for _ in range(2):
        run = place.start()
        for number in range(2):
            with run.step(number):
                pass
    for run in place.runs:
        run.close()
    found = [(row["attempt"], row["step"]) for row in rows(place.spool, "steps")]
    assert found == [(0, 0), (0, 1), (1, 0), (1, 1)]
    (line,) = told(caplog)
    assert "recorded by this process already: this is attempt 1" in line
    check_books(place.spool)


def test_two_ranks_of_one_run_in_one_process_are_one_attempt(place):
    """Only the same rank of the same run begins again."""
    for rank in range(2):
        assert place.start(rank=rank, world_size=2).attempt == 0
    assert place.start(run="other").attempt == 0


def test_a_process_beside_a_living_one_is_no_later_attempt(place, holder, caplog):
    """Neither names a rank or an attempt: the second is kept apart as soon as it trains, told, and takes no time."""
    with place.start() as run:
        assert (run.name, run.attempt) == ("run", 0)
        with run.step(0):
            pass
    assert run.name.startswith("run-claim-")
    assert run.attempt == 0
    (line,) = told(caplog)
    assert f"process {holder.pid}" in line
    holder.communicate(timeout=30)
    assert [(row["run"], row["attempt"]) for row in rows(place.spool, "steps")] == [("run", 0), (run.name, 0)]


def test_a_process_that_outlives_the_one_beside_it_is_kept_apart_too(place, holder, caplog):
    """The other has ended when this one claims the rank: the rank's steps are there already."""
    run = place.start()
    holder.communicate(timeout=30)
    with run.step(0):
        pass
    run.close()
    assert run.name.startswith("run-claim-")
    assert len(told(caplog)) == 1
    with place.start() as later:
        assert (later.name, later.attempt) == ("run", 1)


def test_ranks_that_a_shell_starts_again_are_told_where_they_repeat(place, monkeypatch, caplog):
    """Its process is their parent each time. The first ones are told nothing, whatever their parents are."""
    monkeypatch.setenv("RANKLAKE_RUN", "run")
    monkeypatch.setenv("WORLD_SIZE", "2")

    def life():
        for rank in "01":
            monkeypatch.setenv("RANK", rank)
            with place.start() as run, run.step(0):
                pass
        return run.attempt

    assert life() == 0
    assert told(caplog) == []
    assert life() == 0
    assert [("set RANKLAKE_ATTEMPT" in line) for line in told(caplog)] == [True, True]
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "2")
    caplog.clear()
    assert life() == 1
    assert ["this is attempt 1" in line for line in told(caplog)] == [True]
    assert life() == 2


def test_ranks_of_one_launch_with_parents_of_their_own_are_one_launch(place, monkeypatch, caplog):
    """A shell that pipes each rank's output starts each from another process: that makes no rank a later one."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    for rank, parent in (("0", 4_000_001), ("1", 4_000_002)):
        monkeypatch.setenv("RANK", rank)
        monkeypatch.setattr(os, "getppid", lambda pid=parent: pid)
        with place.start() as run, run.step(0):
            assert run.attempt == 0
    assert told(caplog) == []
