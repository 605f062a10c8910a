"""Build wheel and sdist, compare them with git, and use the wheel in an environment with base dependencies only.

Where there is a compiler, the wheel has the hot path in C beside what git has, and records by it.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import tempfile
import venv
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
ROOMS = ("capture", "flows", "lake", "quality", "retention")


def expected_in_wheel() -> set[str]:
    """Return what git tracks of the rooms and the package root, under the names it has when installed."""
    listed = subprocess.run(
        ["git", "ls-files", "src/ranklake", *ROOMS], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split()
    links = {f"src/ranklake/{room}" for room in ROOMS}
    return {"ranklake/" + name.removeprefix("src/ranklake/") for name in listed if name not in links}


def compare(kind: str, found: set[str], expected: set[str]) -> None:
    """Stop with the differences, if any."""
    if found != expected:
        sys.exit(f"{kind}: missing {sorted(expected - found)}, surplus {sorted(found - expected)}")
    print(f"{kind}: {len(found)} files, as in git")


def main() -> None:
    """Build, compare, install, smoke-test."""
    compiled = (
        {f"ranklake/capture/common/_native{sysconfig.get_config_var('EXT_SUFFIX')}"} if shutil.which("cc") else set()
    )
    native = {**os.environ, "RANKLAKE_NATIVE": "1" if compiled else "0"}
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "dist"
        subprocess.run([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), "."],
                       cwd=ROOT, check=True, stdout=subprocess.DEVNULL, env=native)  # fmt: skip
        (wheel,) = out.glob("*.whl")
        (sdist,) = out.glob("*.tar.gz")
        with zipfile.ZipFile(wheel) as archive:
            inside = {name for name in archive.namelist() if name.startswith("ranklake/")}
        compare("wheel", inside, expected_in_wheel() | compiled)
        with tarfile.open(sdist) as archive:
            inside = {name.partition("/")[2] for name in archive.getnames()}
        tracked = subprocess.run(
            ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout.split()
        links = {f"src/ranklake/{room}" for room in ROOMS}
        files = {name for name in inside if name and name != "PKG-INFO" and not name.endswith("/")}
        compare("sdist", files & set(tracked) - links, set(tracked) - links)

        bare = Path(scratch) / "bare"
        venv.create(bare, with_pip=True)
        python = bare / "bin" / "python"
        environment = {**os.environ, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
        subprocess.run(
            [python, "-m", "pip", "install", "--quiet", str(wheel)], check=True, env=environment, cwd=scratch
        )
        smoke = ROOT / "tests" / "package" / "smoke_capture.py"
        subprocess.run([python, "-I", "-W", "error", str(smoke), scratch], check=True, cwd=scratch, env=native)


if __name__ == "__main__":
    main()
