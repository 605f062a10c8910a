"""Searches every file of a lake, a spool and folders for values, and reports where they are without showing them."""

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
from ranklake.retention.erasure.needles import Needles, needles
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
            why = "" if source.is_folder else look_up(place, source.uri).at_hand.closed
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
    why = "" if source.version is None else lock_reason(source.fs, source.version)
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
        *((item.fs, item.root) for item in (spool, spool and spool.fallback) if item is not None),
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


_REMEMBERED: Final = 65_536


def opened_by_others(lake: "Lake", subjects: "Collection[SubjectName]") -> Callable[[str], str | None] | None:
    """Return a function that opens what keys of other subjects sealed; None where a lake has no keys.

    Keys are read when the first sealed text is met. It raises as `ranklake.retention.subjects.store.KeyStore` then.
    """
    if not has_keys(lake):
        return None

    @cache
    def keys() -> dict[str, SubjectKey]:
        return KeyStore(lake).by_id(but=subjects)

    @lru_cache(_REMEMBERED)
    def clear(text: str) -> str | None:
        return unseal_text(text, keys())

    return clear


EXAMPLES = 3
NAME = "name of the file"


@dataclass(frozen=True, slots=True)
class Trace:
    """Where values are, of one kind of place.

    Attributes
    ----------
    place
        What the files are, such as ``rows of steps``, ``old versions of steps``, ``segments in the spool``.
    where
        Where in them: a column, their name, their bytes, their footer.
    files, count
        Files, and rows or occurrences in them.
    examples
        Some of the files; values in their names are left out.
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
    """What a search found: traces, what could not be looked into (reason by place, with the number of files), sizes."""

    traces: tuple[Trace, ...]
    unsearched: tuple[Trace, ...]
    files: int

    @property
    def is_clean(self) -> bool:
        """Whether nothing was found, and all was looked into."""
        return not self.traces and not self.unsearched

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        fields = {"found": self.traces, "unsearched": self.unsearched}
        return {
            "files": self.files,
            "is_clean": self.is_clean,
            **{name: [one.plain() for one in some] for name, some in fields.items()},
        }


def search(
    lake: "Lake",
    spool: "Spool | None",
    values: Iterable[str],
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> SearchResult:
    """Look for values in every file of a lake, a spool and some folders; nothing is written, no value is reported.

    A value is found as it is, in JSON, HTML, URLs, base64 and hex, and in letters of either case; in columns of
    Parquet, archives, gzip, SQLite, segments that a configured key opens, and in what keys of other people sealed.
    Numbers, hashes and pseudonyms of it are not found.

    Raises
    ------
    ranklake.retention.erasure.needles.NeedleError
        No value is given, or one of less than four characters.
    """
    given = list(values)
    sought = replace(needles(given), opened=opened_by_others(lake, given))
    return summarize(each(lake, spool, sought, folders, progress=progress), sought)


@dataclass(frozen=True, slots=True)
class FileMatches:
    """A file, or a folder: how often values are where in it, and why parts of it were not looked into."""

    source: Source
    counts: Counter[str]
    unsearched: frozenset[str] = frozenset()


def each(
    lake: "Lake",
    spool: "Spool | None",
    sought: Needles,
    folders: Sequence[Path] = (),
    *,
    progress: "Progress | None" = None,
) -> Iterator[FileMatches]:
    """Yield every file of a lake, a spool and some folders with what is found in it; see `search`."""
    opened = opener(lake.config.encryption_key)
    yield from each_version(lake, spool, sought)
    every = list(sources(lake.tables, spool, folders))
    for number, source in enumerate(every, 1):
        yield _search_source(source, sought, opened)
        if progress is not None:
            progress(number, len(every))


def each_version(lake: "Lake", spool: "Spool | None", sought: Needles) -> Iterator[FileMatches]:
    """Yield every version that a bucket keeps beside a current one, with what is found in it; see `each`."""
    opened = opener(lake.config.encryption_key)
    for source, why_not in list(kept_versions(lake, spool)):
        if why_not:
            yield FileMatches(source, Counter(), frozenset({why_not}))
            continue
        counts = _search_source(source, sought, opened)
        yield replace(counts, source=with_lock(source)) if counts.counts else counts


def _search_source(source: Source, sought: Needles, opened: Decrypt) -> FileMatches:
    counts, why = (Counter[str](), set[str]()) if source.is_folder else _search_file(source, sought, opened)
    if count := sought.count(source.path.encode(errors="replace")):
        counts[NAME] = count
    return FileMatches(source, counts, frozenset(why))


def summarize(matches: Iterable[FileMatches], sought: Needles) -> SearchResult:
    """Return what was found, by kinds of places."""
    amounts: dict[tuple[str, str], list[tuple[str, int]]] = {}
    missed: dict[tuple[str, str], list[tuple[str, int]]] = {}
    files = 0
    for match in matches:
        files += not match.source.is_folder
        for where, count in match.counts.items():
            amounts.setdefault((match.source.place, where), []).append((match.source.uri, count))
        for why in match.unsearched:
            missed.setdefault((match.source.place, why), []).append((match.source.uri, 1))
    return SearchResult(_as_traces(amounts, sought), _as_traces(missed, sought), files)


def opener(keys: str) -> Decrypt:
    """Return a function that opens encrypted segments by a keyring, as far as it has their keys."""

    def opened(path: str, raw: bytes) -> bytes | None:
        *_, table, name = ("", *path.split("/"))
        try:
            named = SegmentName.parse(name)
            return decrypt(find_key(keys, named.key_id), raw, named.bond(table))
        except (NotASegmentError, EncryptionError, SecretError):
            return None

    return opened


def _search_file(source: Source, sought: Needles, opened: Decrypt) -> tuple[Counter[str], set[str]]:
    """Return what is found in one file, and why parts of it were not looked into."""
    counts: Counter[str] = Counter()
    why: set[str] = set()
    if source.closed:
        return counts, {source.closed}
    try:
        with source.opened() as file:
            for hit in look(file, source.path, sought, opened):
                if isinstance(hit, UnsearchedPart):
                    why.add(hit.why)
                else:
                    counts[hit.where] += hit.count
    except FileNotFoundError:
        pass  # it went while others were looked at
    except OSError as error:
        why.add(f"cannot be opened ({type(error).__name__})")
    return counts, why


def _as_traces(amounts: dict[tuple[str, str], list[tuple[str, int]]], sought: Needles) -> tuple[Trace, ...]:
    return tuple(
        Trace(
            printable_name(sought.mask_name(place)),
            printable_name(sought.mask_name(where)),
            len(hits),
            sum(count for _, count in hits),
            tuple(printable_name(sought.mask_name(uri)) for uri, _ in hits[:EXAMPLES]),
        )
        for (place, where), hits in sorted(amounts.items())
    )
