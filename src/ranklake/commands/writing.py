"""Files that commands write where somebody names one."""

import os
from pathlib import Path

from ranklake.errors import RanklakeError


def write_whole(output: Path, data: bytes) -> None:
    """Write a whole file or none. Raises `RanklakeError`.

    A link stays one, and so does a device or a pipe, which takes the bytes: root would replace ``/dev/null``.
    """
    try:
        if output.exists() and not output.is_file():
            output.write_bytes(data)
        else:
            _put(output.resolve(), data)
    except (OSError, RuntimeError) as error:  # also links that lead in a circle
        why = getattr(error, "strerror", None) or "links lead in a circle"
        raise RanklakeError(f"cannot be written: {why}", where=str(output), hint="name another file") from error


def _put(path: Path, data: bytes) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with scratch.open("xb") as file:
            file.write(data)
        scratch.replace(path)
    except FileExistsError:  # somebody else's
        raise
    except OSError:
        scratch.unlink(missing_ok=True)
        raise
