"""Startup: what a process does until its first step has ended, as spans `init/<part>`."""

import os
import subprocess
import sys
import threading
import time
from functools import partial

import pytest
from recorded import rows as rows_of

from ranklake.capture.training import startup
from ranklake.capture.training.startup import SCRIPT, Startup, part_of, process_start_ns


def called_through(*places, call=None):
    """Call something, by default `part_of`, from functions in files of these paths, each called by the one before."""
    inner = call or (lambda: part_of(sys._getframe(1)))
    for file, function in reversed(places):
        names = {"inner": inner}
        exec(compile("def function(): return inner()", file, "exec"), names)
        inner = names["function"]
        inner.__code__ = inner.__code__.replace(co_name=function, co_qualname=function)
    return inner()


TORCH = "/opt/venv/lib/python3.12/site-packages/torch"


@pytest.mark.parametrize(
    ("file", "function", "part"),
    [
        ("<frozen importlib._bootstrap>", "_find_and_load", "imports"),
        (f"{TORCH}/distributed/distributed_c10d.py", "init_process_group", "distributed"),
        (f"{TORCH}/distributed/distributed_c10d.py", "broadcast_object_list", "distributed"),
        (f"{TORCH}/distributed/rendezvous.py", "_env_rendezvous_handler", "distributed"),
        (f"{TORCH}/cuda/__init__.py", "_lazy_init", "device"),
        (f"{TORCH}/nn/modules/linear.py", "__init__", "model"),
        (f"{TORCH}/nn/modules/linear.py", "forward", "train.py:main"),
        (f"{TORCH}/nn/modules/module.py", "_apply", "model"),
        (f"{TORCH}/nn/parallel/distributed.py", "__init__", "model"),
        (f"{TORCH}/nn/parallel/distributed.py", "forward", "train.py:main"),
        (f"{TORCH}/distributed/fsdp/_fully_shard/_fully_shard.py", "fully_shard", "model"),
        (f"{TORCH}/serialization.py", "load", "checkpoint"),
        (f"{TORCH}/distributed/checkpoint/state_dict_loader.py", "load", "checkpoint"),
        (f"{TORCH}/utils/data/dataloader.py", "__iter__", "data"),
        (f"{TORCH}/_dynamo/convert_frame.py", "_compile", "compile"),
        (f"{TORCH}/_dynamo/eval_frame.py", "compile_wrapper", "train.py:main"),
        (f"{TORCH}/_inductor/codecache.py", "load", "compile"),
        (f"{TORCH}/_inductor/output_code.py", "run", "train.py:main"),
        ("/usr/lib/python3/dist-packages/datasets/load.py", "load_dataset", "data"),
        ("/x/site-packages/huggingface_hub/file_download.py", "http_get", "download"),
        ("/x/site-packages/transformers/modeling_utils.py", "from_pretrained", "model"),
        ("/home/me/project/tokens.py", "tokenize", "tokens.py:tokenize"),
        (os.__file__, "walk", "train.py:main"),
    ],
)
def test_a_frame_is_of_a_part(file, function, part):
    """The innermost frame that is known says the part; else the innermost of the user's own code."""
    assert called_through(("/home/me/train.py", "main"), (file, function)) == part


def test_the_innermost_known_frame_decides_but_a_collective_only_where_no_other_does():
    """An import while a model is built is an import; what a checkpoint's ranks exchange is part of loading it."""
    model = (f"{TORCH}/nn/modules/linear.py", "__init__")
    gather = (f"{TORCH}/distributed/distributed_c10d.py", "all_gather_object")
    assert called_through(model, ("<frozen importlib._bootstrap>", "_load")) == "imports"
    assert called_through((f"{TORCH}/distributed/checkpoint/utils.py", "all_reduce"), gather) == "checkpoint"
    assert called_through(("/home/me/train.py", "<module>"), gather) == "distributed"
    assert part_of(None) == SCRIPT


@pytest.fixture
def fresh(monkeypatch):
    """Make this process one that has begun no run yet."""
    monkeypatch.setattr(startup, "_first_run_pid", 0)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", "/home/me/train.py", raising=False)


def test_the_process_start_is_the_kernels(fresh):
    """A process started between two looks at the clock; a second run did not begin with the process."""
    ask = "from ranklake.capture.training.startup import process_start_ns; print(process_start_ns())"
    before_ns = time.monotonic_ns()
    with subprocess.Popen([sys.executable, "-c", ask], stdout=subprocess.PIPE, text=True) as child:
        after_ns = time.monotonic_ns()
        told_ns = int(child.communicate()[0])
    tick_ns = 10**9 // os.sysconf("SC_CLK_TCK")
    assert before_ns - 2 * tick_ns <= told_ns <= after_ns + tick_ns
    assert process_start_ns() is not None
    assert process_start_ns() is None


