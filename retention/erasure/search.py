"""Searches every file of a lake, a spool and folders for values, and reports the places without the values."""

import io
import os
import stat
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

from fsspec.implementations.local import LocalFileSystem

from ranklake.errors import RanklakeError
from ranklake.lake.store.files import UNKNOWN, Version, keeps_versions, listed, lock_reason, read_version, versions
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import latest
from ranklake.printable import printable_name
from ranklake.retention.archive.place import look as look_up
from ranklake.retention.archive.register import archive_places
from ranklake.retention.erasure.contents import Decrypt, UnsearchedPart, look
from ranklake.retention.erasure.needles import Needles, make_needles
from ranklake.retention.proposals.kept import kept_paths
from ranklake.retention.shares.place import open_place
from ranklake.retention.shares.register import shares
from ranklake.retention.subjects.keys import SubjectKey, unseal_text
from ranklake.retention.subjects.store import KeyStore, has_keys
from ranklake.segments.envelope import EncryptionError, decrypt
from ranklake.segments.keys import find_key
from ranklake.segments.references import SecretError
from ranklake.segments.segment import NotASegmentError, SegmentName

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.retention.subjects.keys import SubjectName

LIVE, KEPT, OLD, LOG = "rows of {}", "rows of {} in their grace", "old versions of {}", "log of {}"
COPIES: Final = "copies for role"
FOLDER: Final = "files below"
ARCHIVES: Final = "archives"
BACK: Final = "rows that came back from archives"
COPIED: Final = "copied artifacts"
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
    "tallies": "tallies of checked files",
    "alerts": "state of alerts",
    "saved": "saved views",
    "certificates": "certificates of erasures",
    "rehydrated": BACK,
    "artifacts": COPIED,
}
_SPOOL: Final[Mapping[str, str]] = {"segments": "segments in the spool", "imports": "records of imports"}


@dataclass(frozen=True, slots=True)
class Source:
    """A file to search, or a folder whose name is searched.

    Attributes
    ----------
    place
        Kind of place, such as ``rows of steps``.
    uri, path
        The file's full path, and its path below the root.
    fs
        File system that opens the file; None for a local one.
    is_folder
        Whether only the name is searched.
    closed
        Why the file cannot be opened; empty if it can.
    version
        An old version of an object that the bucket keeps; None for the current one.
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
        """Open the file for reading. Raises `OSError`, and `IrregularError` for a link or a special file."""
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
    """The path is not a regular file."""


def sources(tables: "Tables", spool: "Spool | None", folders: Sequence[Path]) -> Iterator[Source]:
    """Yield every file of a lake, a spool and local folders, including links and special files."""
    live, in_grace = _live(tables), kept_paths(tables)
    for file in _files(tables.store.fs, tables.store.path("").rstrip("/"), local=tables.store.is_local):
        yield replace(file, place=_place_in_lake(file.path, live, in_grace))
    for share in shares(tables.store):
        place = open_place(tables.store, share.uri)
        for source in _files(place.fs, place.root.rstrip("/"), local=place.is_local):
            yield replace(source, place=f"{COPIES} {share.role}")
    for place in archive_places(tables):
        for source in _files(place.fs, place.root.rstrip("/"), local=place.is_local):
            closed = "" if source.is_folder else look_up(place, source.uri).availability.closed
            yield replace(source, place=ARCHIVES, closed=closed)
    if spool is not None:
        for source in _files(spool.fs, spool.root.rstrip("/"), local=isinstance(spool.fs, LocalFileSystem)):
            yield replace(source, place=_place_in_spool(source.path))
    for folder in folders:
        for source in _files(None, str(folder), local=True):
            yield replace(source, place=f"{FOLDER} {folder}")


def _files(fs: Any, top: str, *, local: bool) -> Iterator[Source]:  # noqa: ANN401 - fsspec ships no types
    """Yield each file below a root. For a local disk, also yields folders and links; links are not followed."""
    if not local:
        for entry in listed(fs, top):
            yield Source("", entry.path, entry.path[len(top) :].lstrip("/"), fs)
        return
    if Path(top).is_file():
        yield Source("", top, Path(top).name)
    unreadable: list[str] = []
    for folder, folders, names in os.walk(top, onerror=lambda error: unreadable.append(str(error.filename))):
        for name in (*names, *folders):
            full_path = os.path.join(folder, name)  # noqa: PTH118 - names may be no text
            is_folder = name in folders and not os.path.islink(full_path)  # noqa: PTH114 - names may be no text
            yield Source("", full_path, os.path.relpath(full_path, top), is_folder=is_folder)
    for full_path in unreadable:  # as files, so that opening them reports the error
        yield Source("", full_path, os.path.relpath(full_path, top))


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
        return [str(path).rstrip("/").rpartition("/")[2] for path in store.fs.ls(top, detail=False)]
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
    """Yield every old version of an object, and each bucket whose versions cannot be listed, with the reason.

    The reason is empty for a version. A delete marker is yielded as a folder, so that its name is searched.
    """
    reasons: set[str] = set()
    for fs, root in _places(lake, spool):
        bucket = root.lstrip("/").partition("/")[0]
        keeps = keeps_versions(fs, root)
        if keeps is False:
            continue
        reason = UNKNOWN
        if keeps:
            try:
                yield from ((source, "") for source in _old_versions(fs, root))
            except (OSError, RanklakeError):
                reason = UNLISTED
            else:
                continue
        if bucket not in reasons:
            reasons.add(bucket)
            yield Source(PLACE, bucket, bucket, fs, is_folder=True), reason


def with_lock(source: Source) -> Source:
    """Return a version with the lock that keeps it, and the lock's end, in its place."""
    lock = "" if source.version is None else lock_reason(source.fs, source.version)
    return replace(source, place=f"{source.place}, {lock}") if lock else source


