"""The hot path in C: never required, never one of another version, and told when it was asked for and is not there.

That it records what Python records is shown by running capture's own tests with it (``make test``).
"""

import itertools
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from recorded import rows

from ranklake import capture
from ranklake.capture.build import BuildError, build
from ranklake.capture.common import native
from ranklake.capture.common.layouts import ABSENT, MARK, PHASES, SPANS, STEPS
from ranklake.capture.steps.phase import Phase

CHILD = Path(__file__).with_name("differential_child.py")

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


def test_what_was_asked_for_is_there():
    """RANKLAKE_NATIVE=0 records by Python, =1 by C; a suite that was meant to test C does so."""
    wanted = os.environ.get(native.VARIABLE)
    assert wanted not in {"0", "1"} or (native.MODULE is not None) == (wanted == "1")


@compiler
def test_a_build_carries_the_digest_of_its_source(tmp_path):
    """A build is loadable and says which source it is of; no temporary file stays."""
    path = build(tmp_path)
    code = (
        "import importlib.util, sys; spec = importlib.util.spec_from_file_location('_native', sys.argv[1]);"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module); print(module.SOURCE)"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == native.digest()
    assert [path] == list(tmp_path.iterdir())


def test_a_compiler_that_is_missing_or_fails_is_one_line(tmp_path, monkeypatch):
    """No compiler, or one that fails: an error of one line with the mend, and nothing left behind."""
    for compiler in ("/nowhere/cc", "false"):
        monkeypatch.setenv("CC", compiler)
        with pytest.raises(BuildError) as caught:
            build(tmp_path)
        assert "\n" not in str(caught.value)
        assert "install a C compiler" in str(caught.value)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("value", ["0", "1", ""])
def test_a_build_of_another_version_is_left_out(tmp_path, value):
    """A stale build beside a newer source is not loaded, and a warning says how to build anew; 0 does not even look."""
    (stale := tmp_path / "stale.py").write_text("SOURCE = 'of another version'")
    code = (
        "import sys, logging; logging.basicConfig(format='%(message)s'); import ranklake.capture;"
        "import importlib.util;"
        "spec = importlib.util.spec_from_file_location('stale', sys.argv[1]);"
        "sys.modules['ranklake.capture.common._native'] = stale = importlib.util.module_from_spec(spec);"
        "spec.loader.exec_module(stale);"
        "from ranklake.capture.common.native import load; print(load())"
    )
    command = [sys.executable, "-c", code, str(stale)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | {native.VARIABLE: value}
    )
    assert done.stdout.strip() == "None"
    assert ("of another version" in done.stderr) == (value != "0")


@pytest.mark.skipif(native.MODULE is None, reason="the hot path in C is not built, or left out")
@pytest.mark.parametrize("seed", range(4))
def test_c_and_python_record_the_same(tmp_path, seed):
    """Whatever is called with whatever, nested or failing: the same rows and the same gaps, only sooner."""
    found = []
    for value in ("0", "1"):
        command = [sys.executable, str(CHILD), str(seed), str(tmp_path / value)]
        env = os.environ | {native.VARIABLE: value, "PYTHONPATH": os.pathsep.join(sys.path)}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=env, timeout=120)
        assert done.returncode == 0, done.stderr
        found.append(json.loads(done.stdout))
    python, c = found
    assert c["gaps"] == python["gaps"]
    assert len(c["rows"]["scalars"]) > 500
    for table, meant in python["rows"].items():
        assert c["rows"][table] == meant, table


@pytest.mark.skipif(native.MODULE is None, reason="the hot path in C was not built")
def test_frames_take_frames_and_none_for_their_parent_and_step():
    """What C follows as a pointer to a frame is one; None is none."""
    frame, outer = native.MODULE.Frame(), native.MODULE.Frame()
    for name in ("parent", "step"):
        setattr(frame, name, outer)
        assert getattr(frame, name) is outer
        with pytest.raises(TypeError):
            setattr(frame, name, "a text")
        setattr(frame, name, None)
        assert getattr(frame, name) is None
    stack = native.MODULE.Stack()
    stack.top = frame
    assert stack.leave(outer) is None
    assert stack.top is frame


