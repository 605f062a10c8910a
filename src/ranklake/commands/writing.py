"""Files that commands write where somebody names one."""

import os
from collections.abc import Iterable
from pathlib import Path

from ranklake.errors import RanklakeError


def write_whole(output: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a whole file, at once or by parts as they are made, or none. Raises `RanklakeError`.

    A link stays one, and so does a device or a pipe, which takes the bytes: root would replace ``/dev/null``.
    """
    parts = [data] if isinstance(data, bytes) else data
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as file:
                file.writelines(parts)
        else:
            _put(output.resolve(), parts)
    except (OSError, RuntimeError) as error:  # also links that lead in a circle
        why = getattr(error, "strerror", None) or "links lead in a circle"
        raise RanklakeError(f"cannot be written: {why}", where=str(output), hint="name another file") from error


def _put(path: Path, parts: Iterable[bytes]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with scratch.open("xb") as file:  # one that is there is somebody else's
        try:
            file.writelines(parts)
            file.flush()
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
