"""The spool for ingest: lists segments, and reads, writes and deletes files."""

import hashlib
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.ingest.spool.gate import IRREGULAR, UNSTEADY, UnreadError
from ranklake.lake.ingest.spool.listing_cache import ListingCache
from ranklake.lake.ingest.spool.local_folder import SpoolFolder, spool_files
from ranklake.lake.ingest.spool.packs import (
    _TABLE,
    MISPLACED,
    Reader,
    SpoolFile,
    complete_packs,
    member_path,
    pack_name,
    read_contents,
    rejection,
)
from ranklake.lake.store.files import ListedFile, modified_time, overwrite
from ranklake.lake.store.lake_config import DEFAULT, LakeConfig
from ranklake.lake.store.reachability import LakeUnreachableError, LostLakeError, unreachable
from ranklake.lake.store.store import delta_options, put_new
from ranklake.printable import printable_name
from ranklake.redaction.redact import redact_uri
from ranklake.segments.segment import NotASegmentError, SegmentName

_FOLDER: Final = "lakes"
_NUMBER: Final = re.compile(r"[0-9a-f]{32}")
_DAY: Final = re.compile(r"\d{4}-\d\d-\d\d")
NOT_MARKED: Final = "cannot be written, so a lake that is lost would be made anew without a word"


def mark_fed(spool: "Spool", number: str) -> None:
    """Write a marker into the spool that says that a lake ingests from it.

    A marker that cannot be written is reported in `Spool.passed_over`.
    """
    path = f"{spool.root}/{_FOLDER}/{number}"
    if not _NUMBER.fullmatch(number):
        return
    try:
        if not spool.fs.exists(path):
            spool.put(path, json.dumps({"since": datetime.now(UTC).date().isoformat()}).encode())
    except (OSError, RanklakeError):
        spool.passed_over[printable_name(path)] = NOT_MARKED


def refuse_lost(spool: "Spool", lake_uri: str) -> None:
    """Raise an error if the lake is missing although the spool has a marker of a lake that ingested from it.

    Raises `LostLakeError` if there is a marker, and `LakeUnreachableError` if the spool cannot be listed.
    """
    try:
        paths = spool.fs.ls(f"{spool.root}/{_FOLDER}", detail=False)
    except FileNotFoundError:
        return
    except OSError as error:
        raise unreachable(spool.uri, error, {}, what="the spool cannot be listed") from None
    names = (str(path).rstrip("/").rpartition("/")[2] for path in paths)
    numbers = [name for name in names if _NUMBER.fullmatch(name)]
    if numbers:
        days = [day for number in numbers if (day := _read_since(spool, number))]
        since = f" since {min(days)}" if days else ""
        lakes = "a lake" if len(numbers) == 1 else f"{len(numbers)} lakes"
        raise LostLakeError(f"there is no lake, and this spool has fed {lakes}{since}", lake_uri)


def _read_since(spool: "Spool", number: str) -> str:
    with suppress(OSError, ValueError, RanklakeError, AttributeError):
        day = str(json.loads(spool.fs.cat_file(f"{spool.root}/{_FOLDER}/{number}")).get("since", ""))
        return day if _DAY.fullmatch(day) else ""
    return ""


NOT_DELETED: Final = "cannot be deleted"

CountMembers = Callable[[Collection[str]], pa.Table]
"""Returns how many members of each pack were ingested, given the names of day folders; see `Spool.listing`."""


