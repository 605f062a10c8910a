"""Folders: list the files below a folder, on a local disk or in an object store."""

from collections.abc import Iterator
from typing import Any, Final

_MAX_DEPTH: Final = 32
"""Levels of nested folders. MLflow makes nested folders from metric names with slashes."""


def walk(fs: Any, folder: str, depth: int = _MAX_DEPTH) -> Iterator[tuple[str, dict[str, Any]]]:  # noqa: ANN401
    """Yield path and fsspec's listing entry of each file below a folder, sorted; nothing if it cannot be listed.

    Links to folders are not followed, so that no folder is visited twice. Pipes, sockets and devices are left out.
    """
    try:
        entries = sorted(fs.ls(folder, detail=True), key=lambda entry: str(entry["name"]))
    except (FileNotFoundError, NotADirectoryError, PermissionError):
        return
    for entry in entries:
        if entry["type"] == "directory" and not entry.get("islink"):
            if depth:
                yield from walk(fs, entry["name"].rstrip("/"), depth - 1)
        elif entry["type"] == "file" or (entry.get("islink") and leads_to_file(fs, entry["name"])):
            yield entry["name"], entry


def leads_to_file(fs: Any, name: str) -> bool:  # noqa: ANN401 - a file system of fsspec
    """Whether a path is a file, or does not exist. Others, such as pipes, are not read: reading may never end."""
    return bool(fs.isfile(name) or not fs.exists(name))


def is_folder(fs: Any, entry: dict[str, Any]) -> bool:  # noqa: ANN401 - a file system of fsspec
    """Whether a listing entry is a folder, or a link to a folder."""
    return bool(entry["type"] == "directory" or (entry.get("islink") and fs.isdir(entry["name"])))


def files_at(fs: Any, path: str) -> list[str]:  # noqa: ANN401 - a file system of fsspec
    """Return the files below a folder, sorted; if `path` is no folder, `path` itself."""
    return [name for name, _ in walk(fs, path)] if fs.isdir(path) else [path]
