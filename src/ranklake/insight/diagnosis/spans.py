"""Spans of a run, read from the lake, as arrays that an analysis works on."""

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.diagnosis.graph import WhatIfError
from ranklake.insight.diagnosis.operations import OPERATIONS

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
"""What an analysis reads of the table ``spans``."""

_NAMED: Final = 5


@dataclass(frozen=True)
class Spans:
    """Operations of a pipeline, one an entry.

    Parameters
    ----------
    operation
        Position in `OPERATIONS`.
    step, rank, dp_rank, stage
        Where it belongs.
    chunk
        Model chunk on its stage; -1 where none is recorded.
    start_ns, duration_ns
        Since 1970, and length.
    position
        Order of recording, for those that start together.
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


def counted(count: int, noun: str) -> str:
    """Return ``1 step``, ``2 steps``."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


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
    found: Ints = column.to_numpy().astype(np.int64)
    return found


def left_out(whole: npt.NDArray[np.bool_], steps: Ints) -> tuple[str, ...]:
    """Return a note on steps that are not whole, none if all are.

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
