"""Wheels: with the hot path in C where it compiles, of Python alone where it does not."""

import os
import shutil
import subprocess
import sys
import sysconfig
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
MODULE = f"ranklake/capture/common/_native{sysconfig.get_config_var('EXT_SUFFIX')}"
BACKEND = "import sys; from hatchling.build import build_wheel; print(build_wheel(sys.argv[1]))"

compiler = pytest.mark.skipif(shutil.which("cc") is None, reason="no C compiler here")


def built(folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    """Build the checkout's wheel into a folder, as pip does."""
    env = {name: value for name, value in os.environ.items() if name not in {"RANKLAKE_NATIVE", "CC"}} | environment
    return subprocess.run(
        [sys.executable, "-c", BACKEND, folder], cwd=ROOT, capture_output=True, text=True, check=False, env=env
    )


@compiler
def test_an_installed_wheel_records_by_c(tmp_path):
    """The wheel is of this interpreter and platform, and what it installs loads the hot path without being asked."""
    done = built(tmp_path / "dist")
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert not wheel.name.endswith("none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    code = "from ranklake.capture.common import native; print(native.MODULE.__file__)"
    env = {name: value for name, value in os.environ.items() if name != "RANKLAKE_NATIVE"}
    command = [sys.executable, "-W", "error", "-c", code]
    loaded = subprocess.run(
        command, capture_output=True, text=True, check=True, env=env | {"PYTHONPATH": str(tmp_path / "installed")}
    )
    assert loaded.stdout.strip() == str(tmp_path / "installed" / MODULE)


@pytest.mark.parametrize("environment", [{"CC": "/nowhere/cc"}, {"CC": "false"}, {"RANKLAKE_NATIVE": "0"}])
def test_without_a_compiler_the_wheel_is_of_python_alone(tmp_path, environment):
    """No compiler, one that fails, or none wanted: a wheel for any machine, no error, and a warning that says why."""
    done = built(tmp_path / "dist", **environment)
    assert done.returncode == 0, done.stderr
    (wheel,) = (tmp_path / "dist").iterdir()
    assert wheel.name.endswith("py3-none-any.whl")
    with zipfile.ZipFile(wheel) as archive:
        assert MODULE not in archive.namelist()
    assert ("without the hot path in C" in done.stdout + done.stderr) == ("CC" in environment)


def test_a_release_fails_without_a_compiler(tmp_path):
    """RANKLAKE_NATIVE=1 builds no wheel of Python alone by mistake; nothing is left behind."""
    (tmp_path / "tmp").mkdir()
    done = built(tmp_path / "dist", CC="/nowhere/cc", RANKLAKE_NATIVE="1", TMPDIR=str(tmp_path / "tmp"))
    assert done.returncode != 0
    assert "install a C compiler" in done.stderr
    assert list((tmp_path / "dist").glob("*.whl")) == []
    assert list((tmp_path / "tmp").iterdir()) == []


def test_compiling_needs_nothing_but_the_standard_library():
    """A wheel is built before ranklake and what it needs are there."""
    code = "import runpy, sys; print(callable(runpy.run_path(sys.argv[1])['build']))"
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", code, ROOT / "capture" / "build.py"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.strip() == "True"
