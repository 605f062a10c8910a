"""The chain: each row holds the SHA-256 of the row before, and its own over all its facts."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC
from json.encoder import encode_basestring_ascii
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

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
        parts += [f"{', ' if parts else '{'}{json.dumps(name)}: ", _written(rows[name])]
    texts = pc.binary_join_element_wise(*parts, "}", "")
    return [hashlib.sha256(text).hexdigest() for text in texts.cast(pa.binary()).to_pylist()]


def _written(column: pa.ChunkedArray) -> pa.ChunkedArray:
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
        head_or_fault = _unbroken(batch, head) or _followed(batch, head)
        head, lost = head_or_fault.head, (*lost, *head_or_fault.lost)
        if head_or_fault.broken is not None:
            return Chain(head, head_or_fault.broken, lost)
    return Chain(head, None, lost)


def _unbroken(rows: pa.Table, head: Head) -> Chain | None:
    """Return the chain of rows that go on from a head without any fault or loss; None if they do not."""
    count = rows.num_rows
    if not rows["seq"].equals(pa.chunked_array([pa.array(range(head.rows, head.rows + count), pa.int64())])):
        return None
    own, before = rows["sha256"].to_pylist(), rows["prev_sha256"].to_pylist()
    if before != [head.sha256, *own[:-1]] or own != digests(rows):
        return None
    return Chain(Head(head.rows + count, own[-1]), None)


def _followed(rows: pa.Table, head: Head) -> Chain:
    """Follow a chain row by row, to where it breaks, and over rows that somebody said are lost."""
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