@pytest.mark.parametrize(
    "prepare",
    [
        lambda patch: patch.setattr(sys, "ps1", ">>> ", raising=False),
        lambda patch: patch.setattr("builtins.__IPYTHON__", True, raising=False),
        lambda patch: patch.setattr(
            sys.modules["__main__"], "__file__", "/v/ray/_private/workers/default_worker.py", raising=False
        ),
        lambda patch: patch.setattr(startup, "start_ticks", lambda pid: 0),
        lambda patch: patch.setattr(startup, "start_ticks", lambda pid: 1 << 60),
        lambda patch: patch.setattr(startup, "_LONGEST_NS", 0),
    ],
    ids=["prompt", "notebook", "ray", "no /proc", "in the future", "too long ago"],
)
def test_a_process_that_waited_for_work_has_no_start(fresh, monkeypatch, prepare):
    """What it did before is unknown, rather than days."""
    prepare(monkeypatch)
    assert process_start_ns() is None


def test_a_thread_of_a_pool_has_no_start(fresh):
    """The process is older than the work that it was given."""
    answers = []
    thread = threading.Thread(target=lambda: answers.append(process_start_ns()))
    thread.start()
    thread.join()
    assert answers == [None]


def until(done, seconds=20.0):
    deadline = time.monotonic() + seconds
    while not done() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert done()


def is_sampling():
    return any(thread.name == "ranklake-startup" for thread in threading.enumerate())


def test_a_run_records_what_its_thread_did_before_its_first_step(place, fresh):
    """The spans lie end to end from the process's start to the first step's end; the sampling is over by then."""
    run = place.start(startup="on")
    begun = run.rows.progress.begun()
    for file in ("/site-packages/safetensors/torch.py", "/home/me/prepare.py"):
        called_through((file, "load_file"), call=partial(time.sleep, 0.5))
    assert run.rows.progress.begun() == begun  # a start that hangs is no progress
    with run.phase("init/tokenizer"):
        time.sleep(0.1)
    with run.step(7):
        called_through(("/site-packages/torch/_dynamo/convert_frame.py", "_compile"), call=partial(time.sleep, 0.5))
        called_through(("/home/me/train.py", "loss"), call=partial(time.sleep, 0.3))
    until(lambda: not is_sampling())
    run.close()
    spans = [row for row in rows_of(place.spool, "spans") if row["name"].startswith("init/")]
    spans.sort(key=lambda row: row["ts"])
    assert {row["kind"] for row in spans} == {"other"}
    assert {row["step"] for row in spans} == {None}
    sampled = [row for row in spans if row["stream"] == "sampled"]
    measured = {row["name"][5:]: row for row in spans if row["stream"] is None}
    assert measured.keys() == {"before_capture", "capture", "tokenizer"}
    assert measured["before_capture"]["duration_ns"] > 10**9
    parts = {}
    for row in sampled:
        parts[row["name"][5:]] = parts.get(row["name"][5:], 0) + row["duration_ns"] / 1e9
    for part in ("checkpoint", "prepare.py:load_file", "compile"):
        assert 0.2 < parts[part] < 5
    assert "train.py:loss" not in parts  # the step's own work
    ends = [row["ts"].timestamp() * 1e9 + row["duration_ns"] for row in sampled]
    begins = [row["ts"].timestamp() * 1e9 for row in sampled]
    assert all(end <= begin + 5_000 for end, begin in zip(ends, begins[1:], strict=False))
    (step,) = rows_of(place.spool, "steps")
    assert ends[-1] <= (step["ts"].timestamp() + step["step_time_s"]) * 1e9 + 10**9


def test_a_run_that_is_closed_or_told_not_to_samples_no_longer(place):
    """Whether or not a step came; and with startup off nothing of it is recorded."""
    run = place.start(startup="on")
    assert is_sampling()
    run.close()
    assert not is_sampling()
    run = place.start(run="other", startup="off")
    assert not is_sampling()
    run.close()
    assert not [row for row in rows_of(place.spool, "spans") if (row["run"], row["name"][:5]) == ("other", "init/")]


def test_the_sampling_costs_less_the_longer_a_start_lasts():
    """A sample stands for a two-hundredth of the start, for less than a quarter of a second; more where it flaps."""
    watcher = Startup.__new__(Startup)
    watcher._first_ns = 0
    assert watcher._pause_s(10**9, 0) == 0.02
    assert watcher._pause_s(20 * 10**9, 0) == 0.1
    assert watcher._pause_s(3600 * 10**9, 0) == 0.25
    assert watcher._pause_s(10**9, 500) == 0.64


def test_names_of_functions_are_few(place):
    """The first sixteen have names of their own; what comes after is the script."""
    run = place.start(startup="off")
    watcher = Startup(run.slots.spans, run.rows.progress, time.monotonic_ns())
    seen = [called_through((f"/home/me/{n}.py", "work"), call=watcher._part_now) for n in range(20)]
    assert seen[:16] == [f"{n}.py:work" for n in range(16)]
    assert seen[16:] == [SCRIPT] * 4
    assert called_through(("/home/me/3.py", "work"), call=watcher._part_now) == "3.py:work"
