"""Scratch: folders that go with their process, however it ends, or with the next one."""

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from ranklake.lake.store.scratch import PREFIX, scratch, sweep
from ranklake.quality.keys import Hashes


def test_what_a_killed_process_left_goes_with_the_next(tmp_path):
    """The folder of a process that died is removed; that of one that lives stays."""
    code = (
        "import pathlib, time\n"
        "from ranklake.lake.store.scratch import scratch\n"
        f"with scratch('x', pathlib.Path({str(tmp_path)!r})) as folder:\n"
        "    (folder / 'x').write_text('x'); print(folder, flush=True); time.sleep(600)\n"
    )
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    left = Path(child.stdout.readline().strip())
    with scratch("x", tmp_path) as mine:
        assert left.exists()
        assert mine.exists()
    child.send_signal(signal.SIGKILL)
    child.wait()
    child.stdout.close()
    assert (left / "x").exists()
    assert sweep(tmp_path) == [left]
    assert [path for path in tmp_path.iterdir() if path.name.startswith(PREFIX)] == []


KILLED = {
    "suites": """
from ranklake.quality.suites.asking import SuiteProcess
one = SuiteProcess((), 60.0)
print(one.suites(), flush=True)
""",
    "export": """
import subprocess
from pathlib import Path
from ranklake.quality.export import project
genuine = subprocess.run
def begun(*words, **more):
    print("begun", flush=True)
    return genuine(["sleep", "600"], cwd=more["cwd"])
subprocess.run = begun
project._build(Path("."), [], Path("."))
""",
    "sql": """
import os
from pathlib import Path
import pyarrow as pa
from ranklake.lake.audit import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.sql import session
from ranklake.lake.store.lake import Lake
lake = Lake.create(os.environ["TMPDIR"] + "/of-a-lake")
trail.record(lake, "Petra", "plan", "it")
held = session(lake, ["audit"])
print("begun", flush=True)
""",
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", KILLED)
def test_folders_of_the_killed_go_with_the_next(tmp_path, kind):
    """SIGKILL while a suite judges, a project is built, or a query is open: whoever makes such a folder next sweeps."""
    words = [sys.executable, "-c", f"{KILLED[kind]}\nimport time; time.sleep(600)"]
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True, env=environment, start_new_session=True)
    assert child.stdout.readline()
    (left,) = (path for path in tmp_path.glob(f"{PREFIX}{kind}-*") if path.is_dir())
    child.kill()
    child.wait()
    child.stdout.close()
    with suppress(ProcessLookupError):  # what it ran beside
        os.killpg(child.pid, signal.SIGKILL)
    assert left.exists()
    with scratch("keys", tmp_path):
        assert not left.exists()
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(PREFIX)] == []


def test_keys_that_do_not_fit_into_memory_are_scratch(tmp_path, monkeypatch):
    """What a check writes beside its partition is in such a folder, and goes with it."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    with Hashes(["a"], rows=1_000, held_bytes=100) as hashes:
        hashes.add(pa.table({"a": np.arange(1_000).astype("datetime64[us]")}))
        (lock,) = tmp_path.glob(f"{PREFIX}keys-*.lock")
        assert list(lock.with_suffix("").iterdir())
        assert sweep() == [], "it is held"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_a_project_that_is_killed_while_it_is_built_goes_with_the_next(tmp_path):
    """Beside its place nothing stays once somebody exports there again, and what was there is as it was."""
    code = f"""
from pathlib import Path
from ranklake.lake.store.lake import Lake
from ranklake.quality.export import project
def begun(folder, *_):
    (folder / "half").write_text("built")
    print(folder, flush=True)
    import time; time.sleep(600)
project._build = begun
project.export_project(Lake.create({str(tmp_path / "lake")!r}), Path({str(tmp_path / "out" / "gx")!r}), [])
"""
    child = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    left = Path(child.stdout.readline().strip())
    child.kill()
    child.wait()
    child.stdout.close()
    assert (left / "half").exists()
    assert left.is_relative_to(tmp_path / "out")
    with scratch("export", tmp_path / "out"):
        assert not left.exists()
    assert list((tmp_path / "out").iterdir()) == []
