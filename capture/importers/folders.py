"""Files below a folder of a foreign store, wherever it lies."""

from collections.abc import Iterator
from typing import Any, Final

_DEEPEST: Final = 32
"""Folders within each other: names of MLflow's metrics and artifacts may have slashes."""


def walk(fs: Any, folder: str, depth: int = _DEEPEST) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401
    """Yield the files below a folder, sorted, with what the file system says of them.

    Folders that are links are not followed, so that none is met twice.
    """
    try:
        entries = sorted(fs.ls(folder, detail=True), key=lambda entry: str(entry["name"]))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for entry in entries:
        if entry["type"] == "directory" and not entry.get("islink"):
            if depth:
                yield from walk(fs, entry["name"].rstrip("/"), depth - 1)
        elif entry["type"] == "file" or not is_folder(fs, entry):
            yield entry["name"], entry


def is_folder(fs: Any, entry: dict[str, Any]) -> bool:  # noqa: ANN401 - a file system of fsspec
    """Whether an entry of a listing is a folder, or a link to one."""
    return bool(entry["type"] == "directory" or (entry.get("islink") and fs.isdir(entry["name"])))


def files_at(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - a file system of fsspec
    """Return the files below a folder, sorted; of another path that path alone."""
    return [name for name, _ in walk(fs, path)] if fs.isdir(path) else [path]
