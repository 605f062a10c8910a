"""The chart library as a file of this machine: to make it costs a processor some seconds, to read it milliseconds."""

import hashlib
import os
import re
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

_DIGEST: Final = re.compile(r"-([0-9a-f]{64})\.js")


def cache_folder() -> Path:
    """Return where files are kept that can be made again: below ``XDG_CACHE_HOME``, or ``~/.cache``."""
    base = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(base) if base.startswith("/") else Path.home() / ".cache") / "ranklake"


def cached(name: str, make: Callable[[], bytes], folder: Path | None = None) -> bytes:
    """Return a file by its name, made where it is not kept yet.

    The digest of its bytes is in the name that it is kept under, so that a file cut short or changed is made again.
    Where the folder cannot be read or written, it is made each time. Nothing half written is left under the name.
    """
    try:
        folder = folder or cache_folder()
        for path in sorted(folder.glob(f"{name.removesuffix('.js')}-*.js")):
            digest = _DIGEST.search(path.name)
            data = path.read_bytes()
            if digest and hashlib.sha256(data).hexdigest() == digest[1]:
                return data
    except (OSError, RuntimeError):  # no home, or not ours to read
        return make()
    data = make()
    with suppress(OSError):
        _keep(folder, name, data)
    return data


def _keep(folder: Path, name: str, data: bytes) -> None:
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=folder)  # readable by its owner alone
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        Path(temporary).replace(folder / f"{name.removesuffix('.js')}-{hashlib.sha256(data).hexdigest()}.js")
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
