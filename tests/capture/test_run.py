"""Runs: what a training loop says is what the spool holds."""

import copy
import gc
import json
import math
import pickle
import threading
import time
import weakref

import pytest
from recorded import attributes, check_books, gaps, left_in, rows, segments, totals

from ranklake import capture
from ranklake.capture.common.gaps import AFTER_CLOSE
from ranklake.capture.recording.threads import RecorderThreads


@pytest.fixture(autouse=True, params=["mmap", "records"])
def _writes(request, monkeypatch):
    """Run every test with each way to write."""
    monkeypatch.setenv("RANKLAKE_CAPTURE_SPOOL_WRITES", request.param)


def test_a_step_is_one_row(place):
    """A step's row holds its number, its time, its phases, what it did and how training went."""
    with place.start() as run:
        for number in range(3):
            with run.step(number, tokens=64, samples=4):
                with run.phase("data"):
                    time.sleep(0.002)
                with run.phase("forward"):
                    time.sleep(0.001)
                run.log(loss=2.0 - number, lr=0.1, grad_norm=1.5)
    found = rows(place.spool, "steps")
    assert [row["step"] for row in found] == [0, 1, 2]
    assert [row["loss"] for row in found] == [2.0, 1.0, 0.0]
    for row in found:
        assert (row["tokens"], row["samples"], row["grad_norm"]) == (64, 4, 1.5)
        assert row["lr"] == pytest.approx(0.1)
        assert 0.002 <= row["data_time_s"] < row["step_time_s"]
        assert row["data_time_s"] + row["forward_time_s"] <= row["step_time_s"]
        assert row["backward_time_s"] is None
        assert row["non_finite"] is None
    assert rows(place.spool, "scalars") == []
    check_books(place.spool)


def test_phases_of_a_step_never_sum_to_more_than_it(place):
    """Time in a phase within a phase is the inner one's alone, and a phase that occurs twice adds up."""
    with place.start() as run, run.step(0):
        with run.phase("backward"):
            with run.phase("collective"):
                time.sleep(0.01)
            with run.phase("collective"), run.phase("collective"):
                time.sleep(0.01)
        with run.phase("my own"):
            time.sleep(0.001)
    (row,) = rows(place.spool, "steps")
    assert row["collective_time_s"] >= 0.02
    assert row["backward_time_s"] + row["collective_time_s"] <= row["step_time_s"]


def test_spans_hang_together(place):
    """Each phase is a span whose parent is what it is in, up to the step's own span; unknown names are other."""
    with place.start() as run:
        with run.step(7), run.phase("backward"), run.phase("collective", size_bytes=100, microbatch=2):
            pass
        with run.phase("between"):
            pass
    spans = {row["name"]: row for row in rows(place.spool, "spans")}
    assert {name: row["kind"] for name, row in spans.items()} == {
        "step": "step",
        "backward": "phase",
        "collective": "collective",
        "between": "other",
    }
    assert spans["collective"]["parent_id"] == spans["backward"]["span_id"]
    assert spans["backward"]["parent_id"] == spans["step"]["span_id"]
    assert spans["step"]["parent_id"] is None
    assert (spans["collective"]["bytes"], spans["collective"]["microbatch"]) == (100, 2)
    assert (spans["backward"]["bytes"], spans["backward"]["microbatch"]) == (None, None)
    assert (spans["backward"]["step"], spans["between"]["step"], spans["between"]["parent_id"]) == (7, None, None)
    assert len({row["span_id"] for row in spans.values()}) == len(spans)


