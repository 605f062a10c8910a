"""Puts other bytes in the place of a file, at once: a reader sees the old ones or the new ones, whole."""

import os
import uuid
from contextlib import suppress
from typing import Any


def overwrite(fs: Any, path: str, data: bytes, *, local: bool) -> None:  # noqa: ANN401 - fsspec ships no types
    """Write a file whole over what has its name, if anything.

    Killed half-way, it leaves a stray temporary file on a local disk. Raises `OSError` and what the store raises.
    """
    if not local:
        fs.pipe_file(path, data)
        return
    scratch = f"{path}.{uuid.uuid4().hex}.tmp"
    try:
        with open(scratch, "xb") as file:  # noqa: PTH123 - fsspec paths are strings
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(scratch, path)  # noqa: PTH105 - likewise
    finally:
        with suppress(OSError):  # it has the file's name by now
            os.unlink(scratch)  # noqa: PTH108 - likewise
