"""Deduplication: drops rows that came before, in the same task or with an earlier plan; claims that contradict others.

A row's key is (incarnation, segment, slot). All rows of a segment share the first two, so a repeat needs either one
slot twice in a segment, or another segment of the same slot file: one that was sealed twice, with different cuts. Both
are rare and both show without comparing keys, so most rows cost one look at whether slots rise.

Which slots each segment brought stands in the table ``segments``, as text: ``0..99 101 103..120``. That table is kept
for ever, so rows that retention, erasure or a check took away are known, too, and no other cut brings them back.

A slot file that is sealed again gives the same values for the same slots, perhaps of more slots; only its times may
differ, by other anchors. So a segment with other values for the same slots is someone else's, not a repeat: what came
first stays stored, and the other is set aside whole (`ranklake.lake.store.writers.CONFLICT`). Of segments that come
together the signed go first, then the encrypted. Two signed segments are never compared, since their prefix's team
vouches for both: there, slots that came before are a repeat.
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
    """Return a mask of the rows whose key did not come before; None where that is all of them.

    Parameters
    ----------
    slots
        Of all rows, segment after segment; any number where it is NULL.
    keyed
        False where a part of the key is NULL: such a row repeats none. None where no key has a NULL.
    starts
        Where each segment begins; none is empty.
    owners
        Slot file of each segment.
    seen
        Slots of slot files that came before these rows.
    """
    rising = np.ones(len(slots), bool)
    np.greater(slots[1:], slots[:-1], out=rising[1:])
    rising[starts] = True
    ends = np.append(starts[1:], len(slots))
    parts: dict[SlotFile, list[int]] = {}
    for index, owner in enumerate(owners):
        parts.setdefault(owner, []).append(index)
    doubtful = [owner for owner, own in parts.items() if len(own) > 1 or owner in seen]
    if keyed is None and not doubtful and bool(rising.all()):
        return None
    suspects = set(doubtful)
    if keyed is not None or not rising.all():
        falls = np.logical_and.reduceat(rising, starts)
        suspects |= {owner for owner, rises in zip(owners, falls, strict=True) if not rises}
    mask = np.ones(len(slots), bool)
    for owner in suspects:
        places = np.concatenate([np.arange(starts[index], ends[index]) for index in parts[owner]])
        if keyed is not None:
            places = places[keyed[places]]
        order = np.argsort(slots[places], kind="stable")
        ordered = slots[places][order]
        again = np.zeros(len(places), bool)
        again[order[1:]] = ordered[1:] == ordered[:-1]
        if owner in seen:
            again |= np.isin(slots[places], seen[owner])
        mask[places] = ~again
    return None if bool(mask.all()) else mask


def slot_texts(slots: Slots, keyed: Mask | None, starts: Slots) -> list[str]:
    """Return as text which slots each segment has; parameters as for `first_of_key`."""
    ends = np.append(starts[1:], len(slots))
    follows = np.ones(len(slots), bool)
    np.equal(slots[1:] - 1, slots[:-1], out=follows[1:])
    follows[1:] &= slots[1:] > slots[:-1]  # a difference may overflow
    follows[starts] = True
    if keyed is not None:
        follows &= keyed
    plain = np.logical_and.reduceat(follows, starts)
    texts = [_text(low, high) for low, high in zip(slots[starts].tolist(), slots[ends - 1].tolist(), strict=True)]
    for index in np.flatnonzero(~plain).tolist():
        mine = slice(int(starts[index]), int(ends[index]))
        own = slots[mine] if keyed is None else slots[mine][keyed[mine]]
        texts[index] = _texts(own.astype(np.int64).tobytes())
    return texts


def joined_slots(texts: Iterable[str]) -> str:
    """Return as text the slots that are in any of some texts."""
    ranges = sorted(found for text in texts for found in _ranges(text))
    held: list[list[int]] = []
    for low, high in ranges:
        if held and low <= held[-1][1] + 1:
            held[-1][1] = max(held[-1][1], high)
        else:
            held.append([low, high])
    return " ".join(_text(low, high) for low, high in held)


def seen_before(segments: Iterable[PlannedSegment]) -> dict[SlotFile, Slots]:
    """Return the slots that earlier plans brought in of slot files that are here again.

    Parameters
    ----------
    segments
        Rows of a plan: path, and ``seen``, which is the same for all segments of a slot file.
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
    """Return 64-bit slots in any order as text; many a segment of a minute has the same slots of the one before."""
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
    """Yield rows of a plan in their order, and whether more than one segment claims their slot file.

    Rows that claim the same slot file come as one list, each other row alone.
    """
    places = [_slot_file_of(row) for row in plan]
    counts = Counter(places)
    held: list[PlannedSegment] = []
    for place, row in zip(places, plan, strict=True):
        if held and _slot_file_of(held[0]) != place:
            yield held, True
            held = []
        if place and (counts[place] > 1 or row.get("earlier")):
            held.append(row)
        else:
            yield [row], False
    if held:
        yield held, True


