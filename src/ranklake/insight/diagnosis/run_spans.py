"""The spans of a run's attempt, from the lake, on one clock.

    a node's clock      ── work ──┤ all_reduce ├          its collective ends at e
    another's, ahead        ── work ─┤ all_reduce ├       its collective ends at e + 3 ms, every time: it is 3 ms ahead

Ranks of a node share a clock. For each collective, the median end on a clock is compared with the median over all
clocks; a clock's offset is the median difference over all collectives. A few late ranks or collectives do not change
it.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import did_you_mean
from ranklake.insight.diagnosis.phase_trace import need_phases, phase_trace
from ranklake.insight.diagnosis.pipeline import pipeline_trace
from ranklake.insight.diagnosis.simulate import Trace, WhatIfError
from ranklake.insight.diagnosis.spans import COLUMNS, OPERATIONS, Ints, integers, operations_of, place
from ranklake.lake.query.roles import Role
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted

MIN_COLLECTIVES: Final = 10
"""Least number of collectives for an offset."""
_OF_ALL: Final = "optimizer-clip-main-grad"
"""The operation of a pipeline that all of its ranks leave together."""


@dataclass(frozen=True)
class Offsets:
    """Offsets of the nodes' clocks.

    Parameters
    ----------
    offset_ns
        Offset by clock, to be subtracted from times of its ranks. The median offset is 0.
    spread_ns
        Robust deviation of the offsets from single collectives, by clock.
    collectives
        Number of collectives that all ranks left together.
    """

    offset_ns: Mapping[int, float]
    spread_ns: Mapping[int, float]
    collectives: int


def clock_offsets(rows: pa.Table, clock_of: Mapping[int, int]) -> Offsets | None:
    """Return the offsets of clocks; None with fewer than `MIN_COLLECTIVES` collectives.

    Parameters
    ----------
    rows
        Spans of an attempt, `ranklake.insight.diagnosis.spans.COLUMNS`.
    clock_of
        The clock of each rank.
    """
    ends = _exit_times(rows)
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


def align_clocks(rows: pa.Table, clock_of: Mapping[int, int], offsets: Offsets) -> pa.Table:
    """Return rows with times corrected by the clocks' offsets, to the microsecond."""
    shift_us = {rank: round(offsets.offset_ns[clock] / 1000) for rank, clock in clock_of.items()}
    ranks, which = np.unique(integers(rows, "rank"), return_inverse=True)
    shifts = np.array([shift_us[int(rank)] for rank in ranks], np.int64)[which]
    at = rows.schema.get_field_index("ts")
    kind = rows.schema.field(at).type
    return rows.set_column(at, rows.schema.field(at), pa.array(integers(rows, "ts") - shifts).cast(kind))


def _exit_times(rows: pa.Table) -> tuple[Ints, npt.NDArray[np.float64]] | None:
    """Return ranks, and their end of each collective of all ranks, (collectives, ranks), since the first."""
    ranks = np.unique(integers(rows, "rank"))
    sizes = pc.fill_null(rows["group_size"], len(ranks))
    whole = pc.and_(pc.equal(rows["kind"], "collective"), pc.equal(sizes, len(ranks)))
    others = pa.array([name for name in OPERATIONS if name != _OF_ALL])
    rows = rows.filter(pc.and_(whole, pc.invert(pc.is_in(rows["name"], others))))
    numbered = pc.and_(pc.is_valid(rows["sequence"]), pc.not_equal(rows["sequence"], 0))
    if pc.any(numbered).as_py():  # match by number if all ranks have one; else by order in the step
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
    left_at = np.full((int(event.max()) + 1, len(ranks)), np.nan)
    left_at[event, rank[order]] = (ends - ends.min())[order]
    return ranks, left_at[~np.isnan(left_at).any(axis=1)]


_ATTEMPTS = "SELECT attempt, count(*) AS n FROM spans WHERE run = $run AND step IS NOT NULL GROUP BY attempt"
_RUNS = "SELECT DISTINCT run FROM spans UNION SELECT DISTINCT run FROM runs UNION SELECT DISTINCT run FROM steps"
_SIZES = """
    SELECT max(dp_size) AS dp_rank, max(pp_size) AS pp_rank, max(world_size) AS world_size,
        max(local_world_size) AS local_world_size
    FROM runs
    WHERE run = $run AND attempt = $attempt
"""
_NOUNS = {"dp_rank": "data-parallel ranks", "pp_rank": "stages"}
_ROWS = f"SELECT {', '.join(COLUMNS)} FROM spans WHERE run = $run AND attempt = $attempt AND step IS NOT NULL AND kind <> 'step'"  # noqa: S608, E501 - of our own names