def _places(lake: "Lake", spool: "Spool | None") -> Iterator[tuple[Any, str]]:
    """Yield file system and root of lake, archives, shares and spool, without roots below another root."""
    roots: list[str] = []
    places = [
        lake.store,
        *archive_places(lake.tables),
        *(open_place(lake.store, share.uri) for share in shares(lake.store)),
    ]
    for fs, root in (
        *((place.fs, place.root) for place in places),
        *((item.fs, item.root) for item in (spool, spool and spool.fallback) if item is not None),
    ):
        top = f"{root.strip('/')}/"
        if not any(top.startswith(other) for other in roots):
            roots.append(top)
            yield fs, root


def _old_versions(fs: Any, root: str) -> Iterator[Source]:  # noqa: ANN401 - fsspec ships no types
    top = f"{root.strip('/')}/"
    for version in versions(fs, top):
        if version.is_marker or not version.is_current:
            yield Source(
                PLACE, version.path, version.path.removeprefix(top), fs, is_folder=version.is_marker, version=version
            )


_REMEMBERED: Final = 65_536


def make_unsealer(lake: "Lake", subjects: "Collection[SubjectName]") -> Callable[[str], str | None] | None:
    """Return a function that unseals texts under keys of all people but `subjects`; None if the lake has no keys.

    The function returns None for a text that no key opens. Its first call reads the keys, and raises the errors of
    `ranklake.retention.subjects.store.KeyStore`.
    """
    if not has_keys(lake):
        return None

    @cache
    def keys() -> dict[str, SubjectKey]:
        return KeyStore(lake).by_id(but=subjects)

    @lru_cache(_REMEMBERED)
    def unseal(text: str) -> str | None:
        return unseal_text(text, keys())

    return unseal


EXAMPLES = 3
NAME = "name of the file"


