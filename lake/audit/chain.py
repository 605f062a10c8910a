"""The chain of the audit log, and its heads. Each row has the SHA-256 of the row before, and of its own contents.

A head is the number of rows of the audit log and the digest of the last row:

    <lake>/audit/heads/000000/00000000/0000000042.json     next to the table
    <witness>/000000/00000000/0000000042.json              if configured: a place where writers of the lake cannot write

A head is written after its rows, and never replaced. So if the table has fewer rows than a head, rows at the end of the
table were removed. If a writer dies before it writes the head, the table has more rows than the head. This is valid,
and the next writer writes a new head. Heads contain no other facts of rows.

A folder has the heads of a hundred rows, and its parent folder those of ten thousand. So three short listings find the
last head of a trail of any length.
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
"""Action of a row that continues the chain after lost rows; a person has acknowledged the loss."""

_SLICE: Final = 100_000
"""Rows that are converted to text at a time."""


@dataclass(frozen=True, slots=True)
class Head:
    """Number of rows of a chain, and the digest of its last row; 0 and `GENESIS` for an empty chain."""

    rows: int = 0
    sha256: str = GENESIS


@dataclass(frozen=True, slots=True)
class Chain:
    """Result of verifying a chain.

    Attributes
    ----------
    head
        Head after the last valid row.
    broken
        Number of the first row that is missing, repeated or altered; None if the chain is intact.
    lost
        Ranges (first and last number) of missing rows that a row of action `RESUME` acknowledges.
    """

    head: Head
    broken: int | None
    lost: tuple[tuple[int, int], ...] = ()


def digest(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row without its own digest, as JSON with sorted keys and times in ISO 8601, UTC."""
    facts = {name: value for name, value in row.items() if name != "sha256"}
    facts["date"] = row["date"].isoformat()
    facts["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def digests(rows: pa.Table) -> list[str]:
    """Return the `digest` of each row. The JSON text is built column by column, which takes an eighth of the time."""
    names = sorted(name for name in rows.column_names if name != "sha256")
    parts: list[Any] = []
    for name in names:
        parts += [f"{', ' if parts else '{'}{json.dumps(name)}: ", _json_values(rows[name])]
    texts = pc.binary_join_element_wise(*parts, "}", "")
    return [hashlib.sha256(text).hexdigest() for text in texts.cast(pa.binary()).to_pylist()]


def _json_values(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column's values as JSON text, exactly like `json.dumps`."""
    kind = column.type
    if pa.types.is_integer(kind):
        return pc.fill_null(column.cast(pa.string()), "null")
    if pa.types.is_timestamp(kind):
        naive = column.cast(pa.timestamp("us", kind.tz)).cast(pa.timestamp("us"))
        dates = pc.replace_substring(naive.cast(pa.string()), " ", "T")
        column = pc.binary_join_element_wise(dates, "+00:00", "")
    elif pa.types.is_date(kind):
        column = column.cast(pa.string())
    needs_escape = pc.fill_null(pc.match_substring_regex(column, "[^ -~]"), fill_value=False)
    printable = pc.replace_substring(pc.replace_substring(column, "\\", "\\\\"), '"', '\\"')
    quoted = pc.fill_null(pc.binary_join_element_wise('"', printable, '"', ""), "null")
    if not pc.any(needs_escape).as_py():
        return quoted
    escaped = pa.array([encode_basestring_ascii(text) for text in column.filter(needs_escape).to_pylist()], pa.string())
    return pc.replace_with_mask(quoted.combine_chunks(), needs_escape.combine_chunks(), escaped)


def follow_table(rows: pa.Table, head: Head | None = None) -> Chain:
    """Verify the rows of a chain after a head, by default all.

    Parameters
    ----------
    rows
        Rows in the order of their numbers.
    """
    head = Head() if head is None else head
    lost: tuple[tuple[int, int], ...] = ()
    for start in range(0, rows.num_rows, _SLICE):
        batch = rows.slice(start, _SLICE).combine_chunks()
        chain = _unbroken_chain(batch, head) or _follow_chain(batch, head)
        head, lost = chain.head, (*lost, *chain.lost)
        if chain.broken is not None:
            return Chain(head, chain.broken, lost)
    return Chain(head, None, lost)


def _unbroken_chain(rows: pa.Table, head: Head) -> Chain | None:
    """Return the chain if the rows continue a head without fault or loss; else None. Faster than `_follow_chain`."""
    count = rows.num_rows
    if not rows["seq"].equals(pa.chunked_array([pa.array(range(head.rows, head.rows + count), pa.int64())])):
        return None
    stored, previous = rows["sha256"].to_pylist(), rows["prev_sha256"].to_pylist()
    if previous != [head.sha256, *stored[:-1]] or stored != digests(rows):
        return None
    return Chain(Head(head.rows + count, stored[-1]), None)


def _follow_chain(rows: pa.Table, head: Head) -> Chain:
    """Verify a chain row by row up to its first fault, and collect acknowledged losses."""
    lost: list[tuple[int, int]] = []
    actual_digests = digests(rows)
    for actual, row in zip(actual_digests, rows.to_pylist(), strict=True):
        number, previous = row["seq"], head.sha256
        if number > head.rows and _resumes(row, head):
            lost.append((head.rows, number - 1))
            previous = row["prev_sha256"]
        elif number != head.rows:
            return Chain(head, head.rows, tuple(lost))
        if row["prev_sha256"] != previous or row["sha256"] != actual:
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
    """A head record that cannot be read, or that differs from the one to be written."""


class HeadRecords:
    """Head records in a store.

    Parameters
    ----------
    place
        Store of the lake or of the witness.
    folder
        Folder of the head records; empty for the store's root.
    """

    def __init__(self, place: Store, folder: str = "") -> None:
        self._place, self._folder = place, folder

    @property
    def where(self) -> str:
        """URI of the folder, for messages."""
        return f"{self._place.uri}/{self._folder}".rstrip("/")

    def last(self) -> Head:
        """Return the last head. Raises `HeadError` and what the store raises."""
        return self.before(_MOST_ROWS)

    def before(self, rows: int) -> Head:
        """Return the last head with at most `rows` rows. Raises `HeadError` and what the store raises."""
        path = self._path_of_last(rows)
        return self._read(path) if path else Head()

    def _path_of_last(self, rows: int) -> str:
        """Return the path of the last head with at most `rows` rows; empty if there is none."""
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
        """Return the names of numbered folders up to the number `most`, in descending order."""
        return sorted(
            (name for name in self._names(folder) if pattern.fullmatch(name) and int(name) <= most), reverse=True
        )

    def note(self, head: Head) -> None:
        """Write a head. Does nothing if it exists; raises `HeadError` if a different one exists."""
        if not head.rows:
            return
        self._put(f"{head.rows // _GROUP_ROWS:06d}/{head.rows // _SHARD_ROWS:08d}/{head.rows:010d}.json", head)

    def _put(self, name: str, head: Head) -> None:
        raw = json.dumps({"rows": head.rows, "sha256": head.sha256}).encode()
        if not self._place.put_if_absent(self._path_of(name), raw) and self._read(name) != head:
            raise HeadError("another head is written down there", where=f"{self.where}/{name}", hint=_HINT)

    def write_obstacle(self) -> str:
        """Check whether heads can be written; return the error, or an empty text.

        The last head is written again, which does not change it, but fails if the store denies writing. Without a head,
        nothing is checked. Raises what `last` raises.
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
    """Whether a number belongs into a folder. A copy of an old head in another folder must not hide later heads."""
    return int(number) // size == int(folder)


def head_records(lake: Lake) -> list[HeadRecords]:
    """Return the head records of a lake: those in the lake, then those of the witness, if one is configured."""
    own = HeadRecords(lake.store, FOLDER)
    witness = lake.config.audit.witness
    return [own, HeadRecords(Store.at(witness, lake.store.storage))] if witness else [own]


def refuse_witnessed(lake_uri: str, witness: str, storage: dict[str, str]) -> None:
    """Raise `LostLakeError` if the lake is missing and a witness has heads of its audit log.

    Also raises `HeadError` and what the store raises.
    """
    rows = HeadRecords(Store.at(witness, storage)).last().rows
    if rows:
        raise LostLakeError(f"there is no lake, and the witness knows {rows:,} rows of its audit log", lake_uri)
