"""Deduplication: finds repeated rows, and segments that contradict each other.

**Repeated rows.** A row's key is (incarnation, segment, slot). All rows of a segment have the same incarnation and
segment number. So a row can only be repeated within its segment, or in another segment of the same slot file, which
exists if the slot file was sealed more than once. Both cases are rare. For most rows it is enough to check that slots
increase.

The table ``segments`` records the slots of each segment as text, such as ``0..99 101 103..120``. This table is never
deleted. So rows that retention, an erasure or a check removed stay known, and no other segment stores them again.

**Contradictions.** A slot file that is sealed again has the same values for the same slots, and perhaps more slots.
Only its times may differ, because of other clock anchors. So a segment with other values for the same slots is from
another writer. The segment that was ingested first is kept, and the other one is set aside completely
(`ranklake.lake.store.writers.CONFLICT`). Among segments of one plan, signed ones go first, then encrypted ones. Two
signed segments are not compared, since the team of their prefix signed both: slots that occur again are repeats.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.segments.segment import SegmentName

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.segment_reading import IncomingSegment

SlotFile = tuple[int, int]  # incarnation, segment
Slots = npt.NDArray[np.integer[Any]]
Mask = npt.NDArray[np.bool_]

KEY: Final = ("incarnation", "segment", "slot")
_RANGE: Final = re.compile(r"(-?\d+)(?:\.\.(-?\d+))?")


def first_of_key(
    slots: Slots, keyed: Mask | None, starts: Slots, owners: Sequence[SlotFile], seen: Mapping[SlotFile, Slots]
) -> Mask | None:
    """Return a mask of the rows with a key that no earlier row has; None if no row is repeated.

    Parameters
    ----------
    slots
        Slots of all rows, segment after segment; any number where the slot is NULL.
    keyed
        False for rows with a NULL in the key, which are never repeats. None if no key has a NULL.
    starts
        Index of the first row of each segment. No segment is empty.
    owners
        Slot file of each segment.
    seen
        Slots of earlier rows, by slot file.
    """
    increases = np.ones(len(slots), bool)
    np.greater(slots[1:], slots[:-1], out=increases[1:])
    increases[starts] = True
    ends = np.append(starts[1:], len(slots))
    segments_of: dict[SlotFile, list[int]] = {}
    for index, owner in enumerate(owners):
        segments_of.setdefault(owner, []).append(index)
    repeated_files = [owner for owner, segments in segments_of.items() if len(segments) > 1 or owner in seen]
    if keyed is None and not repeated_files and bool(increases.all()):
        return None
    to_check = set(repeated_files)
    if keyed is not None or not increases.all():
        all_increase = np.logical_and.reduceat(increases, starts)
        to_check |= {owner for owner, is_increasing in zip(owners, all_increase, strict=True) if not is_increasing}
    mask = np.ones(len(slots), bool)
    for owner in to_check:
        rows = np.concatenate([np.arange(starts[index], ends[index]) for index in segments_of[owner]])
        if keyed is not None:
            rows = rows[keyed[rows]]
        order = np.argsort(slots[rows], kind="stable")
        ordered = slots[rows][order]
        is_repeat = np.zeros(len(rows), bool)
        is_repeat[order[1:]] = ordered[1:] == ordered[:-1]
        if owner in seen:
            is_repeat |= np.isin(slots[rows], seen[owner])
        mask[rows] = ~is_repeat
    return None if bool(mask.all()) else mask


def slot_texts(slots: Slots, keyed: Mask | None, starts: Slots) -> list[str]:
    """Return the slots of each segment as text. The parameters are those of `first_of_key`."""
    ends = np.append(starts[1:], len(slots))
    is_next = np.ones(len(slots), bool)
    np.equal(slots[1:] - 1, slots[:-1], out=is_next[1:])
    is_next[1:] &= slots[1:] > slots[:-1]  # the subtraction may overflow
    is_next[starts] = True
    if keyed is not None:
        is_next &= keyed
    is_one_range = np.logical_and.reduceat(is_next, starts)
    texts = [_text(low, high) for low, high in zip(slots[starts].tolist(), slots[ends - 1].tolist(), strict=True)]
    for index in np.flatnonzero(~is_one_range).tolist():
        rows = slice(int(starts[index]), int(ends[index]))
        segment_slots = slots[rows] if keyed is None else slots[rows][keyed[rows]]
        texts[index] = _texts(segment_slots.astype(np.int64).tobytes())
    return texts


def joined_slots(texts: Iterable[str]) -> str:
    """Return the union of the slots of some texts, as text."""
    ranges = sorted(slot_range for text in texts for slot_range in _ranges(text))
    joined: list[list[int]] = []
    for low, high in ranges:
        if joined and low <= joined[-1][1] + 1:
            joined[-1][1] = max(joined[-1][1], high)
        else:
            joined.append([low, high])
    return " ".join(_text(low, high) for low, high in joined)


def seen_before(segments: Iterable[PlannedSegment]) -> dict[SlotFile, Slots]:
    """Return the slots that earlier plans ingested, by slot file, for the slot files of a plan.

    Parameters
    ----------
    segments
        Entries of a plan. ``seen`` is the same for all segments of a slot file.
    """
    slots: dict[SlotFile, Slots] = {}
    for row in segments:
        if row["seen"]:
            name = SegmentName.parse(row["path"].rpartition("/")[2])
            if (name.incarnation, name.segment) not in slots:
                ranges = [np.arange(low, high + 1) for low, high in _ranges(row["seen"])]
                slots[name.incarnation, name.segment] = np.concatenate(ranges)
    return slots


@lru_cache(maxsize=64)
def _texts(slots: bytes) -> str:
    """Return 64-bit slots, in any order, as text. Results are cached: consecutive segments often have equal slots."""
    ordered = np.sort(np.frombuffer(slots, np.int64))
    if not len(ordered):
        return ""
    breaks = np.flatnonzero(np.diff(ordered) > 1)
    lows, highs = ordered[np.append(0, breaks + 1)], ordered[np.append(breaks, -1)]
    return " ".join(_text(low, high) for low, high in zip(lows.tolist(), highs.tolist(), strict=True))


def _text(low: int, high: int) -> str:
    return f"{low}..{high}" if high > low else f"{low}"


def _ranges(text: str) -> list[tuple[int, int]]:
    return [(int(low), int(high or low)) for low, high in _RANGE.findall(text)]


_NOT_COMPARED: Final = frozenset({"ts", "slot"})


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The rows of a segment, and whether it is signed."""

    rows: pa.Table
    signed: bool


