"""Build: compile the optional hot path in place, ``python -m ranklake.capture.build``.

Needs a C compiler and Python's headers, and that the installed package's folder can be written to. Nothing else needs
it: without it the same rows are recorded by Python, at two to four times the cost (``make bench NAME=capture``).
"""

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Final

from ranklake.capture.common.native import SOURCE, digest
from ranklake.errors import RanklakeError

_FLAGS: Final = ("-O2", "-fPIC", "-shared", "-fvisibility=hidden", "-std=gnu11", "-Wall", "-Wextra")
_QUIET: Final = ("-Wno-cast-function-type", "-Wno-missing-field-initializers")


class BuildError(RanklakeError):
    """The hot path cannot be compiled here; recording goes on without it."""


def build(folder: Path = SOURCE.parent) -> Path:
    """Compile into a folder and return the module's path.

    Raises
    ------
    BuildError
        No compiler or headers, a folder that cannot be written to, or an interpreter without a GIL. Nothing is left
        behind, and what was built before stays.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError(
            "the hot path in C relies on the GIL, which this interpreter does not have", where=sys.executable
        )
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    define = f'-DSOURCE_SHA256="{digest()}"'
    command = [*compiler, *_FLAGS, *_QUIET, define, include, str(SOURCE), "-o", str(temporary)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            message = next((line for line in done.stderr.splitlines() if "error" in line), done.stderr.strip()[:200])
            raise BuildError(f"{compiler[0]} failed: {message}", hint="install a C compiler and Python's headers")
        temporary.replace(target)
    except OSError as error:
        hint = "install a C compiler, or set CC"
        raise BuildError(f"cannot compile: {error}", where=str(folder), hint=hint) from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201 - a command
    except BuildError as failed:
        sys.exit(str(failed))
