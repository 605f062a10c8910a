"""Spans of a run as arrays, and the coordinates of each rank.

Names of operations are those of the trace format of "Understanding Stragglers in Large Model Training Using What-if
Analysis" (OSDI'25), which Megatron-LM's timers use, too.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.diagnosis.simulate import WhatIfError
from ranklake.printable import counted


@dataclass(frozen=True)
class Operation:
    """Properties of an operation.

    Parameters
    ----------
    name
        Its name in spans.
    stream
        Stream on which it runs in order; ``end`` for operations after the last compute, one after another.
    communicates
        Whether its ideal length is the median of its kind, not the mean.
    over_dp
        Whether it waits for the other data-parallel ranks.
    part
        Name that slowdowns are reported under.
    """

    name: str
    stream: str
    communicates: bool = False
    over_dp: bool = False
    part: str = ""


_ALL: Final = (
    Operation("forward-compute", "compute"),
    Operation("backward-compute", "compute"),
    Operation("forward-send", "forward-send", communicates=True, part="forward-pp-comm"),
    Operation("forward-recv", "forward-recv", communicates=True, part="forward-pp-comm"),
    Operation("backward-send", "backward-send", communicates=True, part="backward-pp-comm"),
    Operation("backward-recv", "backward-recv", communicates=True, part="backward-pp-comm"),
    Operation("params-all-gather", "data-parallel", communicates=True, over_dp=True),
    Operation("grads-reduce-scatter", "data-parallel", communicates=True, over_dp=True),
    Operation("gc", "end"),
    Operation("layernorm-grads-all-reduce", "end", communicates=True),
    Operation("embedding-grads-all-reduce", "end", communicates=True),
    Operation("separate-grads-all-reduce", "end", communicates=True, over_dp=True),
    Operation("optimizer-clip-main-grad", "end", communicates=True, over_dp=True),
    Operation("optimizer", "end"),
)
OPERATIONS: Final[Mapping[str, Operation]] = MappingProxyType({one.name: one for one in _ALL})
"""Operations by name, in the order of a stage's nodes."""

Ints = npt.NDArray[np.int64]
COLUMNS: Final = (
    *("rank", "incarnation", "segment", "slot", "ts", "name", "kind", "step", "duration_ns", "stream", "microbatch"),
    *(
        "dp_rank",
        "pp_rank",
        "tp_rank",
        "cp_rank",
        "ep_rank",
        "model_chunk",
        "device_time",
        "sequence",
        "process_group",
        "group_size",
    ),
)
"""Columns of the table ``spans`` that an analysis reads."""

_NAMED: Final = 5


@dataclass(frozen=True)
class Spans:
    """Operations of a pipeline, as arrays with one entry each.

    Parameters
    ----------
    operation
        Position in `OPERATIONS`.
    step, rank, dp_rank, stage
        Step and coordinates of each.
    chunk
        Model chunk on its stage; -1 where none is recorded.
    start_ns, duration_ns
        Since 1970, and length.
    position
        Order of recording, for operations with the same start.
    """

    operation: Ints
    step: Ints
    rank: Ints
    dp_rank: Ints
    stage: Ints
    chunk: Ints
    start_ns: Ints
    duration_ns: Ints
    position: Ints


def operations_of(rows: pa.Table) -> Spans:
    """Return the pipeline's operations among rows of `COLUMNS`, without those outside of steps."""
    known = pa.array(list(OPERATIONS))
    operation = pc.index_in(rows["name"], known)
    rows = rows.append_column("operation", operation)
    rows = rows.filter(pc.and_(pc.is_valid(operation), pc.is_valid(rows["step"])))
    order = [integers(rows, name) for name in ("slot", "segment", "incarnation")]
    position = np.empty(rows.num_rows, np.int64)
    position[np.lexsort(order)] = np.arange(rows.num_rows)
    return Spans(
        operation=integers(rows, "operation"),
        step=integers(rows, "step"),
        rank=integers(rows, "rank"),
        dp_rank=integers(rows, "dp_rank"),
        stage=integers(rows, "pp_rank"),
        chunk=integers(rows, "model_chunk", -1),
        start_ns=integers(rows, "ts") * 1000,
        duration_ns=integers(rows, "duration_ns"),
        position=position,
    )


def integers(rows: pa.Table, name: str, missing: int | None = None) -> Ints:
    """Return a column as int64, times as microseconds, `missing` in place of NULL."""
    column = rows[name]
    if pa.types.is_timestamp(column.type):
        column = column.cast(pa.int64())
    if missing is not None and column.null_count:
        column = pc.fill_null(column, pa.scalar(missing, column.type))
    values: Ints = column.to_numpy().astype(np.int64)
    return values