class Spool:
    """The spool at a URI.

    Parameters
    ----------
    uri
        Folder or object-store URI, as in the configuration of capture.
    storage
        Options under delta-rs's names.
    config
        The lake's configuration: segments are listed below each configured prefix, too, and files above the size limit
        are not opened.

    Attributes
    ----------
    writers
        Which writers may write below which prefix.
    root
        The spool's folder in its file system.
    passed_over
        The reason why a file was left out of a listing or not deleted, by printable path.
    fallback
        The spool to which agents send while this one is unreachable; None if none is configured.
    """

    def __init__(
        self,
        uri: str,
        storage: dict[str, str] | None = None,
        config: LakeConfig = DEFAULT,
    ) -> None:
        self.uri = uri.rstrip("/")
        self._storage = delta_options(self.uri, storage or {})
        self.fs, self.root = spool_files(self.uri, self._storage, config.ingest.segment_bytes)
        self.address = self.root if isinstance(self.fs, SpoolFolder) else self.uri
        self.config, self.writers = config, config.spool.writers
        prefixes = dict.fromkeys(("", *(rule.prefix for rule in self.writers.prefixes)))
        self._roots = [f"{self.root}/{prefix}/segments".replace("//segments", "/segments") for prefix in prefixes]
        self.passed_over: dict[str, str] = {}
        self.fallback: Spool | None = None
        if config.spool.fallback_uri:
            without_fallback = replace(config, spool=replace(config.spool, fallback_uri=""))
            self.fallback = Spool(
                config.spool.fallback_uri, {**(storage or {}), **config.spool.fallback_storage}, without_fallback
            )

    def listing(self, count_members: CountMembers | None = None, cache: ListingCache | None = None) -> list[SpoolFile]:
        """Return the segments and other files of the spool, in stream order; a missing folder is an empty spool.

        Files that are still being written (names that end in .tmp) are left out. The members of a pack are listed in
        place of the pack; a damaged pack is listed, too.

        Parameters
        ----------
        count_members
            Returns a table with columns pack, date and members: how many sound members of each pack were ingested on
            each date. Packs with all members ingested are left out without being opened.
        cache
            Day folders that need no listing now, by this cache, are left out. By default all are listed.

        Raises
        ------
        LakeUnreachableError
            The spool, or a pack in it, cannot be read.
        """
        ((spooled, _),) = self.listings(count_members, cache)
        return spooled

    def listings(
        self,
        count_members: CountMembers | None = None,
        cache: ListingCache | None = None,
        members: int | None = None,
    ) -> Iterator[tuple[list[SpoolFile], dict[str, int]]]:
        """Yield listings with more and more packs opened, the last one with all.

        A day's backlog is millions of segments, and a plan names a few thousand of them. The caller stops when it has
        enough, and the other packs are not opened.

        Parameters
        ----------
        count_members, cache
            As for `listing`.
        members
            Number of pack members in the first listing, doubled for each further one. By default all packs are opened
            for the first.

        Yields
        ------
        The files, as `listing` returns them, and by path the number of members of each pack that is not opened yet.

        Raises
        ------
        LakeUnreachableError
            The spool, or a pack in it, cannot be read.
        """
        files = self.files(cache)
        # A damaged member may be replaced, so a pack with a damaged member is opened each time.
        ingested = set() if count_members is None else complete_packs(count_members({self.day_of(p) for p in files}))
        files = {path: file for path, file in files.items() if path not in ingested}
        unopened = {path: name.members for path in sorted(files) if (name := pack_name(path))}
        to_open = {path: file for path, file in files.items() if path not in unopened}
        spooled: list[SpoolFile] = []
        while True:
            wanted = members
            while unopened and (wanted is None or wanted > 0):
                path = next(iter(unopened))
                to_open[path] = files[path]
                wanted = None if wanted is None else wanted - max(1, unopened[path])
                del unopened[path]
            spooled = sorted([*spooled, *self.open(to_open)], key=lambda item: (item.table, item.order))
            yield spooled, unopened
            if not unopened:
                return
            to_open, members = {}, 2 * members if members else None

    def waiting(self, count_members: CountMembers | None = None, cache: ListingCache | None = None) -> list[SpoolFile]:
        """Return the listings of this spool and of its fallback spool. Raises as `listing`.

        A fallback spool that cannot be listed is reported in `passed_over`.
        """
        spooled = self.listing(count_members, cache)
        if self.fallback is None:
            return spooled
        try:
            return [*spooled, *self.fallback.listing()]
        except LakeUnreachableError as error:
            self.passed_over[printable_name(redact_uri(self.fallback.uri))] = error.what
            return spooled

    def open(self, files: dict[str, ListedFile]) -> list[SpoolFile]:
        """Return an entry for each file, and for each member of a file that is a pack."""
        packs = {path: file.size_bytes for path, file in files.items() if pack_name(path)}
        try:
            contents = read_contents(self.fs, packs, self.config.ingest.segment_bytes, self.root)
        except (OSError, LakeUnreachableError) as error:
            raise self._listing_error(error) from None
        spooled = [self._spool_file(file) for path, file in files.items() if path not in packs]
        for path, pack in contents.items():
            if pack.unread:
                self.passed_over[printable_name(path)] = pack.unread
                continue
            for member in pack.members:
                facts = (member_path(path, member), member.table, member.size, member.name, member.name.sha256)
                spooled.append(SpoolFile(*facts, files[path].modified))
            if not pack.is_complete:
                spooled.append(self._spool_file(files[path]))
        return sorted(spooled, key=lambda item: (item.table, item.order))

    def _listing_error(self, error: Exception) -> LakeUnreachableError:
        if isinstance(error, LakeUnreachableError):
            return error
        return unreachable(self.uri, error, self._storage, what="the spool cannot be listed")

    def files(self, cache: ListingCache | None = None) -> dict[str, ListedFile]:
        """Return all files that are not being written, by path, except for day folders that need no listing now."""
        entries: dict[str, dict[str, Any]] = {}
        if cache is None:
            for root in self._roots:
                entries |= self._find(root)
        else:
            top: dict[str, dict[str, Any]] = {}
            for root in self._roots:
                top |= self._entries(root)
            entries = {path: info for path, info in top.items() if info["type"] != "directory"}
            folders = {self.folder_of(path): path for path in top if path not in entries}
            for day in cache.choose(folders, datetime.now(UTC)):
                entries |= self._find(folders[day])
        rejected = {path: reason for path, info in entries.items() if (reason := rejection(path, info)) is not None}
        self.passed_over |= {printable_name(path): reason for path, reason in rejected.items()}
        return {
            path: ListedFile(path, int(info["size"] or 0), modified_time(info))
            for path, info in entries.items()
            if path not in rejected and not path.endswith(".tmp")
        }

    def _entries(self, root: str) -> dict[str, dict[str, Any]]:
        """Return the entries of a folder of segments by path: day folders, and perhaps other files."""
        self.fs.invalidate_cache()  # some file systems cache listings
        try:
            entries = self.fs.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        except (OSError, LakeUnreachableError, UnreadError) as error:
            raise self._listing_error(error) from None
        names = {str(info["name"]).rstrip("/"): info for info in entries}
        return {name: info for name, info in names.items() if name != root}  # some stores list the folder itself

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            entries: dict[str, dict[str, Any]] = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        except UnreadError as error:
            if folder in self._roots:
                raise self._listing_error(error) from None
            self.passed_over[printable_name(folder)] = error.what
            return {}
        except (OSError, LakeUnreachableError) as error:
            raise self._listing_error(error) from None
        return entries

    def path_of(self, path: str) -> str:
        """Return the path of a file relative to the spool."""
        return path.removeprefix(f"{self.root}/")

    def folder_of(self, path: str) -> str:
        """Return the day folder of a file, with the configured prefix; the file's name if it is in no day folder."""
        prefix, _, rest = f"/{self.path_of(path)}".partition("/segments/")
        return f"{prefix}/{rest.partition('/')[0]}".removeprefix("/")

    def day_of(self, path: str) -> str:
        """Return the name of a file's day folder, without prefix; the file's name if it is in no day folder."""
        return self.folder_of(path).rpartition("/")[2]

    def _spool_file(self, entry: ListedFile) -> SpoolFile:
        path, size = entry.path, entry.size_bytes
        folder, _, base = path.rpartition("/")
        table = MISPLACED if folder in self._roots else folder.rpartition("/")[2]
        table = table if _TABLE.fullmatch(table) else MISPLACED
        try:
            name = SegmentName.parse(base)
        except NotASegmentError:
            digest = hashlib.sha256(f"{path} {size}".encode()).hexdigest()
            return SpoolFile(path, table, size, None, digest, entry.modified)
        return SpoolFile(path, table, size, name, name.sha256, entry.modified)

    def is_readable(self, item: SpoolFile, reason: str) -> bool:
        """Whether a file that an earlier plan could not read, for a reason, can be read now."""
        try:
            raw = Reader(self.fs, []).read(item.path)
            return reason != UNSTEADY or Reader(self.fs, []).read_again(item.path) == raw
        except (OSError, RanklakeError):
            return False

    def renew(self, path: str, raw: bytes) -> None:
        """Set a file's time of modification to now, so that the next ingest reads it again.

        A missing file is written with the bytes `raw`; on an object store, the object is always written.

        Raises `OSError`, and `ranklake.errors.RanklakeError` where the file may not be written.
        """
        if not isinstance(self.fs, SpoolFolder):
            self.fs.pipe_file(path, raw)
            return
        try:
            self.fs.renew(path)
        except FileNotFoundError:
            self.fs.put(path, raw)

    def delete(self, path: str) -> int:
        """Delete a file; return 1 if it was deleted, else 0. A file that cannot be deleted is in `passed_over`."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:  # another driver was faster
            return 0
        except (PermissionError, UnreadError):
            self.passed_over[printable_name(path)] = NOT_DELETED
            return 0
        return 1

    def put(self, path: str, data: bytes) -> None:
        """Write a file unless it exists. Raises `OSError`, and `UnreadError` if a link leads out of the spool.

        A process that is killed meanwhile leaves a temporary file on a local disk. Listings leave it out.
        """
        if not isinstance(self.fs, SpoolFolder):
            put_new(self.fs, path, data)
            return
        folder = Path(path).parent
        if not folder.resolve().is_relative_to(Path(self.root).resolve()):
            raise UnreadError(IRREGULAR, where=printable_name(path))
        folder.mkdir(parents=True, exist_ok=True)
        if not Path(path).exists():
            overwrite(self.fs, path, data, local=True)
