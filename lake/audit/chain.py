"""The chain: each row holds the SHA-256 of the row before, and its own over all its facts; and its heads.

A head tells how many rows the audit trail has had, and the digest of the last:

    <lake>/audit/heads/000000/00000000/0000000042.json     beside the table
    <witness>/000000/00000000/0000000042.json              where configured: who writes the lake cannot write there

Each is written put-if-absent after the rows that it tells of, so a table that is behind a head has lost its tail. Who
dies in between leaves a table that is ahead: the next who writes writes the next head, and nothing is wrong. Heads hold
no facts of rows.

A folder has those of a hundred rows, one above it those of ten thousand: so the last is found by three short listings,
however long the trail is.
"""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from json.encoder import encode_basestring_ascii
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import LakeError, LostLakeError
from ranklake.lake.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Iterator

GENESIS: Final = "0" * 64
RESUME: Final = "audit.resume"
"""Action of a row that goes on behind rows that are lost: somebody looked, and said so."""

_SLICE: Final = 100_000
"""Rows whose text is held at a time."""


@dataclass(frozen=True, slots=True)
class Head:
    """How long a chain is, and the digest of its last row: `rows` 0 and `GENESIS` before the first."""

    rows: int = 0
    sha256: str = GENESIS


@dataclass(frozen=True, slots=True)
class Chain:
    """Result of following a chain.

    Attributes
    ----------
    head
        Its end, as far as it holds.
    broken
        Number of the first row that is missing, repeated or altered; None if there is none.
    lost
        First and last number of rows that are missing, and that a row of action `RESUME` says are.
    """

    head: Head
    broken: int | None
    lost: tuple[tuple[int, int], ...] = ()


def digest(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row's facts, all but its own digest, as JSON with sorted keys; times in ISO 8601, UTC."""
    facts = {name: value for name, value in row.items() if name != "sha256"}
    facts["date"] = row["date"].isoformat()
    facts["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digests(rows: pa.Table) -> list[str]:
    """Return the `digest` of each row: the same, but the text is made of whole columns, at an eighth of the cost."""
    names = sorted(name for name in rows.column_names if name != "sha256")
    parts: list[Any] = []
    for name in names:
        parts += [f"{', ' if parts else '{'}{json.dumps(name)}: ", _json_values(rows[name])]
    texts = pc.binary_join_element_wise(*parts, "}", "")
    return [hashlib.sha256(text).hexdigest() for text in texts.cast(pa.binary()).to_pylist()]


def _json_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column's values as JSON writes them."""
    kind = column.type
    if pa.types.is_integer(kind):
        return pc.fill_null(column.cast(pa.string()), "null")
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.timestamp("us", kind.tz)).cast(pa.timestamp("us"))
        dates = pc.replace_substring(naive.cast(pa.string()), " ", "T")
        column = pc.binary_join_element_wise(dates, "+00:00", "")
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    odd = pc.fill_null(pc.match_substring_regex(column, "[^ -~]"), fill_value=False)
    plain = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    quoted = pc.fill_null(pc.binary_join_element_wise('"', plain, '"', ""), "null")
    if not pc.any(odd).as_py():
        return quoted
    escaped = pa.array([encode_basestring_ascii(text) for text in column.filter(odd).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted.combine_chunks(), odd.combine_chunks(), escaped)


def follow_table(rows: pa.Table, head: Head | None = None) -> Chain:
    """Follow a chain on from a head, by default from its first row; a table with rows in the order of their numbers."""
    head = Head() if head is None else head
    lost: tuple[tuple[int, int], ...] = ()
    for start in range(0, rows.num_rows, _SLICE):
        batch = rows.slice(start, _SLICE).combine_chunks()
        head_or_fault = _unbroken_chain(batch, head) or _follow_chain(batch, head)
        head, lost = head_or_fault.head, (*lost, *head_or_fault.lost)
        if head_or_fault.broken is not None:
            return Chain(head, head_or_fault.broken, lost)
    return Chain(head, None, lost)


def _unbroken_chain(rows: pa.Table, head: Head) -> Chain | None:
    """Return the chain of rows that go on from a head without any fault or loss; None if they do not."""
    count = rows.num_rows
    if not rows["seq"].equals(pa.chunked_array([pa.array(range(head.rows, head.rows + count), pa.int64())])):
        return None
    own, before = rows["sha256"].to_pylist(), rows["prev_sha256"].to_pylist()
    if before != [head.sha256, *own[:-1]] or own != digests(rows):
        return None
    return Chain(Head(head.rows + count, own[-1]), None)


def _follow_chain(rows: pa.Table, head: Head) -> Chain:
    """Follow a chain row by row to where it breaks, skipping rows declared lost."""
    lost: list[tuple[int, int]] = []
    reckoned = digests(rows)
    for place, row in enumerate(rows.to_pylist()):
        number, before = row["seq"], head.sha256
        if number > head.rows and _resumes(row, head):
            lost.append((head.rows, number - 1))
            before = row["prev_sha256"]
        elif number != head.rows:
            return Chain(head, head.rows, tuple(lost))
        if row["prev_sha256"] != before or row["sha256"] != reckoned[place]:
            return Chain(head, number, tuple(lost))
        head = Head(number + 1, row["sha256"])
    return Chain(head, None, tuple(lost))


def _resumes(row: Mapping[str, Any], head: Head) -> bool:
    if row["action"] != RESUME:
        return False
    try:
        details = json.loads(row["details"] or "null")
    except ValueError:
        return False
    return isinstance(details, dict) and details.get("rows_left") == head.rows


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
        if not self._place.put_if_absent(self._path_of(name), raw) and self._read(name) != head:
            raise HeadError("another head is written down there", where=f"{self.where}/{name}", hint=_HINT)

    def write_obstacle(self) -> str:
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

    def _path_of(self, name: str) -> str:
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
        where = self._place.path(self._path_of(name))
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
