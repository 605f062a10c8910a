"""Build: compile the optional hot path in C, for a wheel (`hatch_build.py`) or ``python -m ranklake.capture.build``.

The command compiles in place, for editable installs and for those that were made without a compiler. It needs a C
compiler and Python's headers, and that the installed package's folder can be written to. Nothing else needs it: without
it the same rows are recorded by Python, at two to four times the cost (``make bench NAME=capture``).

Nothing of ranklake is imported: building a wheel runs this file by its path, before anything is installed.
"""

import hashlib
import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parent / "common" / "native.c"
_FLAGS: Final = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra")
_QUIET: Final = ("-Wno-cast-function-type", "-Wno-missing-field-initializers")


class BuildError(Exception):
    """The hot path cannot be compiled here; recording goes on without it. Its text is one line."""


def build(folder: Path = SOURCE.parent) -> Path:
    """Compile into a folder and return the module's path.

    Raises
    ------
    BuildError
        No compiler or headers, a folder that cannot be written to, or an interpreter without a GIL. Nothing is left
        behind, and what was built before stays.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError(f"the hot path in C relies on the GIL, which {sys.executable} does not have")
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()  # by which `capture/common/native.py` knows its build
    define = f'-DSOURCE_SHA256="{digest}"'
    command = [*compiler, *_FLAGS, *_QUIET, define, include, str(SOURCE), "-o", str(temporary)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise BuildError(f"{compiler[0]} failed: {message}; install a C compiler and Python's headers")
        temporary.replace(target)
    except OSError as error:
        raise BuildError(f"cannot compile into {folder}: {error}; install a C compiler, or set CC") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201 - a command
    except BuildError as failed:
        sys.exit(str(failed))