def test_a_phase_in_another_thread_belongs_to_the_step_but_adds_to_no_column(place):
    """What a hook's thread does meanwhile is a span of the step; its time is not the step's own."""
    with place.start() as run, run.step(3), run.phase("backward"):

        def hook():
            with run.phase("collective"), run.phase("data"):
                time.sleep(0.005)

        thread = threading.Thread(target=hook)
        thread.start()
        thread.join()
    (step,) = rows(place.spool, "steps")
    spans = {row["name"]: row for row in rows(place.spool, "spans")}
    assert (step["collective_time_s"], step["data_time_s"]) == (None, None)
    assert step["backward_time_s"] >= 0.005
    assert (spans["collective"]["step"], spans["collective"]["parent_id"]) == (3, spans["step"]["span_id"])


def test_values_go_where_they_belong(place):
    """Within a step the known names go to its row, all else becomes metrics of it; between steps, of the last."""
    with place.start() as run:
        run.log(**{"setup/ready": 1})
        with run.step(5):
            run.log({"train/loss": 1.0, "eval/accuracy": 0.5}, extra=3)
        run.log(loss=7.0)
        run.log({"eval/loss": 4.0}, step=99)
    (step,) = rows(place.spool, "steps")
    assert step["loss"] == 1.0
    found = {row["metric"]: (row["step"], row["value"]) for row in rows(place.spool, "scalars")}
    assert found == {
        "setup/ready": (None, 1.0),
        "eval/accuracy": (5, 0.5),
        "extra": (5, 3.0),
        "train/loss": (5, 7.0),
        "eval/loss": (99, 4.0),
    }


def test_a_value_logged_twice_in_a_step_is_kept_twice(place):
    """The step's row has the last value; the earlier ones are metrics, so that nothing is lost silently."""
    with place.start() as run, run.step(1, tokens=5):
        for loss in (3.0, 2.0, 1.0):
            run.log(loss=loss, tokens=10)
    (step,) = rows(place.spool, "steps")
    assert (step["loss"], step["tokens"]) == (1.0, 10)
    kept = [(row["metric"], row["value"]) for row in rows(place.spool, "scalars")]
    assert sorted(kept) == [
        ("train/loss", 2.0),
        ("train/loss", 3.0),
        ("train/tokens", 5.0),
        ("train/tokens", 10.0),
        ("train/tokens", 10.0),
    ]


def test_two_names_of_one_metric_are_two_values(place):
    """`loss` and `train/loss` in one mapping are both kept."""
    with place.start() as run:
        run.log({"loss": 1.0, "train/loss": 2.0})
        run.log({"loss": 3.0, "train/loss": 4.0})
    assert sorted(row["value"] for row in rows(place.spool, "scalars")) == [1.0, 2.0, 3.0, 4.0]


def test_numbers_that_are_not_finite_are_null_and_flagged(place):
    """NaN and infinities never reach a table: the value is NULL and says what it was."""
    with place.start() as run:
        with run.step(0):
            run.log(loss=math.nan, grad_norm=math.inf, lr=1e300)
            run.log({"a": math.nan, "b": -math.inf, "c": 1.0})
        with run.step(1):
            run.log(loss=1.0)
    broken, fine = rows(place.spool, "steps")
    assert (broken["loss"], broken["grad_norm"], broken["lr"]) == (None, None, None)
    assert broken["non_finite"] == "loss:nan,grad_norm:+inf,lr:+inf"
    assert (fine["loss"], fine["non_finite"], fine["lr"]) == (1.0, None, None)
    flags = {row["metric"]: (row["value"], row["value_flag"]) for row in rows(place.spool, "scalars")}
    assert flags == {"a": (None, "nan"), "b": (None, "-inf"), "c": (1.0, None)}


