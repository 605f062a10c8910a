"""Spans of a pipeline-parallel job as a trace: whole steps of the most common shape; the rest is left out and told."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ranklake.lake.diagnosis.graph import WhatIfError
from ranklake.lake.diagnosis.operations import OPERATIONS
from ranklake.lake.diagnosis.pipeline import Template, pipeline_graph
from ranklake.lake.diagnosis.simulate import Trace
from ranklake.lake.diagnosis.spans import Spans, counted

_NAMES: Final = tuple(OPERATIONS)
Ints = npt.NDArray[np.int64]


def pipeline_trace(spans: Spans, notes: tuple[str, ...] = ()) -> Trace:
    """Return the trace of the operations among some spans of one attempt of a run.

    Raises
    ------
    WhatIfError
        A rank or a stage is missing, no step is whole, or the steps' operations fit no pipeline.
    """
    dp_ranks, stages, ranks = _grid(spans)
    steps, step_at = np.unique(spans.step, return_inverse=True)
    dp_at = np.searchsorted(dp_ranks, spans.dp_rank)
    cell = (step_at * len(dp_ranks) + dp_at) * len(stages) + spans.stage
    key = cell * len(_NAMES) + spans.operation
    counts = np.bincount(key, minlength=len(steps) * len(dp_ranks) * len(stages) * len(_NAMES))
    whole, told = _whole(counts.reshape(len(steps), len(dp_ranks), -1), steps)
    order = np.lexsort((spans.position, spans.start_ns, key))
    order = order[whole[step_at[order]]]
    shape = (int(whole.sum()), len(dp_ranks), -1)
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
        dp_ranks=dp_ranks,
        ranks=ranks,
        start_ns=np.ascontiguousarray(start_ns.transpose(2, 0, 1)),
        duration_ns=np.ascontiguousarray(duration_ns.transpose(2, 0, 1)),
        notes=(*notes, *told),
    )


def _grid(spans: Spans) -> tuple[Ints, Ints, Ints]:
    """Return data-parallel ranks, stages, and the global rank at each of both."""
    dp_ranks, stages = np.arange(spans.dp_rank.max() + 1), np.arange(spans.stage.max() + 1)
    ranks = np.full((len(dp_ranks), len(stages)), -1, np.int64)
    ranks[spans.dp_rank, spans.stage] = spans.rank
    absent = np.argwhere(ranks < 0)
    if len(absent):
        named = ", ".join(f"stage {stage} of data-parallel rank {dp}" for dp, stage in absent[:3].tolist())
        more = ", …" if len(absent) > 3 else ""  # noqa: PLR2004 - as many as a line takes
        raise WhatIfError(
            f"no spans of {counted(len(absent), 'rank')} of {ranks.size}: {named}{more}",
            where="spans",
            mend="bring in what these ranks recorded",
        )
    return dp_ranks, stages, ranks


def _whole(counts: Ints, steps: Ints) -> tuple[npt.NDArray[np.bool_], list[str]]:
    """Return which steps have, on every data-parallel rank, as many of each operation as most have; and a note."""
    shapes, which, times = np.unique(counts.reshape(-1, counts.shape[2]), axis=0, return_inverse=True, return_counts=True)
    usual = shapes[int(np.argmax(times))]
    fits = (which == int(np.argmax(times))).reshape(counts.shape[:2])
    whole: npt.NDArray[np.bool_] = fits.all(axis=1)
    if not whole.any():
        raise WhatIfError(
            f"none of {counted(len(steps), 'step')} has the same operations on all data-parallel ranks",
            where="spans",
            mend="record all ranks, and every micro-batch alike",
        )
    left = ~whole
    if not left.any():
        return whole, []
    short = int((counts[left] < usual).any(axis=(1, 2)).sum())
    named = ", ".join(map(str, steps[left][:5].tolist())) + (", …" if left.sum() > 5 else "")  # noqa: PLR2004 - a line
    lines = [f"{counted(int(left.sum()), 'step')} of {len(steps)} left out, other operations than most: {named}"]
    if short:
        lines[0] += f" ({short} lack some)"
    return whole, lines
