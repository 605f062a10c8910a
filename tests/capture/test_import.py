"""Importing capture: light, and with no part of the pipeline."""

import os
import subprocess
import sys

HEAVY = ("prefect", "dask", "deltalake", "datafusion", "great_expectations", "pandas", "torch", "numpy", "pyarrow")
HEAVY_TO_RECORD = (*HEAVY[:7], "pynvml", "psutil")


def loaded(script):
    """Run a script in a fresh interpreter and return the modules that it loaded and what it printed.

    It keeps bytecode, as an installed package has it: else compiling is most of what importing costs.
    """
    script += "\nimport sys; print(*sys.modules)"
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=60, env=environ)
    *printed, modules = done.stdout.splitlines()
    return set(modules.split()), printed


def test_importing_loads_no_heavy_package():
    """Not even numpy and pyarrow are loaded before something is recorded."""
    modules, _ = loaded("import ranklake.capture; ranklake.capture.start")
    assert modules.isdisjoint(HEAVY)


def test_importing_loads_few_modules():
    """What a training script imports before it starts a run is counted: whoever adds a module sees it here."""
    bare, _ = loaded("import ranklake.capture; dir(ranklake.capture), repr(ranklake.capture)")
    ready, _ = loaded("import ranklake.capture; ranklake.capture.start")
    assert {name for name in bare if name.startswith("ranklake")} == {"ranklake", "ranklake.capture"}
    assert len({name for name in ready if name.startswith("ranklake")}) <= 210


def test_an_errand_that_only_sends_loads_little():
    """What the agent starts every minute loads no store's client, no YAML and nothing that records."""
    modules, _ = loaded("import ranklake.capture.node.worker, ranklake.capture.node.agent")
    assert modules.isdisjoint((*HEAVY, "fsspec", "yaml", "asyncio", "importlib.metadata"))
    assert not {name for name in modules if name.startswith(("ranklake.capture.training", "ranklake.capture.metrics"))}


def test_recording_loads_nothing_of_the_pipeline(tmp_path):
    """A run from start to close needs numpy and pyarrow, and nothing of the pipeline, on a machine without a GPU."""
    modules, _ = loaded(
        f"from ranklake import capture\nwith capture.start(spool={str(tmp_path / 's')!r},"
        f" local_dir={str(tmp_path / 'l')!r}) as run:\n with run.step(0): run.log(loss=1.0)"
    )
    assert modules.isdisjoint(HEAVY_TO_RECORD)
    assert list((tmp_path / "s").rglob("steps/*.parquet"))


def test_masks_at_capture_are_read_without_pydantic(tmp_path):
    """A policy, and contracts of an operator's, are held against a schema that a training process reads itself."""
    (tmp_path / "m.yaml").write_text("at_capture: {masked: [personal]}")
    (tmp_path / "own").mkdir()
    modules, _ = loaded(
        "from ranklake import capture\n"
        f"with capture.start(spool={str(tmp_path / 's')!r}, local_dir={str(tmp_path / 'l')!r},"
        f" contracts_overlay={str(tmp_path / 'own')!r}, masking_policy={str(tmp_path / 'm.yaml')!r}) as run:\n"
        " assert run.recording.recorder.masks.masks.columns"
    )
    assert "pydantic" not in modules


def test_importing_is_quick():
    """It takes less than 0.3 s of CPU more than pyarrow and fsspec do; the best of three."""
    script = (
        "import time, pyarrow, fsspec; start = time.process_time(); import ranklake.capture;"
        " ranklake.capture.start; print(time.process_time() - start)"
    )
    assert min(float(loaded(script)[1][0]) for _ in range(3)) < 0.3
