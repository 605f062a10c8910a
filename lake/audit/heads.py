"""Heads of the audit trail, kept outside its table: how many rows it has had, and the digest of the last.

    <lake>/audit/heads/0000000/0000000042.json     beside the table
    <witness>/0000000/0000000042.json              where configured: a place that who writes the lake cannot write

Each is written put-if-absent after the rows that it tells of, so a table that is behind a head has lost its tail. Who
dies in between leaves a table that is ahead: the next who writes writes the next head, and nothing is wrong. Heads hold
no facts of rows.
"""

import json
import re
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.chain import Head
from ranklake.lake.storage.reachability import LakeError
from ranklake.lake.storage.store import Lake

if TYPE_CHECKING:
    from collections.abc import Iterator

FOLDER: Final = "audit/heads"
SHARD: Final = 100
"""Heads in a folder: the last is found by listing two short folders, however long the trail is."""
_NAME: Final = re.compile(r"(?P<rows>\d{10})\.json")
_SHARD: Final = re.compile(r"\d{8}")
_MEND: Final = "compare it with a copy, or with 'ranklake audit show'; a damaged record may be removed"


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

    def __init__(self, place: Lake, folder: str = "") -> None:
        self._place, self._folder = place, folder

    @property
    def where(self) -> str:
        """For people."""
        return f"{self._place.uri}/{self._folder}".rstrip("/")

    def last(self) -> Head:
        """Return the head of the most rows. Raises `HeadError` and what the store raises."""
        for shard in sorted((name for name in self._names("") if _SHARD.fullmatch(name)), reverse=True):
            names = [name for name in self._names(shard) if _NAME.fullmatch(name)]
            if names:
                return self._read(f"{shard}/{max(names)}")
        return Head()

    def before(self, rows: int) -> Head:
        """Return the head of the most rows, of those of at most so many. Raises likewise."""
        shards = (name for name in self._names("") if _SHARD.fullmatch(name) and int(name) <= rows // SHARD)
        for shard in sorted(shards, reverse=True):
            names = [name for name in self._names(shard) if _NAME.fullmatch(name) and int(name[:10]) <= rows]
            if names:
                return self._read(f"{shard}/{max(names)}")
        return Head()

    def note(self, head: Head) -> None:
        """Write a head down; again changes nothing. Raises `HeadError` where another stands there."""
        if not head.rows:
            return
        name = f"{head.rows // SHARD:08d}/{head.rows:010d}.json"
        raw = json.dumps({"rows": head.rows, "sha256": head.sha256}).encode()
        if not self._place.put_if_absent(self._inside(name), raw) and self._read(name) != head:
            raise HeadError("another head is written down there", where=f"{self.where}/{name}", mend=_MEND)

    def refuses(self) -> str:
        """Return why the last head cannot be written there once more; empty where it can, or where there is none.

        It is there already, so nothing changes: a store looks at a writer's rights first. Raises what `last` raises.
        """
        try:
            self.note(self.last())
        except LakeError as error:
            return error.what
        return ""

    def _inside(self, name: str) -> str:
        return "/".join(part for part in (self._folder, name) if part)

    def _names(self, shard: str) -> "Iterator[str]":
        folder = self._place.path(*(part for part in (self._folder, shard) if part))
        try:
            found = self._place.fs.ls(folder, detail=False)
        except FileNotFoundError:
            return
        for path in found:
            yield path.rstrip("/").rpartition("/")[2]

    def _read(self, name: str) -> Head:
        where = self._place.path(self._inside(name))
        try:
            facts = json.loads(self._place.fs.cat_file(where))
            head = Head(int(facts["rows"]), str(facts["sha256"]))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise HeadError("the head record cannot be read", where=where, mend=_MEND) from error
        if not name.endswith(f"{head.rows:010d}.json"):
            raise HeadError("the head record is another's", where=where, mend=_MEND)
        return head


def head_records(lake: Lake) -> list[HeadRecords]:
    """Return where a lake's heads are: beside the table, then the witness, where one is configured."""
    beside = HeadRecords(lake, FOLDER)
    witness = lake.config.audit.witness
    return [beside, HeadRecords(Lake.place(witness, lake.storage))] if witness else [beside]