def read_spans(
    lake: Lake, run: str, attempt: int | None = None, role: Role | None = None
) -> tuple[int, pa.Table, tuple[str, ...]]:
    """Return attempt, rows of `COLUMNS`, and notes.

    Parameters
    ----------
    attempt
        Default: the last one that has spans.
    role
        Role whose views are read instead of the tables.

    Raises
    ------
    WhatIfError
        No such run or attempt, or it has no spans of steps, or some ranks are missing.
    """
    attempts = query(lake, _ATTEMPTS, {"run": run}, role=role)["attempt"].to_pylist()
    if not attempts:
        known = [name for name in query(lake, _RUNS, role=role)["run"].to_pylist() if name is not None]
        if run in known:
            hint = "record phases of its steps (run.phase), or import them: ranklake import"
            raise WhatIfError("no spans of any step", where=f"run {run}", hint=hint)
        raise WhatIfError(f"unknown run {run!r}", where="RUN", hint=did_you_mean(run, known) or "ingest one first")
    if attempt is not None and attempt not in attempts:
        shown = ", ".join(map(str, sorted(attempts)))
        raise WhatIfError(f"attempt {attempt} has no spans", where=f"run {run}", hint=f"these have: {shown}")
    chosen = max(attempts) if attempt is None else attempt
    rows = query(lake, _ROWS, {"run": run, "attempt": chosen}, role=role)
    sizes = query(lake, _SIZES, {"run": run, "attempt": chosen}, role=role).to_pylist()[0]
    rows, clocks = one_clock(rows, sizes["world_size"], sizes["local_world_size"])
    rows, notes = place(rows)
    if not _has_operations(rows):
        need_phases(rows)
    _all_there(sizes, rows, run)
    others = len(attempts) - 1
    chosen_note = (
        () if attempt is not None or not others else (f"attempt {chosen}, the last of {others + 1} with spans",)
    )
    return chosen, rows, (*chosen_note, *clocks, *notes)


def one_clock(rows: pa.Table, ranks: int | None, ranks_of_node: int | None) -> tuple[pa.Table, tuple[str, ...]]:
    """Return rows with the times of all nodes on one clock, and a note; unchanged for one node.

    Parameters
    ----------
    ranks, ranks_of_node
        The run's recorded size. Launchers number the ranks of a node consecutively.
    """
    if not ranks or not ranks_of_node or ranks <= ranks_of_node:
        return rows, ()
    clock_of = {rank: rank // ranks_of_node for rank in pc.unique(rows["rank"]).to_pylist()}
    nodes = len(set(clock_of.values()))
    if nodes == 1:
        return rows, ()
    offsets = clock_offsets(rows, clock_of)
    if offsets is None:
        return rows, (
            f"clocks of {nodes} nodes are taken as they are: too few collectives of all ranks tell them apart",
        )
    basis = counted(offsets.collectives, "collective")
    if all(abs(offset) <= offsets.spread_ns[clock] for clock, offset in offsets.offset_ns.items()):
        within = max(offsets.spread_ns.values()) / 1e6
        return rows, (f"clocks of {nodes} nodes agree within {within:.3f} ms, by {basis}",)
    worst = max(offsets.offset_ns, key=lambda clock: abs(offsets.offset_ns[clock]))
    note = (
        f"clocks of {nodes} nodes aligned by {basis}: node {worst} was off most, by "
        f"{offsets.offset_ns[worst] / 1e6:+.3f} ms (within {offsets.spread_ns[worst] / 1e6:.3f} ms)"
    )
    return align_clocks(rows, clock_of, offsets), (note,)


def trace_of(rows: pa.Table, notes: tuple[str, ...] = ()) -> Trace:
    """Return the trace of rows from `place`: of a pipeline's operations if there are any, else of phases.

    Raises
    ------
    WhatIfError
        As `pipeline_trace` and `phase_trace`.
    """
    if _has_operations(rows):
        return pipeline_trace(operations_of(rows), notes)
    return phase_trace(rows, notes)


def _has_operations(rows: pa.Table) -> bool:
    """Whether there are computes of a pipeline."""
    computes = pa.array([name for name, one in OPERATIONS.items() if one.stream == "compute"])
    return bool(rows.num_rows and pc.any(pc.is_in(rows["name"], computes)).as_py())


def _all_there(sizes: dict[str, int | None], rows: pa.Table, run: str) -> None:
    """Compare the ranks that recorded spans with the run's recorded size.

    If only data-parallel coordinates are recorded, every rank is data-parallel.
    """
    expected = {"dp_rank": sizes["dp_rank"], "pp_rank": sizes["pp_rank"]}
    others = ("tp_rank", "cp_rank", "ep_rank")
    if (
        all(rows[axis].null_count == rows.num_rows for axis in others)
        and not pc.any(pc.not_equal(rows["pp_rank"], 0)).as_py()
    ):
        expected["dp_rank"] = expected["dp_rank"] or sizes["world_size"]
    for axis, count in expected.items():
        present = len(pc.unique(rows[axis]))
        if count is not None and present < count:
            raise WhatIfError(
                f"{_NOUNS[axis]}: spans of {present} of {count}",
                where=f"run {run}",
                hint="bring in what the other ranks recorded",
            )