@pytest.mark.skipif(native.MODULE is None, reason="the hot path in C was not built")
def test_a_phase_of_python_adds_to_a_step_of_c(tmp_path):
    """Collectives are timed by Python whatever times steps: their time reaches the step's column."""
    with capture.start(run="r", local_dir=tmp_path / "local", spool=tmp_path / "spool") as run:
        number = run.slots.spans.number("all_reduce", "collective", stream=None)
        for step in range(2):
            with run.step(step):
                for _ in range(2):
                    with Phase(run.slots.spans, number, PHASES.index("collective"), 8, -1):
                        sum(range(1000))
    found = rows(tmp_path / "spool", "steps")
    spans = rows(tmp_path / "spool", "spans")
    for step in range(2):
        told = sum(row["duration_ns"] for row in spans if row["name"] == "all_reduce" and row["step"] == step)
        assert found[step]["collective_time_s"] == pytest.approx(told / 1e9, rel=1e-6)  # stored as float32


def lane_with(layout, slots):
    """Return what C needs of a lane: room for so many slots."""
    view = memoryview(bytearray(layout.slot_bytes * slots))
    return SimpleNamespace(pair=(view, itertools.count(0, layout.slot_bytes).__next__))


@pytest.mark.skipif(native.MODULE is None, reason="the hot path in C was not built")
def test_a_step_ends_in_both_rows_or_says_which_is_left_to_python():
    """Nothing is written where the span finds no room or a value is not plain; the row says where it is."""
    frame = native.MODULE.Frame()
    frame.number, frame.span_id, frame.spent = 7, 3, [5, *[ABSENT] * (len(PHASES) - 1)]
    frame.parent = native.MODULE.Frame()
    frame.parent.span_id = 2
    spans, steps = lane_with(SPANS, 2), lane_with(STEPS, 1)
    numbers = (11, 100, 50, 60, 64, ABSENT, (0.5, 0.0, 0.25), 5)

    for odd in ((11, 100, 50, 60, 1 << 64, *numbers[5:]), (*numbers[:6], (0.5, "a text", 0.25), 5)):
        assert native.MODULE.put_step(frame, spans, steps, *odd) is None
    assert native.MODULE.put_step(frame, lane_with(SPANS, 0), steps, *numbers) is None
    assert not any(steps.pair[0])

    assert native.MODULE.put_step(frame, spans, steps, *numbers) == (steps.pair[0], 0)
    span = (100, 50, 7, 3, 2, ABSENT, -1, 0, 11, MARK)
    assert SPANS.packer.unpack_from(spans.pair[0], 0) == span
    row = (100, 60, 7, *frame.spent, 64, ABSENT, 0.5, 0.0, 0.25, ABSENT, ABSENT, 5, MARK)
    assert STEPS.packer.unpack_from(steps.pair[0], 0) == row

    assert native.MODULE.put_step(frame, spans, steps, *numbers) is False
    assert SPANS.packer.unpack_from(spans.pair[0], SPANS.slot_bytes) == span
    with pytest.raises(TypeError):
        native.MODULE.put_step("a text", spans, steps, *numbers)


@pytest.mark.parametrize("value", ["0", "1"])
def test_where_a_rank_is_holds_for_its_next_step(tmp_path, value):
    """The name of steps' spans is looked up once, and again when the rank's place in the mesh is told."""
    if value == "1" and native.MODULE is None:
        pytest.skip("the hot path in C was not built")
    code = (
        "import sys; from ranklake import capture\n"
        "with capture.start(run='r', local_dir=sys.argv[1] + '/local', spool=sys.argv[1] + '/spool') as run:\n"
        "    for step in range(4):\n"
        "        if step == 2: run.coordinates(dp=5)\n"
        "        with run.step(step): pass\n"
    )
    env = os.environ | {native.VARIABLE: value}
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, check=True, env=env)
    found = {row["step"]: row["dp_rank"] for row in rows(tmp_path / "spool", "spans") if row["name"] == "step"}
    assert found == {0: None, 1: None, 2: 5, 3: 5}
