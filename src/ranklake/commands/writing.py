"""Files that commands write where somebody names one."""

import os
from pathlib import Path

from ranklake.errors import RanklakeError


def write_whole(output: Path, data: bytes) -> None:
    """Write a whole file or none. Raises `RanklakeError`."""
    scratch = output.with_name(f".{output.name}.{os.getpid()}.tmp")
    try:
        scratch.write_bytes(data)
        scratch.replace(output)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        raise RanklakeError(
            f"cannot be written: {error.strerror}", where=str(output), mend="name another file"
        ) from error