def _slot_file_of(row: PlannedSegment) -> str:
    """Name of a segment without rows and digest; empty for one that claims no slots."""
    return "" if row.get("refused") else row["path"].rpartition("/")[2].rsplit("~", 2)[0]


def precedence(segment: "IncomingSegment") -> int:
    """Rank of a sound segment among claims of one slot file: the lowest goes first."""
    if segment.signed_by is not None:
        return 0
    return 1 if segment.name is not None and segment.name.key_id else 2


def claim_of(segment: "IncomingSegment", target: "Contract") -> SlotClaim:
    """Take the rows of a sound segment."""
    parts = list(segment.parts(target))
    rows = pa.concat_tables(parts, promote_options="default") if parts else pa.table({"slot": pa.array([], pa.int32())})
    return SlotClaim(rows, segment.signed_by is not None)


def without_earlier(claim: SlotClaim, before: Sequence[SlotClaim]) -> SlotClaim:
    """Return a claim without the slots of earlier claims: a slot file may be sealed a thousand times."""
    slots = _slots(claim.rows)
    earlier = np.concatenate([slots[:0], *(_slots(other.rows) for other in before)])
    new = ~np.isin(slots, earlier)
    return claim if bool(new.all()) else SlotClaim(claim.rows.filter(pa.array(new)), claim.signed)


def disagree(claim: SlotClaim, other: SlotClaim) -> bool:
    """Whether two segments of one slot file hold different values for a slot."""
    if claim.signed and other.signed:
        return False
    mine, theirs = _slots(claim.rows), _slots(other.rows)
    slots, here, there = np.intersect1d(mine, theirs, return_indices=True)
    here, there = here[slots >= 0], there[slots >= 0]
    if not len(here):
        return False
    left, right = claim.rows.take(here), other.rows.take(there)
    names = {*left.column_names, *right.column_names} - _NOT_COMPARED
    return any(not _same_bytes(_column(left, name), _column(right, name)) for name in sorted(names))


def _slots(rows: pa.Table) -> Any:  # noqa: ANN401 - numpy's array
    """Slot of each row; -1 where there is none."""
    slots = rows["slot"]
    return slots.fill_null(-1).to_numpy().astype(np.int64)


def _column(rows: pa.Table, name: str) -> pa.Array | None:
    """Column without dictionary; None where it has no value."""
    if name not in rows.column_names:
        return None
    column = rows[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return None if column.null_count == len(column) else column


def _same_bytes(mine: pa.Array | None, theirs: pa.Array | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    if mine.equals(theirs):
        return True
    if not pa.types.is_floating(mine.type) or not mine.is_null().equals(theirs.is_null()):
        return False
    mine, theirs = (array.fill_null(0).to_numpy(zero_copy_only=False) for array in (mine, theirs))
    return bool(np.array_equal(mine, theirs, equal_nan=True))
