"""The spool as ingest sees it: which segments are there, and which may be deleted."""

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
    look_into,
    member_path,
    pack_name,
    unfit,
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
    """Write down that a lake takes rows from a spool; where that cannot be, `Spool.passed_over` says so."""
    path = f"{spool.root}/{_FOLDER}/{number}"
    if not _NUMBER.fullmatch(number):
        return
    try:
        if not spool.fs.exists(path):
            spool.put(path, json.dumps({"since": datetime.now(UTC).date().isoformat()}).encode())
    except (OSError, RanklakeError):
        spool.passed_over[printable_name(path)] = NOT_MARKED


def refuse_lost(spool: "Spool", lake_uri: str) -> None:
    """Raise `LostLakeError` where a spool has fed a lake, `LakeUnreachableError` where it cannot be listed."""
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


STAYS: Final = "cannot be deleted"

Known = Callable[[Collection[str]], pa.Table]


class Spool:
    """The spool at a URI.

    Parameters
    ----------
    uri
        Folder or object-store URI, as capture was given it.
    storage
        Options under delta-rs's names.
    config
        What the operator configured: segments are looked for below each prefix, too, and none larger is opened.

    Attributes
    ----------
    writers
        Who may write where.
    root
        The spool's own folder, for its file system.
    passed_over
        What the looks so far found and left alone, by printable path: why. It is nobody's rows.
    fallback
        The spool that agents send to while this one is away; None if there is none.
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
        prefixes = dict.fromkeys(("", *(one.prefix for one in self.writers.prefixes)))
        self._roots = [f"{self.root}/{prefix}/segments".replace("//segments", "/segments") for prefix in prefixes]
        self.passed_over: dict[str, str] = {}
        self.fallback: Spool | None = None
        if config.spool.fallback_uri:
            alone = replace(config, spool=replace(config.spool, fallback_uri=""))
            self.fallback = Spool(
                config.spool.fallback_uri, {**(storage or {}), **config.spool.fallback_storage}, alone
            )

    def listing(self, known: Known | None = None, rounds: ListingCache | None = None) -> list[SpoolFile]:
        """Return the segments and other files there, in stream order; an absent folder is an empty spool.

        Files still being written (names that end in .tmp) are left out. Of packs the members are listed, and the pack
        itself only if it is damaged.

        Parameters
        ----------
        known
            Given the day folders that are listed, returns columns pack, date and members: how many sound members of
            each pack were read on which date. Packs all of whose members were read are left out unopened.
        rounds
            Day folders that may wait are left out; by default none is.

        Raises
        ------
        LakeUnreachableError
            The spool, or a pack in it, cannot be read.
        """
        ((found_files, _),) = self.listings(known, rounds)
        return found_files

    def listings(
        self, known: Known | None = None, rounds: ListingCache | None = None, members: int | None = None
    ) -> Iterator[tuple[list[SpoolFile], dict[str, int]]]:
        """Yield the listing of some packs, then of more and at last of all; and which are not opened yet.

        A backlog of a day is millions of segments, of which a plan names a few thousand: so no more packs are opened
        than it takes.

        Parameters
        ----------
        known, rounds
            As for `listing`, which also says what is raised.
        members
            Segments to find in packs the first time; each further time twice as many. By default all.

        With a listing comes how many members each pack has, by path, that was not opened for it.
        """
        files = self.files(rounds)
        # A damaged member may be replaced, so a pack that has one is looked into each time.
        done = set() if known is None else complete_packs(known({self.day_of(path) for path in files}))
        files = {path: one for path, one in files.items() if path not in done}
        closed = {path: name.members for path in sorted(files) if (name := pack_name(path))}
        opened = {path: one for path, one in files.items() if path not in closed}
        spooled: list[SpoolFile] = []
        while True:
            wanted = members
            while closed and (wanted is None or wanted > 0):
                path = next(iter(closed))
                opened[path] = files[path]
                wanted = None if wanted is None else wanted - max(1, closed[path])
                del closed[path]
            spooled = sorted([*spooled, *self.open(opened)], key=lambda item: (item.table, item.order))
            yield spooled, closed
            if not closed:
                return
            opened, members = {}, 2 * members if members else None

    def waiting(self, known: Known | None = None, rounds: ListingCache | None = None) -> list[SpoolFile]:
        """Return the listing of this spool and of its fallback spool, to count what waits; raises as `listing`.

        A fallback spool that cannot be listed is noted in `passed_over`.
        """
        here = self.listing(known, rounds)
        if self.fallback is None:
            return here
        try:
            return [*here, *self.fallback.listing()]
        except LakeUnreachableError as error:
            self.passed_over[printable_name(redact_uri(self.fallback.uri))] = error.what
            return here

    def open(self, files: dict[str, ListedFile]) -> list[SpoolFile]:
        """Return what some files are, and what is in those that are packs."""
        packs = {path: one.size_bytes for path, one in files.items() if pack_name(path)}
        try:
            contents = look_into(self.fs, packs, self.config.ingest.segment_bytes, self.root)
        except (OSError, LakeUnreachableError) as error:
            raise self._unlisted(error) from None
        spooled = [self._look(one) for path, one in files.items() if path not in packs]
        for path, pack in contents.items():
            if pack.unread:
                self.passed_over[printable_name(path)] = pack.unread
                continue
            for member in pack.members:
                where = member_path(path, member)
                facts = (where, member.table, member.size, member.name, member.name.sha256)
                spooled.append(SpoolFile(*facts, files[path].modified))
            if not pack.whole:
                spooled.append(self._look(files[path]))
        return sorted(spooled, key=lambda item: (item.table, item.order))

    def _unlisted(self, error: Exception) -> LakeUnreachableError:
        if isinstance(error, LakeUnreachableError):
            return error
        return unreachable(self.uri, error, self._storage, what="the spool cannot be listed")

    def files(self, rounds: ListingCache | None = None) -> dict[str, ListedFile]:
        """Return all whole files, by path, except for those of day folders that may wait."""
        entries: dict[str, dict[str, Any]] = {}
        if rounds is None:
            for root in self._roots:
                entries |= self._find(root)
        else:
            top: dict[str, dict[str, Any]] = {}
            for root in self._roots:
                top |= self._entries(root)
            entries = {path: info for path, info in top.items() if info["type"] != "directory"}
            folders = {self.folder_of(path): path for path in top if path not in entries}
            for day in rounds.choose(folders, datetime.now(UTC)):
                entries |= self._find(folders[day])
        left = {path: why for path, info in entries.items() if (why := unfit(path, info)) is not None}
        self.passed_over |= {printable_name(path): why for path, why in left.items()}
        return {
            path: ListedFile(path, int(info["size"] or 0), modified_time(info))
            for path, info in entries.items()
            if path not in left and not path.endswith(".tmp")
        }

    def _entries(self, root: str) -> dict[str, dict[str, Any]]:
        """Return what lies in a folder of segments: the day folders, and what is beside them, by path."""
        self.fs.invalidate_cache()  # some file systems would answer from what they listed before
        try:
            entries = self.fs.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        except (OSError, LakeUnreachableError, UnreadError) as error:
            raise self._unlisted(error) from None
        names = {str(info["name"]).rstrip("/"): info for info in entries}
        return {name: info for name, info in names.items() if name != root}  # a marker of itself, in some stores

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            entries: dict[str, dict[str, Any]] = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        except UnreadError as error:
            if folder in self._roots:
                raise self._unlisted(error) from None
            self.passed_over[printable_name(folder)] = error.what
            return {}
        except (OSError, LakeUnreachableError) as error:
            raise self._unlisted(error) from None
        return entries

    def path_of(self, path: str) -> str:
        """Return the path of a file below the spool."""
        return path.removeprefix(f"{self.root}/")

    def folder_of(self, path: str) -> str:
        """Return the day folder in which a file lies, with its prefix; the file's own name if it lies in none."""
        prefix, _, rest = f"/{self.path_of(path)}".partition("/segments/")
        return f"{prefix}/{rest.partition('/')[0]}".removeprefix("/")

    def day_of(self, path: str) -> str:
        """Return the name of the folder beside the days' in which a file lies; its own name if it lies in none."""
        return self.folder_of(path).rpartition("/")[2]

    def _look(self, entry: ListedFile) -> SpoolFile:
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

    def is_readable(self, item: SpoolFile, why: str) -> bool:
        """Whether a file that could not be read, and why, can be now."""
        try:
            raw = Reader(self.fs, []).read(item.path)
            return why != UNSTEADY or Reader(self.fs, []).read_again(item.path) == raw
        except (OSError, RanklakeError):
            return False

    def renew(self, path: str, raw: bytes) -> None:
        """Have a file be newer than what was judged of it: date it now, or write it where it is gone.

        Raises `OSError`, or `ranklake.errors.RanklakeError` where it may not be written.
        """
        if not isinstance(self.fs, SpoolFolder):
            self.fs.pipe_file(path, raw)
            return
        try:
            self.fs.renew(path)
        except FileNotFoundError:
            self.fs.put(path, raw)

    def delete(self, path: str) -> int:
        """Delete a file; return how many went. One that cannot be deleted is reported in `passed_over`."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:  # another driver was faster
            return 0
        except (PermissionError, UnreadError):
            self.passed_over[printable_name(path)] = STAYS
            return 0
        return 1

    def put(self, path: str, data: bytes) -> None:
        """Write a file unless it exists. Raises `OSError`, and `UnreadError` where a link leads out.

        Killed half-way, it leaves a stray temporary file on a local disk, which no listing has.
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
