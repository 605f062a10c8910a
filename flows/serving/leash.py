"""Run a program that ends with its parent process: ``python -m ranklake.flows.serving.leash PARENT PROGRAM …``.

The kernel sends SIGKILL when the parent ends, in whatever way, so that no process of ``ranklake up`` is left behind.
The setting survives the exec below. Imports are minimal, because this runs before each flow run.

PARENT is a process id, or ``NAME``: an environment variable of the parent. It detects a parent that ended before the
setting.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Tie this process to its parent, and become the program."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not _is_parent(sys.argv[1]):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # it is ignored in a background job of a shell
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - an argument list, no shell


def _is_parent(parent_text: str) -> bool:
    parent = os.getppid()
    if parent_text.isdigit():
        return parent == int(parent_text)
    try:
        variables = Path(f"/proc/{parent}/environ").read_bytes()
    except OSError:
        return False
    return any(variable.startswith(f"{parent_text}=".encode()) for variable in variables.split(b"\0"))


if __name__ == "__main__":
    main()
