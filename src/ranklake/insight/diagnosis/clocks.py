"""Clock offsets between a run's nodes, estimated from the collectives that all ranks leave together.

    a node's clock      ── work ──┤ all_reduce ├          it says that the collective ended at e
    another's, ahead        ── work ─┤ all_reduce ├       says e + 3 ms, every time: its clock is 3 ms ahead

Ranks of a node share a clock. Of each collective and clock the median end counts, of these their distance from the
median of all clocks, and of all collectives the median distance. A few ranks or collectives that end late move neither.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.diagnosis.operations import OPERATIONS
from ranklake.insight.diagnosis.spans import Ints, integers

MIN_COLLECTIVES: Final = 10
"""Fewer say nothing about a clock."""
_OF_ALL: Final = "optimizer-clip-main-grad"
"""The operation of a pipeline that all of its ranks leave together."""


@dataclass(frozen=True)
class Offsets:
    """What the clocks show too much.

    Parameters
    ----------
    offset_ns
        By clock: subtract it from the times of its ranks. Their median is 0.
    spread_ns
        By clock: robust deviation of what single collectives say.
    collectives
        How many all ranks left together.
    """

    offset_ns: Mapping[int, float]
    spread_ns: Mapping[int, float]
    collectives: int


def clock_offsets(rows: pa.Table, clock_of: Mapping[int, int]) -> Offsets | None:
    """Return the offsets of clocks, None if fewer than `MIN_COLLECTIVES` collectives tell them.

    Parameters
    ----------
    rows
        Spans of an attempt, `ranklake.insight.diagnosis.spans.COLUMNS`.
    clock_of
        The clock of each rank.
    """
    ends = _ends(rows)
    if ends is None or len(ends[1]) < MIN_COLLECTIVES:
        return None
    ranks, at = ends
    clocks = np.array([clock_of[int(rank)] for rank in ranks])
    names = np.unique(clocks)
    shown = np.stack([np.median(at[:, clocks == clock], axis=1) for clock in names], axis=1)
    apart = shown - np.median(shown, axis=1, keepdims=True)
    offset = np.median(apart, axis=0)
    spread = 1.4826 * np.median(np.abs(apart - offset), axis=0)
    offset -= np.median(offset)
    return Offsets(
        offset_ns={int(clock): float(one) for clock, one in zip(names, offset, strict=True)},
        spread_ns={int(clock): float(one) for clock, one in zip(names, spread, strict=True)},
        collectives=len(at),
    )


def aligned(rows: pa.Table, clock_of: Mapping[int, int], offsets: Offsets) -> pa.Table:
    """Return rows with times as if all clocks were one, to the microsecond."""
    shift_us = {rank: round(offsets.offset_ns[clock] / 1000) for rank, clock in clock_of.items()}
    ranks, which = np.unique(integers(rows, "rank"), return_inverse=True)
    shifts = np.array([shift_us[int(rank)] for rank in ranks], np.int64)[which]
    at = rows.schema.get_field_index("ts")
    kind = rows.schema.field(at).type
    return rows.set_column(at, rows.schema.field(at), pa.array(integers(rows, "ts") - shifts).cast(kind))


def _ends(rows: pa.Table) -> tuple[Ints, npt.NDArray[np.float64]] | None:
    """Return ranks, and when they left each collective of all of them, (collectives, ranks), since the first."""
    ranks = np.unique(integers(rows, "rank"))
    sizes = pc.fill_null(rows["group_size"], len(ranks))
    whole = pc.and_(pc.equal(rows["kind"], "collective"), pc.equal(sizes, len(ranks)))
    others = pa.array([name for name in OPERATIONS if name != _OF_ALL])
    rows = rows.filter(pc.and_(whole, pc.invert(pc.is_in(rows["name"], others))))
    numbered = pc.and_(pc.is_valid(rows["sequence"]), pc.not_equal(rows["sequence"], 0))
    if pc.any(numbered).as_py():  # the same number on all ranks; else the order in the step tells which is which
        rows = rows.filter(numbered)
    if rows.num_rows == 0:
        return None
    rank = np.searchsorted(ranks, integers(rows, "rank"))
    ends = integers(rows, "ts") * 1000 + integers(rows, "duration_ns")
    texts = pc.binary_join_element_wise(
        rows["name"], pc.fill_null(rows["process_group"], ""), pc.cast(rows["step"], pa.string()), "\n"
    )
    _, name = np.unique(texts.to_numpy(zero_copy_only=False).astype(str), return_inverse=True)
    order = np.lexsort((integers(rows, "sequence", 0), integers(rows, "ts"), rank, name))
    cell = name[order].astype(np.int64) * len(ranks) + rank[order]
    first = np.r_[True, cell[1:] != cell[:-1]]
    occurrence = np.arange(len(cell)) - np.maximum.accumulate(np.where(first, np.arange(len(cell)), 0))
    _, event = np.unique(name[order].astype(np.int64) * (len(cell) + 1) + occurrence, return_inverse=True)
    found = np.full((int(event.max()) + 1, len(ranks)), np.nan)
    found[event, rank[order]] = (ends - ends.min())[order]
    return ranks, found[~np.isnan(found).any(axis=1)]