def test_handles_and_mappings_record_alike(place):
    """Values come back the same whether by handle, one by one, in a mapping, or in one too wide for a slot."""
    wide = {f"wide/{number}": float(number) for number in range(40)}
    huge = {f"huge/{number}": float(number) for number in range(200)}
    with place.start() as run:
        handle = run.scalar("by/handle", kind="counter")
        for step in range(3):
            handle.add(step + 0.5, step)
            run.log({"single": step + 0.25}, step=step)
            run.log({"pair/a": step, "pair/b": -step}, step=step)
            run.log(wide, step=step)
            run.log(huge, step=step)
        handle.add(9.0)
    found = rows(place.spool, "scalars")
    assert len(found) == 3 * (1 + 1 + 2 + 40 + 200) + 1
    assert [(row["step"], row["value"], row["kind"]) for row in found if row["metric"] == "by/handle"] == [
        (0, 0.5, "counter"),
        (1, 1.5, "counter"),
        (2, 2.5, "counter"),
        (None, 9.0, "counter"),
    ]
    for name, value in (wide | huge).items():
        assert [row["value"] for row in found if row["metric"] == name] == [value] * 3
    assert len({(row["segment"], row["slot"]) for row in found}) == len(found)
    check_books(place.spool)


def test_events_are_told_in_full(place):
    """An event has its message, severity, step, duration and attributes; the run's start and end are events."""
    with place.start() as run:
        with run.step(4):
            run.event("checkpoint", message="saved", path="/tmp/x", size_bytes=10, duration_s=1.5)
        run.event("custom", severity="error", step=2, odd={"nan": math.nan, "set": {1}, "self": object})
    found = {row["event"]: row for row in rows(place.spool, "events")}
    assert list(found) == ["run_start", "rank_start", "checkpoint", "custom", "run_end", "rank_end"]
    saved = found["checkpoint"]
    assert (saved["message"], saved["severity"], saved["step"], saved["duration_ns"]) == ("saved", "info", 4, 1.5e9)
    assert attributes(saved) == {"path": "/tmp/x", "size_bytes": 10}
    assert (found["custom"]["severity"], found["custom"]["step"]) == ("error", 2)
    assert attributes(found["custom"])["odd"]["nan"] == "nan"


def test_the_run_row_says_what_ran(place):
    """Rank 0 writes one row of provenance; credentials in the configuration are redacted; what is unknown is NULL."""
    config = {"lr": 0.1, "db": {"password": "hunter2"}, "url": "https://u:p@host/x", "max_tokens": 5}
    place.start(config=config, labels={"team": "a"}, injected="slow rank 1", param_count=10, compute_dtype="bfloat16")
    place.runs[0].close()
    (row,) = rows(place.spool, "runs")
    assert row["config"] == (
        '{"db":{"password":"[redacted]"},"lr":0.1,"max_tokens":5,"url":"https://[redacted]@host/x"}'
    )
    assert (row["job"], row["labels"], row["injected"], row["param_count"]) == (
        "job",
        '{"team":"a"}',
        "slow rank 1",
        10,
    )
    assert row["team"] == "a"  # of the label, since neither a variable nor a scheduler says it
    assert (row["launcher"], row["world_size"], row["device_type"]) == ("none", 1, "cpu")
    assert row["compute_dtype"] == "bfloat16"
    assert row["git_commit"] or json.loads(row["unavailable"])["git_commit"]


def test_other_ranks_write_no_run_row(place):
    """A run has one row, whatever its number of ranks."""
    for rank in range(3):
        place.start(rank=rank, world_size=3).close()
    assert [row["rank"] for row in rows(place.spool, "runs")] == [0]
    assert sorted(row["rank"] for row in rows(place.spool, "events") if row["event"] == "rank_end") == [0, 1, 2]


def test_a_step_that_raises_did_not_happen(place):
    """The exception goes on, the step has no row and its values become metrics; who handles it has no failed run."""

    def train(run):
        with run.step(3, tokens=9):
            run.log(loss=1.0)
            raise RuntimeError("boom")

    with place.start() as run, pytest.raises(RuntimeError, match="boom"):
        train(run)
    assert rows(place.spool, "steps") == []
    assert {(row["metric"], row["value"], row["step"]) for row in rows(place.spool, "scalars")} == {
        ("train/loss", 1.0, 3),
        ("train/tokens", 9.0, 3),
    }
    told = {row["event"]: row for row in rows(place.spool, "events")}
    assert "failure" not in told
    failed = told["step_failed"]
    assert (failed["step"], failed["message"], failed["severity"]) == (3, "RuntimeError: boom", "warning")