def left_out(whole: npt.NDArray[np.bool_], steps: Ints) -> tuple[str, ...]:
    """Return a note about incomplete steps, if any.

    Raises
    ------
    WhatIfError
        No step is whole.
    """
    if whole.all():
        return ()
    if not whole.any():
        raise WhatIfError(
            f"none of {counted(len(steps), 'step')} has the usual operations on all ranks",
            where="spans",
            hint="bring in all ranks; every micro-batch and every rank must be recorded alike",
        )
    left = steps[~whole].tolist()
    named = ", ".join(map(str, left[:_NAMED])) + (", …" if len(left) > _NAMED else "")
    return (f"{counted(len(left), 'step')} of {len(steps)} left out, incomplete or unlike the others: {named}",)


_MOST_RANKS: Final = 1_000_000


def place(rows: pa.Table) -> tuple[pa.Table, tuple[str, ...]]:
    """Return rows of spans with ``dp_rank`` and ``pp_rank`` filled, one rank for each pair of them; and notes.

    If several ranks share a stage (tensor, context or expert parallel), the first represents all: they run in lockstep.
    Without recorded coordinates, every rank is data-parallel.

    Raises
    ------
    WhatIfError
        The recorded coordinates do not distinguish the ranks.
    """
    notes = []
    rank, stage = integers(rows, "rank"), integers(rows, "pp_rank", 0)
    missing = rows["dp_rank"].null_count
    if missing == 0:
        dp = integers(rows, "dp_rank")
    elif missing < rows.num_rows:
        lacking = np.unique(rank[rows["dp_rank"].is_null().to_numpy()])
        hint = "give every rank its coordinates, run.coordinates(dp=…, pp=…)"
        raise WhatIfError(f"dp_rank is missing on {counted(len(lacking), 'rank')}", where="spans", hint=hint)
    elif rows["pp_rank"].null_count == rows.num_rows or not stage.any():
        dp = np.unique(rank, return_inverse=True)[1].astype(np.int64)
        notes.append("no coordinates are recorded: every rank is taken for a data-parallel one")
    elif len(np.unique(rank)) == len(np.unique(stage)):
        dp = np.zeros_like(rank)
    else:
        hint = "give every rank its coordinates, run.coordinates(dp=…, pp=…)"
        raise WhatIfError("stages are recorded, but no data-parallel ranks", where="spans", hint=hint)
    cell = dp * (int(stage.max(initial=0)) + 1) + stage
    first = _first_ranks(cell, rank)
    chosen = rank == first
    if not chosen.all():
        left = len(np.unique(rank[~chosen]))
        notes.append(
            f"{counted(left, 'rank')} left out: of those that share a stage and a data-parallel rank the first "
            "stands for all"
        )
    rows = rows.set_column(rows.schema.get_field_index("dp_rank"), "dp_rank", pa.array(dp))
    rows = rows.set_column(rows.schema.get_field_index("pp_rank"), "pp_rank", pa.array(stage))
    return (rows if chosen.all() else rows.filter(pc.equal(pa.array(chosen), pa.scalar(value=True)))), tuple(notes)


def _first_ranks(cell: Ints, rank: Ints) -> Ints:
    """Return for each row the lowest rank of its cell."""
    cells, place_of = np.unique(cell, return_inverse=True)
    lowest = np.full(len(cells), np.iinfo(np.int64).max)
    np.minimum.at(lowest, place_of, rank)
    first: Ints = lowest[place_of]
    return first


def rank_grid(dp_rank: Ints, stage: Ints, rank: Ints) -> Ints:
    """Return the global rank of each data-parallel rank and stage, (data-parallel ranks, stages).

    Raises
    ------
    WhatIfError
        Spans of some ranks are missing between others, or coordinates are impossible.
    """
    if (int(dp_rank.max()) + 1) * (int(stage.max()) + 1) > _MOST_RANKS:
        message = (
            f"coordinates up to dp_rank {dp_rank.max():,} and pp_rank {stage.max():,} are more ranks than a job has"
        )
        raise WhatIfError(message, where="spans", hint="give every rank its coordinates, run.coordinates(dp=…, pp=…)")
    ranks = np.full((int(dp_rank.max()) + 1, int(stage.max()) + 1), -1, np.int64)
    ranks[dp_rank, stage] = rank
    absent = np.argwhere(ranks < 0)
    if len(absent):
        named = ", ".join(f"data-parallel rank {dp}, stage {stage}" for dp, stage in absent[:3].tolist())
        more = "; …" if len(absent) > 3 else ""  # noqa: PLR2004 - as many as a line takes
        raise WhatIfError(
            f"no spans of {counted(len(absent), 'rank')} of {ranks.size} ({named}{more})",
            where="spans",
            hint="bring in what these ranks recorded",
        )
    return ranks