@dataclass(frozen=True, slots=True)
class Trace:
    """The matches in one kind of place.

    Attributes
    ----------
    place
        Kind of files, such as ``rows of steps``, ``old versions of steps`` or ``segments in the spool``.
    where
        Part of the files: a column, their name, their bytes, their footer.
    files, count
        Number of files, and of matching rows or occurrences in them.
    examples
        Paths of some of the files, with values masked.
    """

    place: str
    where: str
    files: int
    count: int
    examples: tuple[str, ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class SearchResult:
    """Result of a search: matches, files that could not be searched with the reason, and the number of files."""

    traces: tuple[Trace, ...]
    unsearched: tuple[Trace, ...]
    files: int

    @property
    def is_clean(self) -> bool:
        """Whether everything was searched and nothing was found."""
        return not self.traces and not self.unsearched

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        fields = {"found": self.traces, "unsearched": self.unsearched}
        return {
            "files": self.files,
            "is_clean": self.is_clean,
            **{name: [trace.plain() for trace in traces] for name, traces in fields.items()},
        }


def search(
    lake: "Lake",
    spool: "Spool | None",
    values: Iterable[str],
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> SearchResult:
    """Search for values in every file of a lake, a spool and folders. Writes nothing and reports no value.

    Finds a value in any case, as plain text and in the escapes of JSON, HTML, URLs, base64 and hex. Reads Parquet
    columns, archives, gzip, SQLite, segments that a configured key decrypts, and texts that are sealed under keys of
    other people. Does not find numbers, hashes and pseudonyms of a value.

    Raises
    ------
    ranklake.retention.erasure.needles.NeedleError
        No value is given, or a value has less than four characters.
    """
    given = list(values)
    needles = replace(make_needles(given), unseal=make_unsealer(lake, given))
    return summarize(search_files(lake, spool, needles, folders, progress=progress), needles)


@dataclass(frozen=True, slots=True)
class FileMatches:
    """A file or folder: the number of matches by part of the file, and why parts of it could not be searched."""

    source: Source
    counts: Counter[str]
    unsearched: frozenset[str] = frozenset()


def search_files(
    lake: "Lake",
    spool: "Spool | None",
    needles: Needles,
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> Iterator[FileMatches]:
    """Yield every file of a lake, a spool and folders with its matches; see `search`."""
    decrypt_segment = opener(lake.config.encryption_key)
    yield from search_versions(lake, spool, needles)
    all_sources = list(sources(lake.tables, spool, folders))
    for number, source in enumerate(all_sources, 1):
        yield _search_source(source, needles, decrypt_segment)
        if progress is not None:
            progress(number, len(all_sources))


def search_versions(lake: "Lake", spool: "Spool | None", needles: Needles) -> Iterator[FileMatches]:
    """Yield every old version of an object with its matches; see `search_files`."""
    decrypt_segment = opener(lake.config.encryption_key)
    for source, reason in list(kept_versions(lake, spool)):
        if reason:
            yield FileMatches(source, Counter(), frozenset({reason}))
            continue
        matches = _search_source(source, needles, decrypt_segment)
        yield replace(matches, source=with_lock(source)) if matches.counts else matches


def _search_source(source: Source, needles: Needles, decrypt_segment: Decrypt) -> FileMatches:
    counts, unsearched = Counter[str](), set[str]()
    if not source.is_folder:
        counts, unsearched = _search_file(source, needles, decrypt_segment)
    if count := needles.count(source.path.encode(errors="replace")):
        counts[NAME] = count
    return FileMatches(source, counts, frozenset(unsearched))


def summarize(matches: Iterable[FileMatches], needles: Needles) -> SearchResult:
    """Return the matches and the unsearched files, added up by kind of place."""
    amounts: dict[tuple[str, str], list[tuple[str, int]]] = {}
    unsearched: dict[tuple[str, str], list[tuple[str, int]]] = {}
    files = 0
    for match in matches:
        files += not match.source.is_folder
        for where, count in match.counts.items():
            amounts.setdefault((match.source.place, where), []).append((match.source.uri, count))
        for reason in match.unsearched:
            unsearched.setdefault((match.source.place, reason), []).append((match.source.uri, 1))
    return SearchResult(_as_traces(amounts, needles), _as_traces(unsearched, needles), files)


def opener(keys: str) -> Decrypt:
    """Return a function that decrypts segments with a keyring; it returns None for segments without a key."""

    def decrypt_segment(path: str, raw: bytes) -> bytes | None:
        *_, table, name = ("", *path.split("/"))
        try:
            segment = SegmentName.parse(name)
            return decrypt(find_key(keys, segment.key_id), raw, segment.bond(table))
        except (NotASegmentError, EncryptionError, SecretError):
            return None

    return decrypt_segment


def _search_file(source: Source, needles: Needles, decrypt_segment: Decrypt) -> tuple[Counter[str], set[str]]:
    """Return the matches in a file, and why parts of it could not be searched."""
    counts: Counter[str] = Counter()
    unsearched: set[str] = set()
    if source.closed:
        return counts, {source.closed}
    try:
        with source.opened() as file:
            for part in look(file, source.path, needles, decrypt_segment):
                if isinstance(part, UnsearchedPart):
                    unsearched.add(part.why)
                else:
                    counts[part.where] += part.count
    except FileNotFoundError:
        pass  # deleted during the search
    except OSError as error:
        unsearched.add(f"cannot be opened ({type(error).__name__})")
    return counts, unsearched


def _as_traces(amounts: dict[tuple[str, str], list[tuple[str, int]]], needles: Needles) -> tuple[Trace, ...]:
    return tuple(
        Trace(
            printable_name(needles.mask_name(place)),
            printable_name(needles.mask_name(where)),
            len(hits),
            sum(count for _, count in hits),
            tuple(printable_name(needles.mask_name(uri)) for uri, _ in hits[:EXAMPLES]),
        )
        for (place, where), hits in sorted(amounts.items())
    )
