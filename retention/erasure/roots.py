"""Where traces may be: the lake, the spool, and folders that are named; each file with what it is."""

import io
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import listed
from ranklake.lake.store.versions import UNKNOWN, Version, keeps_versions, read_version, versions, why_kept
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.place import look
from ranklake.retention.archive.register import archive_places
from ranklake.retention.proposals.kept import kept_paths
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


LIVE, KEPT, OLD, LOG = "rows of {}", "rows of {} in their grace", "old versions of {}", "log of {}"
COPIES: Final = "copies for role"
FOLDER: Final = "files below"
ARCHIVES: Final = "archives"
BACK: Final = "rows that came back from archives"
_OPEN: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK
_LAKE: Final[Mapping[str, str]] = {
    "quarantine": "raw bytes in quarantine",
    "plans": "plans of the lake",
    "contracts": "operators' contracts",
    "queries": "log of queries",
    "shares": "register of shares",
    "known": "summaries of segments",
    "rounds": "hints of the spool's listing",
    "migrating": "hints of migrations",
    "attempts": "hints of attempts",
    "certificates": "certificates of erasures",
    "rehydrated": BACK,
}
_SPOOL: Final[Mapping[str, str]] = {"segments": "segments in the spool", "imports": "records of imports"}


@dataclass(frozen=True, slots=True)
class Source:
    """A file, or a folder for its name's sake: what it is, how to show it, its path below its root, what opens it.

    `closed` says why nothing can look into it; empty if it can be opened. `version` is one that a bucket keeps of an
    object beside the current one.
    """

    place: str
    uri: str
    path: str
    fs: Any = None
    is_folder: bool = False
    closed: str = ""
    version: Version | None = None

    @contextmanager
    def opened(self) -> Iterator[IO[bytes]]:
        """Give its bytes, to be sought in. Raises `OSError`; of a link, `IrregularError`."""
        if self.version is not None:
            yield io.BytesIO(read_version(self.fs, self.uri, self.version.id))
            return
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


def sources(tables: "Tables", spool: "Spool | None", folders: Sequence[Path]) -> Iterator[Source]:
    """Yield every file of a lake, a spool and some local folders, links and odd files among them."""
    live, in_grace = _live(tables), kept_paths(tables)
    for file in _files(tables.store.fs, tables.store.path("").rstrip("/"), local=tables.store.is_local):
        yield replace(file, place=_place_in_lake(file.path, live, in_grace))
    for share in shares(tables.store):
        place = open_place(tables.store, share.uri)
        for source in _files(place.fs, place.root.rstrip("/"), local=place.is_local):
            yield replace(source, place=f"{COPIES} {share.role}")
    for place in archive_places(tables):
        for source in _files(place.fs, place.root.rstrip("/"), local=place.is_local):
            why = "" if source.is_folder else look(place, source.uri).at_hand.closed
            yield replace(source, place=ARCHIVES, closed=why)
    if spool is not None:
        for source in _files(spool.fs, spool.root.rstrip("/"), local=isinstance(spool.fs, LocalFileSystem)):
            yield replace(source, place=_place_in_spool(source.path))
    for folder in folders:
        for source in _files(None, str(folder), local=True):
            yield replace(source, place=f"{FOLDER} {folder}")


def _files(fs: Any, top: str, *, local: bool) -> Iterator[Source]:  # noqa: ANN401 - fsspec ships no types
    """Yield each file below a place; on a local disk folders, too, and links that are not followed."""
    if not local:
        for entry in listed(fs, top):
            yield Source("", entry.path, entry.path[len(top) :].lstrip("/"), fs)
        return
    if Path(top).is_file():
        yield Source("", top, Path(top).name)
    closed: list[str] = []
    for folder, folders, names in os.walk(top, onerror=lambda error: closed.append(str(error.filename))):
        for name in (*names, *folders):
            whole = os.path.join(folder, name)  # noqa: PTH118 - names need not be text
            plain = name in folders and not os.path.islink(whole)  # noqa: PTH114 - likewise
            yield Source("", whole, os.path.relpath(whole, top), is_folder=plain)
    for whole in closed:  # opened as a file it says why
        yield Source("", whole, os.path.relpath(whole, top))


def _live(tables: "Tables") -> dict[str, set[str]]:
    """Return the paths of each table's live data files."""
    paths = {}
    for name in sorted({table.partition("/")[0] for table in _tables(tables.store)}):
        handle = latest(tables, name)
        paths[name] = set() if handle is None else live_paths(handle)
    return paths


def _tables(store: "Store") -> list[str]:
    top = store.path("tables")
    try:
        return [str(one).rstrip("/").rpartition("/")[2] for one in store.fs.ls(top, detail=False)]
    except FileNotFoundError:
        return []


def _place_in_lake(path: str, live: Mapping[str, set[str]], in_grace: Mapping[str, set[str]]) -> str:
    top, _, rest = path.partition("/")
    if top != "tables":
        return _LAKE.get(top, "other files of the lake")
    table, _, below = rest.partition("/")
    if below.startswith("_delta_log/"):
        return LOG.format(table)
    kind = LIVE if below in live.get(table, ()) else KEPT if below in in_grace.get(table, ()) else OLD
    return kind.format(table)


def _place_in_spool(path: str) -> str:
    top = next((part for part in path.split("/") if part in _SPOOL), "")
    return _SPOOL.get(top, "other files of the spool")


PLACE: Final = "versions kept by the bucket"
UNLISTED: Final = "the bucket keeps versions, and the right to list them is lacking: s3:ListBucketVersions"


def kept_versions(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Source, str]]:
    """Yield every version beside a current one, markers for their names; of a bucket that cannot be asked, why not."""
    reasons: set[str] = set()
    for fs, root in _places(lake, spool):
        bucket = root.lstrip("/").partition("/")[0]
        keeps = keeps_versions(fs, root)
        if keeps is False:
            continue
        why = UNKNOWN
        if keeps:
            try:
                yield from ((source, "") for source in _sources(fs, root))
            except (OSError, RanklakeError):
                why = UNLISTED
            else:
                continue
        if bucket not in reasons:
            reasons.add(bucket)
            yield Source(PLACE, bucket, bucket, fs, is_folder=True), why


def with_lock(source: Source) -> Source:
    """Return a version in which something was found, with what keeps it there, and until when."""
    why = "" if source.version is None else why_kept(source.fs, source.version)
    return replace(source, place=f"{source.place}, {why}") if why else source


def _places(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Any, str]]:
    seen: list[str] = []
    places = [
        lake.store,
        *archive_places(lake.tables),
        *(open_place(lake.store, share.uri) for share in shares(lake.store)),
    ]
    for fs, root in (
        *((place.fs, place.root) for place in places),
        *(() if spool is None else ((spool.fs, spool.root),)),
    ):
        top = f"{root.strip('/')}/"
        if not any(top.startswith(other) for other in seen):
            seen.append(top)
            yield fs, root


def _sources(fs: Any, root: str) -> Iterator[Source]:  # noqa: ANN401 - fsspec ships no types
    top = f"{root.strip('/')}/"
    for version in versions(fs, top):
        if version.is_marker or not version.is_current:
            yield Source(
                PLACE, version.path, version.path.removeprefix(top), fs, is_folder=version.is_marker, version=version
            )
