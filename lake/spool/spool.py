"""The spool as ingest sees it: which segments lie there, and which may go."""

import hashlib
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
from fsspec.implementations.local import LocalFileSystem

from ranklake.errors import RanklakeError
from ranklake.lake.spool.gate import (
    DENIED,
    IRREGULAR,
    MEMBER_LIKE,
    UNPRINTABLE,
    UNREAD,
    UNSTEADY,
    UnreadError,
    printable,
)
from ranklake.lake.spool.listing_cache import Rounds
from ranklake.lake.spool.local_folder import SpoolFolder
from ranklake.lake.spool.packs import Reader, look_into, member_path, pack_name, pack_of, settled
from ranklake.lake.storage.listing import Listed, written
from ranklake.lake.storage.objects import delta_options, file_system
from ranklake.lake.storage.reachability import LakeUnreachableError, unreachable
from ranklake.lake.trust.limits import DEFAULT, Limits
from ranklake.lake.trust.writers import ANYBODY, REFUSED, Writers
from ranklake.segments.segment import NotASegmentError, SegmentName

MISPLACED = "(no table)"
STAYS: Final = "cannot be deleted"
HEALED: Final = "was read as damaged, and is sound"
_TABLE: Final = re.compile(r"[a-z][a-z0-9_]{0,63}", re.ASCII)

Known = Callable[[Collection[str]], pa.Table]
Judge = Callable[[pa.Table], Mapping[str, datetime]]


@dataclass(frozen=True, slots=True)
class Spooled:
    """A file in the spool, or a segment in a pack there.

    Attributes
    ----------
    path
        For the spool's file system, or as `ranklake.lake.spool.packs.member_path` makes it.
    table
        The folder it lies in, if a table could have its name; not necessarily one that exists.
    size_bytes
        As listed.
    name
        What the file name says, or None if it is not a segment's.
    sha256
        From the name; for a foreign file, of its path and size: nobody reads it before ingest does.
    modified
        When the file was written, as the store says; None where it does not.
    """

    path: str
    table: str
    size_bytes: int
    name: SegmentName | None
    sha256: str
    modified: datetime | None = None

    @property
    def order(self) -> tuple[str, int, int, int, int, str]:
        """Sort key that puts segments of one stream side by side."""
        name = self.name
        if name is None:
            return (self.table, -1, -1, -1, -1, self.sha256)
        return (name.run, name.attempt, name.rank, name.incarnation, name.segment, self.sha256)


