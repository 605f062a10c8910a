"""Writes output files of commands."""

import os
from collections.abc import Iterable
from pathlib import Path

from ranklake.errors import RanklakeError


def write_whole(output: Path, data: bytes | Iterable[bytes]) -> None:
    """Write a file atomically, from bytes or from an iterator of parts. Raises `RanklakeError`.

    Links, devices and pipes are written through, not replaced: root would replace ``/dev/null``.
    """
    parts = [data] if isinstance(data, bytes) else data
    try:
        if output.exists() and not output.is_file():
            with output.open("wb") as file:
                file.writelines(parts)
        else:
            _put(output.resolve(), parts)
    except (OSError, RuntimeError) as error:  # also circular links
        reason = getattr(error, "strerror", None) or "links lead in a circle"
        raise RanklakeError(f"cannot be written: {reason}", where=str(output), hint="name another file") from error


def _put(path: Path, parts: Iterable[bytes]) -> None:
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with scratch.open("xb") as file:  # an existing one belongs to somebody else
        try:
            file.writelines(parts)
            file.flush()
            scratch.replace(path)
        except BaseException:
            scratch.unlink(missing_ok=True)
            raise
