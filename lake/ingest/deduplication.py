"""Deduplication: drops rows that came before, in the same task or with an earlier plan.

A row's key is (incarnation, segment, slot). All rows of a segment share the first two, so a repeat needs either one
slot twice in a segment, or another segment of the same slot file: one that was sealed twice, with different cuts. Both
are rare and both show without comparing keys, so most rows cost one look at whether slots rise.

Which slots each segment brought stands in the table ``segments``, as text: ``0..99 101 103..120``. That table is kept
for ever, so rows that retention, erasure or a check took away are known, too, and no other cut brings them back.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.segments.segment import SegmentName

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
    found: dict[SlotFile, Slots] = {}
    for row in segments:
        if row["seen"]:
            name = SegmentName.parse(row["path"].rpartition("/")[2])
            if (name.incarnation, name.segment) not in found:
                ranges = [np.arange(low, high + 1) for low, high in _ranges(row["seen"])]
                found[name.incarnation, name.segment] = np.concatenate(ranges)
    return found


@lru_cache(maxsize=64)
def _texts(slots: bytes) -> str:
    """Return 64-bit slots in any order as text; many a segment of a minute has the very slots of the one before."""
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
