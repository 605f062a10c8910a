"""Spans of a pipeline-parallel job as a trace: whole steps of the most common shape; others are counted."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ranklake.insight.diagnosis.operations import OPERATIONS
from ranklake.insight.diagnosis.pipeline import Template, pipeline_graph
from ranklake.insight.diagnosis.place import rank_grid
from ranklake.insight.diagnosis.simulate import Trace
from ranklake.insight.diagnosis.spans import Ints, Spans, left_out

_NAMES: Final = tuple(OPERATIONS)


def pipeline_trace(spans: Spans, notes: tuple[str, ...] = ()) -> Trace:
    """Return the trace of the operations among some spans of one attempt of a run.

    Raises
    ------
    WhatIfError
        A rank or a stage is missing, no step is whole, or the steps' operations fit no pipeline.
    """
    ranks = rank_grid(spans.dp_rank, spans.stage, spans.rank)
    dp_size, stages = ranks.shape
    steps, step_at = np.unique(spans.step, return_inverse=True)
    cell = (step_at * dp_size + spans.dp_rank) * stages + spans.stage
    key = cell * len(_NAMES) + spans.operation
    counts = np.bincount(key, minlength=len(steps) * ranks.size * len(_NAMES))
    whole = _whole(counts.reshape(len(steps), dp_size, -1))
    told = left_out(whole, steps)
    order = np.lexsort((spans.position, spans.start_ns, key))
    order = order[whole[step_at[order]]]
    shape = (int(whole.sum()), dp_size, -1)
    start_ns = spans.start_ns[order].reshape(shape)
    start_ns = (start_ns - start_ns.min(axis=(1, 2), keepdims=True)).astype(np.float64)
    duration_ns = spans.duration_ns[order].reshape(shape).astype(np.float64)
    first = order[: start_ns.shape[2]]
    template = Template(
        names=tuple(_NAMES[number] for number in spans.operation[first]),
        stages=tuple(spans.stage[first].tolist()),
        start_ns=start_ns[0, 0],
        end_ns=start_ns[0, 0] + duration_ns[0, 0],
        chunks=spans.chunk[first],
    )
    return Trace(
        graph=pipeline_graph(template),
        steps=steps[whole],
        ranks=ranks,
        start_ns=np.ascontiguousarray(start_ns.transpose(2, 0, 1)),
        duration_ns=np.ascontiguousarray(duration_ns.transpose(2, 0, 1)),
        notes=(*notes, *told),
    )


def _whole(counts: Ints) -> npt.NDArray[np.bool_]:
    """Return which steps have, on every data-parallel rank, as many of each operation as most have.

    `counts` is (steps, data-parallel ranks, stages times operations).
    """
    flat = np.ascontiguousarray(counts.reshape(-1, counts.shape[2]))
    keys = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, which, times = np.unique(keys, return_inverse=True, return_counts=True)
    fits = which.reshape(counts.shape[:2]) == int(np.argmax(times))
    whole: npt.NDArray[np.bool_] = fits.all(axis=1)
    return whole