def by_slot_file(plan: Sequence[PlannedSegment]) -> Iterator[tuple[list[PlannedSegment], bool]]:
    """Yield the entries of a plan, in its order, as lists, and whether a list's slot file has several segments.

    Entries of a slot file with several segments, in this plan or an earlier one, are one list. Any other entry is a
    list of its own.
    """
    slot_files = [_slot_file_of(row) for row in plan]
    counts = Counter(slot_files)
    group: list[PlannedSegment] = []
    for slot_file, row in zip(slot_files, plan, strict=True):
        if group and _slot_file_of(group[0]) != slot_file:
            yield group, True
            group = []
        if slot_file and (counts[slot_file] > 1 or row.get("earlier")):
            group.append(row)
        else:
            yield [row], False
    if group:
        yield group, True


def _slot_file_of(row: PlannedSegment) -> str:
    """Return a segment's name without rows and digest; empty for a refused segment."""
    return "" if row.get("refused") else row["path"].rpartition("/")[2].rsplit("~", 2)[0]


def precedence(segment: "IncomingSegment") -> int:
    """Return the sort key of a sound segment among those of its slot file; the lowest is ingested first."""
    if segment.signed_by is not None:
        return 0
    return 1 if segment.name is not None and segment.name.key_id else 2


def claim_of(segment: "IncomingSegment", target: "Contract") -> SlotClaim:
    """Read all rows of a sound segment."""
    parts = list(segment.parts(target))
    rows = pa.concat_tables(parts, promote_options="default") if parts else pa.table({"slot": pa.array([], pa.int32())})
    return SlotClaim(rows, segment.signed_by is not None)


def without_earlier(claim: SlotClaim, before: Sequence[SlotClaim]) -> SlotClaim:
    """Drop the slots of earlier claims, which saves memory when a slot file was sealed many times."""
    slots = _slots(claim.rows)
    earlier = np.concatenate([slots[:0], *(_slots(other.rows) for other in before)])
    new = ~np.isin(slots, earlier)
    return claim if bool(new.all()) else SlotClaim(claim.rows.filter(pa.array(new)), claim.signed)


def disagree(claim: SlotClaim, other: SlotClaim) -> bool:
    """Whether two segments of one slot file have different values for a slot; False if both are signed."""
    if claim.signed and other.signed:
        return False
    slots, left_rows, right_rows = np.intersect1d(_slots(claim.rows), _slots(other.rows), return_indices=True)
    left_rows, right_rows = left_rows[slots >= 0], right_rows[slots >= 0]
    if not len(left_rows):
        return False
    left, right = claim.rows.take(left_rows), other.rows.take(right_rows)
    names = {*left.column_names, *right.column_names} - _NOT_COMPARED
    return any(not _are_equal(_column(left, name), _column(right, name)) for name in sorted(names))


def _slots(rows: pa.Table) -> Any:  # noqa: ANN401 - numpy's array
    """Return the slot of each row; -1 for NULL."""
    slots = rows["slot"]
    return slots.fill_null(-1).to_numpy().astype(np.int64)


def _column(rows: pa.Table, name: str) -> pa.Array | None:
    """Return a column without dictionary encoding; None if it has no value."""
    if name not in rows.column_names:
        return None
    column = rows[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return None if column.null_count == len(column) else column


def _are_equal(left: pa.Array | None, right: pa.Array | None) -> bool:
    """Whether two columns have equal values; NaN equals NaN."""
    if left is None or right is None:
        return left is right
    if left.equals(right):
        return True
    if not pa.types.is_floating(left.type) or not left.is_null().equals(right.is_null()):
        return False
    left, right = (array.fill_null(0).to_numpy(zero_copy_only=False) for array in (left, right))
    return bool(np.array_equal(left, right, equal_nan=True))
