"""Heads of the audit trail, kept outside its table: how many rows it has had, and the digest of the last.

    <lake>/audit/heads/000000/00000000/0000000042.json     beside the table
    <witness>/000000/00000000/0000000042.json              where configured: who writes the lake cannot write there

Each is written put-if-absent after the rows that it reports, so a table that is behind a head has lost its tail. Who
dies in between leaves a table that is ahead: the next who writes writes the next head, and nothing is wrong. Heads hold
no facts of rows.

A folder has those of a hundred rows, one above it those of ten thousand: so the last is found by three short listings,
however long the trail is.
"""

import json
import re
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.chain import Head
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError, LostLakeError
from ranklake.lake.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "audit/heads"
_SHARD_ROWS: Final = 100
_SHARDS: Final = 100
_GROUP_ROWS: Final = _SHARDS * _SHARD_ROWS
_NAME: Final = re.compile(r"\d{10}\.json")
_SHARD: Final = re.compile(r"\d{8}")
_GROUP: Final = re.compile(r"\d{6}")
_MOST_ROWS: Final = 10**10
_HINT: Final = "compare it with a copy, or with 'ranklake audit show'; a damaged record may be removed"


class HeadError(RanklakeError):
    """A head record that cannot be read, or that another was written in the place of."""


class HeadRecords:
    """Head records at a place.

    Parameters
    ----------
    place
        Where they are: a lake, or a witness opened like one.
    folder
        In it.
    """

    def __init__(self, place: Store, folder: str = "") -> None:
        self._place, self._folder = place, folder

    @property
    def where(self) -> str:
        """For people."""
        return f"{self._place.uri}/{self._folder}".rstrip("/")

    def last(self) -> Head:
        """Return the head of the most rows. Raises `HeadError` and what the store raises."""
        return self.before(_MOST_ROWS)

    def before(self, rows: int) -> Head:
        """Return the head of the most rows, of those of at most so many. Raises likewise."""
        path = self._path_of_last(rows)
        return self._read(path) if path else Head()

    def _path_of_last(self, rows: int) -> str:
        """Return the path of the head of the most rows, of those of at most so many; empty for none."""
        for group in self._newest_first("", _GROUP, rows // _GROUP_ROWS):
            for shard in self._newest_first(group, _SHARD, rows // _SHARD_ROWS):
                if not _is_in(shard, group, _SHARDS):
                    continue
                names = (name for name in self._names(f"{group}/{shard}") if _NAME.fullmatch(name))
                heads = [name for name in names if int(name[:10]) <= rows and _is_in(name[:10], shard, _SHARD_ROWS)]
                if heads:
                    return f"{group}/{shard}/{max(heads)}"
        return ""

    def _newest_first(self, folder: str, pattern: re.Pattern[str], most: int) -> list[str]:
        """Return the numbered folders in one that are numbered at most so, the greatest first."""
        return sorted(
            (name for name in self._names(folder) if pattern.fullmatch(name) and int(name) <= most), reverse=True
        )

    def note(self, head: Head) -> None:
        """Write a head down; again changes nothing. Raises `HeadError` where another stands there."""
        if not head.rows:
            return
        self._put(f"{head.rows // _GROUP_ROWS:06d}/{head.rows // _SHARD_ROWS:08d}/{head.rows:010d}.json", head)

    def _put(self, name: str, head: Head) -> None:
        raw = json.dumps({"rows": head.rows, "sha256": head.sha256}).encode()
        if not self._place.put_if_absent(self._inside(name), raw) and self._read(name) != head:
            raise HeadError("another head is written down there", where=f"{self.where}/{name}", hint=_HINT)

    def refuses(self) -> str:
        """Return why the last head cannot be written there once more; empty where it can, or where there is none.

        It is there already, so nothing changes: a store looks at a writer's rights first. Raises what `last` raises.
        """
        path = self._path_of_last(_MOST_ROWS)
        if not path:
            return ""
        head = self._read(path)
        try:
            self._put(path, head)
        except LakeError as error:
            return error.what
        return ""

    def _inside(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _names(self, shard: str) -> "Iterator[str]":
        folder = self._place.path(*(part for part in (self._folder, shard) if part))
        try:
            names = self._place.fs.ls(folder, detail=False)
        except FileNotFoundError:
            return
        for path in names:
            yield path.rstrip("/").rpartition("/")[2]

    def _read(self, name: str) -> Head:
        where = self._place.path(self._inside(name))
        try:
            facts = json.loads(self._place.fs.cat_file(where))
            head = Head(int(facts["rows"]), str(facts["sha256"]))
        except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
            raise HeadError("the head record cannot be read", where=where, hint=_HINT) from error
        if not name.endswith(f"{head.rows:010d}.json"):
            raise HeadError("the head record is another's", where=where, hint=_HINT)
        return head


def _is_in(number: str, folder: str, size: int) -> bool:
    """Whether a folder is that of a number: elsewhere a copy of an old head would hide those after it."""
    return int(number) // size == int(folder)


def head_records(lake: Lake) -> list[HeadRecords]:
    """Return where a lake's heads are: beside the table, then the witness, where one is configured."""
    beside = HeadRecords(lake.store, FOLDER)
    witness = lake.config.audit.witness
    return [beside, HeadRecords(Store.at(witness, lake.store.storage))] if witness else [beside]


def refuse_witnessed(lake_uri: str, witness: str, storage: dict[str, str]) -> None:
    """Raise `LostLakeError` where a witness knows a lake's audit trail; `HeadError`, and what the store raises."""
    rows = HeadRecords(Store.at(witness, storage)).last().rows
    if rows:
        raise LostLakeError(f"there is no lake, and the witness knows {rows:,} rows of its audit trail", lake_uri)