@pytest.mark.parametrize("wrapped", [False, True])
def test_a_step_that_ends_the_run_is_one_failure(place, wrapped):
    """The run's failure names the step, though other steps have begun since and another exception came of it."""

    def fail(run):
        with run.step(3):
            raise RuntimeError("boom")

    def train(run):
        try:
            fail(run)
        except RuntimeError as error:
            with run.step(4):
                pass
            if wrapped:
                raise ValueError("no batch") from error
            raise

    with pytest.raises((RuntimeError, ValueError)), place.start() as run:
        train(run)
    (failure,) = [row for row in rows(place.spool, "events") if row["event"] == "failure"]
    said = "ValueError: no batch" if wrapped else "RuntimeError: boom"
    assert (failure["step"], failure["message"], failure["severity"]) == (3, said, "error")


def test_an_exception_of_a_failed_step_keeps_nothing_alive(place):
    """What was in the step's frame is freed once the exception is handled."""

    class Tensor:
        pass

    freed = []

    def train(run):
        tensor = Tensor()
        weakref.finalize(tensor, freed.append, tensor.__class__)
        with run.step():
            raise MemoryError

    with place.start() as run:
        with pytest.raises(MemoryError):
            train(run)
        gc.collect()
        assert freed == [Tensor]


def test_steps_count_themselves(place):
    """Steps without a number go on from the last."""
    with place.start() as run:
        for number in (None, None, 10, None):
            with run.step(number):
                pass
    assert [row["step"] for row in rows(place.spool, "steps")] == [0, 1, 10, 11]


def test_closing_is_final_and_harmless_twice(place):
    """The last segments say so, and carry the totals; the local spool is empty; a second close does nothing."""
    run = place.start()
    with run.step(0):
        run.log(a=1.0)
    run.close()
    run.close()
    assert {segment.table: segment.footer.final for segment in segments(place.spool)} == dict.fromkeys(
        ("events", "runs", "scalars", "spans", "steps"), True
    )
    (said,) = totals(place.spool).values()
    assert said == {"events": [4, 0], "runs": [1, 0], "scalars": [1, 0], "spans": [1, 0], "steps": [1, 0]}
    assert left_in(place.local) == []


def test_a_round_between_close_and_end_leaves_the_last_files_alone(place, monkeypatch):
    """The sealer may have its turn when the recorder is closed and the end has not begun: the last segments are final.

    The flush here stands for the second that its thread wakes by.
    """
    stop = RecorderThreads.stop

    def flushed_first(threads, timeout_s):
        threads.flush(timeout_s)
        stop(threads, timeout_s)

    monkeypatch.setattr(RecorderThreads, "stop", flushed_first)
    with place.start() as run, run.step(0):
        run.log(a=1.0)
    assert {segment.table: segment.footer.final for segment in segments(place.spool)} == dict.fromkeys(
        ("events", "runs", "scalars", "spans", "steps"), True
    )
    assert len(totals(place.spool)) == 1
    check_books(place.spool)


def test_flush_brings_all_so_far_to_the_spool(place):
    """After a flush the rows are in the spool, while the run goes on."""
    run = place.start()
    for number in range(3):
        with run.step(number):
            pass
        assert run.flush()
        assert [row["step"] for row in rows(place.spool, "steps")] == list(range(number + 1))


def test_rows_are_sealed_in_time_without_being_asked(place):
    """Rows reach the spool when the interval has passed."""
    run = place.start(seal_every_s=0.1)
    with run.step(0):
        pass
    deadline = time.monotonic() + 60
    while not rows(place.spool, "steps") and time.monotonic() < deadline:
        time.sleep(0.02)
    assert len(rows(place.spool, "steps")) == 1