class Spool:
    """The spool at a URI.

    Parameters
    ----------
    uri
        Folder or object-store URI, as capture was given it.
    storage
        Options under delta-rs's names.
    writers
        Who may write where: segments are looked for below each of the prefixes, too.
    limits
        How much of it to take at a time.

    Attributes
    ----------
    root
        The spool's own folder, for its file system.
    passed_over
        What the looks so far found and left alone, by printable path: why. It is nobody's rows.
    """

    def __init__(
        self,
        uri: str,
        storage: dict[str, str] | None = None,
        writers: Writers = ANYBODY,
        limits: Limits = DEFAULT,
    ) -> None:
        self.uri = uri.rstrip("/")
        self._storage = delta_options(self.uri, storage or {})
        self.fs, root = file_system(self.uri, self._storage)
        self.address = root if isinstance(self.fs, LocalFileSystem) else self.uri
        self.writers, self.limits = writers, limits
        self.root = root.rstrip("/")
        prefixes = dict.fromkeys(("", *(one.prefix for one in self.writers.prefixes)))
        self._roots = [f"{self.root}/{prefix}/segments".replace("//segments", "/segments") for prefix in prefixes]
        if isinstance(self.fs, LocalFileSystem):
            self.fs = SpoolFolder(root, limits.segment_bytes)
        self.passed_over: dict[str, str] = {}

    def listing(self, known: Known | None = None, rounds: Rounds | None = None) -> list[Spooled]:
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
        ((found, _),) = self.listings(known, rounds)
        return found

    def listings(
        self, known: Known | None = None, rounds: Rounds | None = None, members: int | None = None
    ) -> Iterator[tuple[list[Spooled], dict[str, int]]]:
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
        files = self._files(rounds)
        # A damaged member may be replaced, so a pack that has one is looked into each time.
        done = set() if known is None else settled(known({self.day_of(path) for path in files}))
        files = {path: one for path, one in files.items() if path not in done}
        closed = {path: name.members for path in sorted(files) if (name := pack_name(path))}
        some = {path: one for path, one in files.items() if path not in closed}
        found: list[Spooled] = []
        while True:
            wanted = members
            while closed and (wanted is None or wanted > 0):
                path = next(iter(closed))
                some[path] = files[path]
                wanted = None if wanted is None else wanted - max(1, closed[path])
                del closed[path]
            found = sorted([*found, *self._open(some)], key=lambda item: (item.table, item.order))
            yield found, closed
            if not closed:
                return
            some, members = {}, 2 * members if members else None

    def _open(self, files: dict[str, Listed]) -> list[Spooled]:
        """Return what some files are, and what is in those that are packs."""
        packs = {path: one.size_bytes for path, one in files.items() if pack_name(path)}
        try:
            contents = look_into(self.fs, packs, self.limits.segment_bytes, self.root)
        except (OSError, LakeUnreachableError) as error:
            raise self._unlisted(error) from None
        spooled = [self._look(one) for path, one in files.items() if path not in packs]
        for path, found in contents.items():
            if found.unread:
                self.passed_over[printable(path)] = found.unread
                continue
            for member in found.members:
                where = member_path(path, member)
                facts = (where, member.table, member.size, member.name, member.name.sha256)
                spooled.append(Spooled(*facts, files[path].modified))
            if not found.whole:
                spooled.append(self._look(files[path]))
        return sorted(spooled, key=lambda item: (item.table, item.order))

    def _unlisted(self, error: Exception) -> LakeUnreachableError:
        if isinstance(error, LakeUnreachableError):
            return error
        return unreachable(self.uri, error, self._storage, what="the spool cannot be listed")

    def _files(self, rounds: Rounds | None = None) -> dict[str, Listed]:
        """Return all whole files, by path, but for those of day folders that may wait."""
        found: dict[str, dict[str, Any]] = {}
        if rounds is None:
            for root in self._roots:
                found |= self._find(root)
        else:
            top: dict[str, dict[str, Any]] = {}
            for root in self._roots:
                top |= self._entries(root)
            found = {path: info for path, info in top.items() if info["type"] != "directory"}
            folders = {self.folder_of(path): path for path in top if path not in found}
            for day in rounds.choose(folders, datetime.now(UTC)):
                found |= self._find(folders[day])
        unfit = {path: why for path, info in found.items() if (why := _unfit(path, info)) is not None}
        self.passed_over |= {printable(path): why for path, why in unfit.items()}
        return {
            path: Listed(path, int(info["size"] or 0), written(info))
            for path, info in found.items()
            if path not in unfit and not path.endswith(".tmp")
        }

    def _entries(self, root: str) -> dict[str, dict[str, Any]]:
        """Return what lies in a folder of segments: the day folders, and what is beside them, by path."""
        self.fs.invalidate_cache()  # some file systems would answer from what they listed before
        try:
            found = self.fs.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        except (OSError, LakeUnreachableError, UnreadError) as error:
            raise self._unlisted(error) from None
        names = {str(info["name"]).rstrip("/"): info for info in found}
        return {name: info for name, info in names.items() if name != root}  # a marker of itself, in some stores

    def _find(self, folder: str) -> dict[str, dict[str, Any]]:
        try:
            found: dict[str, dict[str, Any]] = self.fs.find(folder, detail=True)
        except FileNotFoundError:
            return {}
        except UnreadError as error:
            if folder in self._roots:
                raise self._unlisted(error) from None
            self.passed_over[printable(folder)] = error.what
            return {}
        except (OSError, LakeUnreachableError) as error:
            raise self._unlisted(error) from None
        return found

    def below(self, path: str) -> str:
        """Return the path of a file below the spool."""
        return path.removeprefix(f"{self.root}/")

    def folder_of(self, path: str) -> str:
        """Return the day folder in which a file lies, with its prefix; the file's own name if it lies in none."""
        prefix, _, rest = f"/{self.below(path)}".partition("/segments/")
        return f"{prefix}/{rest.partition('/')[0]}".removeprefix("/")

    def day_of(self, path: str) -> str:
        """Return the name of the folder beside the days' in which a file lies; its own name if it lies in none."""
        return self.folder_of(path).rpartition("/")[2]

    def _look(self, one: Listed) -> Spooled:
        path, size = one.path, one.size_bytes
        folder, _, base = path.rpartition("/")
        table = MISPLACED if folder in self._roots else folder.rpartition("/")[2]
        table = table if _TABLE.fullmatch(table) else MISPLACED
        try:
            name = SegmentName.parse(base)
        except NotASegmentError:
            digest = hashlib.sha256(f"{path} {size}".encode()).hexdigest()
            return Spooled(path, table, size, None, digest, one.modified)
        return Spooled(path, table, size, name, name.sha256, one.modified)

    def purge(
        self,
        known: Known,
        of: Callable[[list[Spooled]], pa.Table],
        today: date,
        keep_days: int,
        judge: Judge | None = None,
    ) -> int:
        """Delete files that were ingested more than `keep_days` before `today`; return how many went.

        Only what a finished plan read may go, and every further copy of it. A pack goes when all of its members may,
        and counts as one.

        Parameters
        ----------
        known
            As for `listing`.
        of
            Given what is in the spool, returns columns table, sha256, uri_name, bytes, unreadable, plan and date of the
            table ``segments``, of that at least.
        judge
            Given the latter, returns by path when a file was found damaged: one that was written since was not read,
            and stays.
        """
        cutoff = pa.scalar(today - timedelta(days=keep_days), pa.date32())
        files = self._files()
        read_of = known({self.day_of(path) for path in files})
        all_read = settled(read_of)
        over = settled(read_of.filter(pc.less(read_of["date"], cutoff)))
        may_go = {path: [True] for path in files if path in over}
        items = self._open({path: one for path, one in files.items() if path not in all_read})
        told = of(items)
        old = told.filter(pc.less(told["date"], cutoff))
        judged = {} if judge is None else judge(told)
        digests, places = identities(old)
        misread = _misread(old)
        for item in items:
            read = (item.table, item.sha256) in digests
            if not read and (item.path, item.size_bytes) in places and not is_rewritten(item, judged):
                read = misread.get(item.path, item.sha256) == item.sha256 or not self._is_sound(item)
            may_go.setdefault(pack_of(item.path) or item.path, []).append(read)
        return sum(self.delete(path) for path, reads in may_go.items() if all(reads))

    def is_readable(self, item: Spooled, why: str) -> bool:
        """Say whether a file that could not be read, and why, can be now."""
        try:
            raw = Reader(self.fs, []).read(item.path)
            return why != UNSTEADY or Reader(self.fs, []).read_again(item.path) == raw
        except (OSError, RanklakeError):
            return False

    def _is_sound(self, item: Spooled) -> bool:
        """Say whether a file that was read as damaged has the digest in its name after all; then have it read again."""
        try:
            raw = Reader(self.fs, [item.path]).read(item.path)
        except (OSError, UnreadError):
            return False
        if hashlib.sha256(raw).hexdigest() != item.sha256:
            return False
        self.passed_over[printable(item.path)] = HEALED
        if pack_of(item.path) is None:
            with suppress(OSError, RanklakeError):  # what is newer than the judgement is new
                if isinstance(self.fs, SpoolFolder):
                    self.fs.renew(item.path)
                else:
                    self.fs.pipe_file(item.path, raw)
        return True

    def delete(self, path: str) -> int:
        """Delete a file; return how many went. One that cannot be deleted is told in `passed_over`."""
        try:
            self.fs.rm_file(path)
        except FileNotFoundError:  # another driver was faster
            return 0
        except (PermissionError, UnreadError):
            self.passed_over[printable(path)] = STAYS
            return 0
        return 1


