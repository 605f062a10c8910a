"""Run a program that dies with whoever started it: ``python -m ranklake.flows.serving.leash PARENT PROGRAM …``.

The kernel sends SIGKILL when the parent is gone, however it went, so that nothing of ``ranklake up`` goes on by itself.
That mark survives the exec below. Nothing heavy is imported: this runs before each flow run.

PARENT is the id of that process, or ``NAME``: a variable that it was started with. A parent that died before the mark
was set is found out by it.
"""

import ctypes
import os
import signal
import sys
from pathlib import Path

_PR_SET_PDEATHSIG = 1


def main() -> None:
    """Put this process on its parent's leash, and become the program."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if not _is_parent(sys.argv[1]):
        sys.exit(1)
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # a shell's background job would have it ignored
    os.execvp(sys.argv[2], sys.argv[2:])  # noqa: S606 - an argument list, no shell


def _is_parent(parent_text: str) -> bool:
    parent = os.getppid()
    if parent_text.isdigit():
        return parent == int(parent_text)
    try:
        variables = Path(f"/proc/{parent}/environ").read_bytes()
    except OSError:
        return False
    return any(one.startswith(f"{parent_text}=".encode()) for one in variables.split(b"\0"))


if __name__ == "__main__":
    main()
