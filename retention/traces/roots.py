"""Where traces may be: the lake, the spool, and folders that are named; each file with what it is."""

import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.lake.delta.commit import files
from ranklake.lake.delta.tables import latest
from ranklake.lake.storage.listing import listed

if TYPE_CHECKING:
    from ranklake.lake.spool.spool import Spool
    from ranklake.lake.storage.store import Lake

LIVE, OLD, LOG = "rows of {}", "old versions of {}", "log of {}"
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LAKE: Final[Mapping[str, str]] = {
    "quarantine": "raw bytes in quarantine",
    "plans": "plans of the lake",
    "contracts": "operators' contracts",
    "usage": "log of queries",
}
_SPOOL: Final[Mapping[str, str]] = {"segments": "segments in the spool", "imports": "records of imports"}


@dataclass(frozen=True, slots=True)
class Source:
    """A file: what it is, how to show it, its path below its root, and what opens it."""

    place: str
    uri: str
    path: str
    fs: Any

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Give its bytes, to be sought in. Raises `OSError`; of a link, `IrregularError`."""
        if self.fs is not None:
            with self.fs.open(self.uri, "rb") as file:
                yield file
            return
        handle = os.open(self.uri, _OPEN)
        with os.fdopen(handle, "rb") as file:
            if not stat.S_ISREG(os.fstat(handle).st_mode):
                raise IrregularError
            yield file


class IrregularError(OSError):
    """Not a regular file."""


def sources(lake: "Lake", spool: "Spool | None", folders: Sequence[Path]) -> Iterator[Source]:
    """Yield every file of a lake, a spool and some local folders, links and odd files among them."""
    live = _live(lake)
    top = lake.path("").rstrip("/")
    for path, uri, fs in _files(lake.fs, top, local=lake.is_local):
        yield Source(_place_in_lake(path, live), uri, path, fs)
    if spool is not None:
        for path, uri, fs in _files(spool.fs, spool.root.rstrip("/"), local=isinstance(spool.fs, LocalFileSystem)):
            yield Source(_place_in_spool(path), uri, path, fs)
    for folder in folders:
        for path, uri, fs in _files(None, str(folder), local=True):
            yield Source(f"files below {folder}", uri, path, fs)


def _files(fs: Any, top: str, *, local: bool) -> Iterator[tuple[str, str, Any]]:  # noqa: ANN401 - fsspec ships no types
    """Yield (path below the top, whole path, what opens it) of each file; on a local disk links are not followed."""
    if not local:
        for one in listed(fs, top):
            yield one.path[len(top) :].lstrip("/"), one.path, fs
        return
    if Path(top).is_file():
        yield Path(top).name, top, None
    for folder, _, names in os.walk(top):
        for name in names:
            whole = os.path.join(folder, name)  # noqa: PTH118 - names need not be text
            yield os.path.relpath(whole, top), whole, None


def _live(lake: "Lake") -> dict[str, set[str]]:
    """Return the paths of each table's live data files."""
    found = {}
    for name in sorted({one.partition("/")[0] for one in _tables(lake)}):
        handle = latest(lake, name)
        found[name] = set() if handle is None else set(files(handle)["path"].to_pylist())
    return found


def _tables(lake: "Lake") -> list[str]:
    top = lake.path("tables")
    try:
        return [str(one).rstrip("/").rpartition("/")[2] for one in lake.fs.ls(top, detail=False)]
    except FileNotFoundError:
        return []


def _place_in_lake(path: str, live: Mapping[str, set[str]]) -> str:
    top, _, rest = path.partition("/")
    if top != "tables":
        return _LAKE.get(top, "other files of the lake")
    table, _, below = rest.partition("/")
    if below.startswith("_delta_log/"):
        return LOG.format(table)
    return (LIVE if below in live.get(table, ()) else OLD).format(table)


def _place_in_spool(path: str) -> str:
    top = next((part for part in path.split("/") if part in _SPOOL), "")
    return _SPOOL.get(top, "other files of the spool")