def _unfit(path: str, info: Mapping[str, Any]) -> str | None:
    """Say why a listed file must not be named by a plan; None if it may."""
    if path.endswith(".tmp"):
        return None
    if info["type"] not in {"file", "directory"}:
        return DENIED if info["type"] == "denied" else IRREGULAR
    if printable(path) != path:
        return UNPRINTABLE
    return MEMBER_LIKE if pack_of(path) is not None else None


def _misread(told: pa.Table) -> dict[str, str]:
    """Return the digest that the bytes of each damaged file had, by path."""
    read = _read(told)
    damaged = read.filter(pc.is_valid(read["unreadable"]))
    return dict(zip(damaged["uri_name"].to_pylist(), damaged["sha256"].to_pylist(), strict=True))


def is_rewritten(item: Spooled, judged: Mapping[str, datetime]) -> bool:
    """Return whether a file was written after one at its place was found damaged (`judged`, by path)."""
    when = judged.get(item.path)
    return when is not None and item.modified is not None and item.modified > when


def identities(ingested: pa.Table) -> tuple[set[tuple[str, str]], set[tuple[str, int]]]:
    """Return (table, digest) and (path, bytes) of all that was read, of rows of the table ``segments``.

    A file whose bytes did not have the digest in its name stands there under the digest they had, so it is known by its
    place and size; so is one that was refused where it lay, of which a copy may lie where it belongs. One that nobody
    could read is not known: it may be read yet.
    """
    read = _read(ingested)
    vouched = read.filter(pc.invert(pc.fill_null(pc.starts_with(read["unreadable"], REFUSED), fill_value=False)))
    digests = set(zip(vouched["table"].to_pylist(), vouched["sha256"].to_pylist(), strict=True))
    places = set(zip(read["uri_name"].to_pylist(), read["bytes"].to_pylist(), strict=True))
    return digests, places


def _read(ingested: pa.Table) -> pa.Table:
    return ingested.filter(pc.invert(is_unread(ingested["unreadable"])))


def is_unread(reasons: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return which rows of the table ``segments`` tell of bytes that nobody read; no NULL."""
    return pc.is_in(reasons, value_set=_UNREAD)


_UNREAD: Final = pa.array(sorted(UNREAD), pa.string())
