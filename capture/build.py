"""Build: compile the optional hot path in C, for a wheel (`hatch_build.py`) or ``python -m ranklake.capture.build``.

The command compiles in place, for editable installs and for installs that were made without a compiler. It needs a C
compiler, Python's headers, and write access to the installed package's folder. The compiled module is optional: without
it Python records the same rows, at two to four times the cost (``make bench NAME=capture``).

This file imports no module of ranklake, because a wheel's build runs it by its path before ranklake is installed.
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
_IGNORED_WARNINGS: Final = ("-Wno-cast-function-type", "-Wno-missing-field-initializers")


class BuildError(Exception):
    """The hot path cannot be compiled here; recording works without it. The message is one line."""


def build(folder: Path = SOURCE.parent) -> Path:
    """Compile the module into a folder and return its path.

    Raises
    ------
    BuildError
        No compiler or headers, a folder without write access, or an interpreter without a GIL. The temporary file is
        removed, and a module of an earlier build is kept.
    """
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        raise BuildError(f"the hot path in C relies on the GIL, which {sys.executable} does not have")
    target = folder / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
    temporary = folder / f".{target.name}.{os.getpid()}.tmp"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    include = f"-I{sysconfig.get_path('include')}"
    digest = hashlib.sha256(SOURCE.read_bytes()).hexdigest()  # `capture/common/native.py` compares it
    define = f'-DSOURCE_SHA256="{digest}"'
    command = [*compiler, *_FLAGS, *_IGNORED_WARNINGS, define, include, str(SOURCE), "-o", str(temporary)]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False)
        if result.returncode:
            errors = (line for line in result.stderr.splitlines() if "error" in line)
            message = next(errors, result.stderr.strip()[:200])
            raise BuildError(f"{compiler[0]} failed: {message}; install a C compiler and Python's headers")
        temporary.replace(target)
    except OSError as error:
        raise BuildError(f"cannot compile into {folder}: {error}; install a C compiler, or set CC") from error
    finally:
        temporary.unlink(missing_ok=True)
    return target


if __name__ == "__main__":
    try:
        print(build())  # noqa: T201 - a command's output
    except BuildError as failure:
        sys.exit(str(failure))