@pytest.mark.slow
def test_full_files_are_sealed_while_training_goes_on(place):
    """More rows than a slot file holds make several segments, and none is lost."""
    with place.start() as run:
        handle = run.scalar("x")
        for number in range(300_000):
            handle.add(float(number), number)
    found = segments(place.spool, "scalars")
    assert len(found) >= 3
    assert sum(segment.rows.num_rows for segment in found) == 300_000
    steps = {step for segment in found for step in segment.rows["step"].to_pylist()}
    assert steps == set(range(300_000))
    check_books(place.spool)


def test_many_threads_record_at_once(place):
    """Metrics, spans and events of several threads all arrive."""
    with place.start(seal_every_s=0.1) as run:

        def work(thread):
            handle = run.scalar("shared")
            for number in range(500):
                handle.add(1.0, number)
                run.log({f"of/{thread}": 1.0, "common": 2.0})
                with run.phase("work"):
                    run.event("tick")

        threads = [threading.Thread(target=work, args=(thread,)) for thread in range(6)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert run.gaps() == {}
    assert len(rows(place.spool, "scalars")) == 6 * 500 * 3
    assert len(rows(place.spool, "spans")) == 6 * 500
    assert sum(row["event"] == "tick" for row in rows(place.spool, "events")) == 6 * 500
    check_books(place.spool)


def test_two_runs_in_one_process_keep_apart(place):
    """Each run's rows are its own."""
    first, second = place.start(run="first"), place.start(run="second")
    with first.step(1), second.step(2):
        first.log(a=1.0)
    first.close()
    second.close()
    assert {(row["run"], row["step"]) for row in rows(place.spool, "steps")} == {("first", 1), ("second", 2)}
    assert [row["run"] for row in rows(place.spool, "scalars")] == ["first"]


def test_a_run_that_is_not_enabled_does_nothing(place):
    """With enabled=False every call is taken and nothing is written."""
    run = place.start(enabled=False)
    with run.step(1) as step, run.phase("x"), run.count_flops():
        run.log(a=1)
        run.event("e")
        run.scalar("s").add(1.0)
    assert step.flops is None
    assert (run.enabled, run.flush(), run.calibrate_peak(), run.gaps()) == (False, False, None, {})
    run.close()
    assert not place.local.exists()


def test_a_run_may_be_copied_and_pickled_with_its_trainer(place):
    """A deep copy is the run itself; a pickle is a run that records nothing, and so are its handles."""
    run = place.start()
    handle = run.scalar("x")
    assert copy.deepcopy({"run": run})["run"] is run
    twin, twin_handle = pickle.loads(pickle.dumps((run, handle)))
    assert isinstance(twin, capture.Run)
    assert (twin.enabled, twin.name) == (False, "run")
    twin_handle.add(1.0)
    with twin.step(0):
        pass
    run.close()
    assert rows(place.spool, "steps") == []
    assert gaps(place.spool) == {}


def test_without_a_spool_segments_wait_for_the_agent(place, caplog):
    """A run without a spool seals, keeps everything, and says where."""
    run = place.start(spool=None)
    with run.step(0):
        pass
    run.close()
    assert len(list(place.local.rglob("steps-*.sealed"))) == 1
    assert "ranklake agent" in caplog.text


@pytest.mark.slow
def test_what_another_thread_records_during_the_close_is_stored_or_counted(place):
    """Each row of a thread that goes on through the close is in the spool or a gap, none in a file left behind."""
    run = place.start()
    handle, added, over = run.scalar("x"), [], threading.Event()

    def write():
        while not over.is_set():
            handle.add(1.0, len(added))
            added.append(1)

    writer = threading.Thread(target=write)
    writer.start()
    run.close()
    over.set()
    writer.join()
    late = run.gaps()["scalars"][AFTER_CLOSE]
    assert late > 0
    assert len(rows(place.spool, "scalars")) + late == len(added)
