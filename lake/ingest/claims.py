"""Claims: several segments of one slot file, and whether they agree.

A slot file that is sealed again gives the same values for the same slots, perhaps of more slots; only its times may
differ, by other anchors. So a segment with other values for the same slots is someone else's, not a repeat: what came
first stays stored, and the other is set aside whole (`ranklake.lake.store.writers.CONFLICT`). Of segments that come
together the signed go first, then the encrypted. Two signed segments are never compared, since their prefix's team
vouches for both: there, slots that came before are a repeat.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ranklake.lake.store.planned_segment import PlannedSegment

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.segment_reading import IncomingSegment

_NOT_COMPARED: Final = frozenset({"ts", "slot"})


@dataclass(frozen=True, slots=True)
class SlotClaim:
    """The rows of a segment, and whether it is signed."""

    rows: pa.Table
    signed: bool


def together(plan: Sequence[PlannedSegment]) -> Iterator[tuple[list[PlannedSegment], bool]]:
    """Yield rows of a plan in their order, and whether more than one segment claims their slot file.

    Those that contest one slot file come together, each other one alone.
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


def only_new(claim: SlotClaim, before: Sequence[SlotClaim]) -> SlotClaim:
    """Drop the slots that earlier claims have: a slot file may be sealed a thousand times."""
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
    return any(not _alike(_column(left, name), _column(right, name)) for name in sorted(names))


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


def _alike(mine: pa.Array | None, theirs: pa.Array | None) -> bool:
    if mine is None or theirs is None:
        return mine is theirs
    if mine.equals(theirs):
        return True
    if not pa.types.is_floating(mine.type) or not mine.is_null().equals(theirs.is_null()):
        return False
    mine, theirs = (array.fill_null(0).to_numpy(zero_copy_only=False) for array in (mine, theirs))
    return bool(np.array_equal(mine, theirs, equal_nan=True))
