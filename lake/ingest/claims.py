"""Claims: several segments for one slot file, and whether they agree.

A slot file that was sealed twice, by whomever, gives the same values for the same slots, perhaps of more slots the
second time; only its times may be told anew, by other anchors. So a segment whose values differ from what came before
for the same slots is another's claim, and cannot be taken for a repeat: what came first stays stored, and the other is
set aside whole and told (`ranklake.lake.store.writers.CONFLICT`). Of claims that come together the signed are heard
first, then the encrypted. What two keys of one prefix signed is its team's own affair: there, slots that came are a
repeat.
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
    from ranklake.lake.ingest.incoming import IncomingSegment

_TOLD_ANEW: Final = frozenset({"ts", "slot"})
Row = PlannedSegment


@dataclass(frozen=True, slots=True)
class Said:
    """What a segment says of its slots."""

    rows: pa.Table
    signed: bool


def together(plan: Sequence[Row]) -> Iterator[tuple[list[Row], bool]]:
    """Yield rows of a plan in their order, and whether more than one segment claims their slot file.

    Those that contest one slot file come together, each other one alone.
    """
    places = [_slot_file_of(row) for row in plan]
    counts = Counter(places)
    held: list[Row] = []
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


def _slot_file_of(row: Row) -> str:
    """Return what the name of a segment says before rows and digest; nothing of one that claims no slots."""
    return "" if row["taken"] or row.get("refused") else row["path"].rpartition("/")[2].rsplit("~", 2)[0]


def precedence(segment: "IncomingSegment") -> int:
    """Return how early a sound segment is heard: the lower, the earlier."""
    if segment.signed_by is not None:
        return 0
    return 1 if segment.name is not None and segment.name.key_id else 2


def said_by(segment: "IncomingSegment", target: "Contract") -> Said:
    """Return what a sound segment says; its rows are taken from it."""
    parts = list(segment.parts(target))
    rows = pa.concat_tables(parts, promote_options="default") if parts else pa.table({"slot": pa.array([], pa.int32())})
    return Said(rows, segment.signed_by is not None)


def only_new(said: Said, before: Sequence[Said]) -> Said:
    """Return what a segment says of slots that others do not speak of: a slot file may be sealed a thousand times."""
    slots = _slots(said.rows)
    told = np.concatenate([slots[:0], *(_slots(one.rows) for one in before)])
    new = ~np.isin(slots, told)
    return said if bool(new.all()) else Said(said.rows.filter(pa.array(new)), said.signed)


def disagree(one: Said, other: Said) -> bool:
    """Say whether two segments of one slot file hold different values for a slot."""
    if one.signed and other.signed:
        return False
    mine, theirs = _slots(one.rows), _slots(other.rows)
    slots, here, there = np.intersect1d(mine, theirs, return_indices=True)
    here, there = here[slots >= 0], there[slots >= 0]
    if not len(here):
        return False
    left, right = one.rows.take(here), other.rows.take(there)
    names = {*left.column_names, *right.column_names} - _TOLD_ANEW
    return any(not _alike(_column(left, name), _column(right, name)) for name in sorted(names))


def _slots(rows: pa.Table) -> Any:  # noqa: ANN401 - numpy's array
    """Return the slots; -1 where there is none."""
    slots = rows["slot"]
    return slots.fill_null(-1).to_numpy().astype(np.int64)


def _column(rows: pa.Table, name: str) -> pa.Array | None:
    """Return a column, plain; None where it has no value."""
    if name not in rows.column_names:
        return None
    column = rows[name].combine_chunks()
    if pa.types.is_dictionary(column.type):
        column = column.cast(column.type.value_type)
    return None if column.null_count == len(column) else column


def _alike(one: pa.Array | None, other: pa.Array | None) -> bool:
    if one is None or other is None:
        return one is other
    if one.equals(other):
        return True
    if not pa.types.is_floating(one.type) or not one.is_null().equals(other.is_null()):
        return False
    mine, theirs = (array.fill_null(0).to_numpy(zero_copy_only=False) for array in (one, other))
    return bool(np.array_equal(mine, theirs, equal_nan=True))
