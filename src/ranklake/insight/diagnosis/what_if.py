"""How much slower a run was than necessary, and which part caused it.

Definitions: "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25), equations 1 to 5.
T is the mean step time without launch delays. S = T as recorded / T where every operation takes its ideal length.
A part's slowdown: everything ideal but this part, / T ideal. M of some operations: the share of the loss that
goes away when they alone get ideal lengths, (T - T with them ideal) / (T - T ideal).
"""

import gzip
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from ranklake.insight.diagnosis.critical_path import CriticalPath, critical_path
from ranklake.insight.diagnosis.simulate import Floats, Trace, WhatIfError, ideal_lengths, own_lengths, run, step_times

_Key = TypeVar("_Key")
_WORST_RATIO: Final = 0.03
_AT_A_TIME: Final = 4_000_000
"""Most operations times scenarios that are simulated together: 32 MB per array."""


@dataclass(frozen=True)
class Worker:
    """A rank: its coordinates, and its slowdown, the lower of its data-parallel rank's and its stage's."""

    rank: int
    dp_rank: int
    stage: int
    s: float


@dataclass(frozen=True)
class WhatIf:
    """Slowdowns as ratios (1: none), slowest first, and shares of what was lost.

    Parameters
    ----------
    s
        T / T ideal.
    by_kind, by_stage, by_dp_rank
        Slowdown of each part alone.
    workers
        All ranks, worst first.
    worst
        Number of ranks in M_W: 3 %, at least one.
    m_w, m_s
        Share of the loss that the worst workers, and the last stage, make; None if nothing was lost, and M_S also if
        there is only one stage.
    step_s
        S of each step by its number.
    recorded_ns, no_delay_ns, ideal_ns
        Mean step times: as recorded, without launch delays, ideal.
    path
        Shares of the steps' critical paths.
    trace, lengths_ns
        The analysed trace, and each node's ideal length.
    """

    s: float
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_dp_rank: Mapping[int, float]
    workers: Sequence[Worker]
    worst: int
    m_w: float | None
    m_s: float | None
    step_s: Mapping[int, float]
    recorded_ns: float
    no_delay_ns: float
    ideal_ns: float
    path: CriticalPath
    trace: Trace
    lengths_ns: Floats


def what_if(trace: Trace) -> WhatIf:
    """Analyse a trace."""
    graph = trace.graph
    own = own_lengths(trace)
    ideal = ideal_lengths(graph, own)
    ideal_ns = float(step_times(graph, lambda node: ideal[node : node + 1]))
    parts = {name: number for number, name in enumerate(dict.fromkeys(graph.parts))}
    part_of = np.array([parts[name] for name in graph.parts])
    stage_of = np.array(graph.stages)
    stages = trace.ranks.shape[1]
    kept = [np.ones(len(graph.names), bool), stage_of < stages - 1]
    kept += [part_of == number for number in parts.values()]
    kept += [stage_of == stage for stage in range(stages)]
    by_step = _some_kept(trace, own, ideal, np.array(kept)[:, :, None])
    times = by_step.mean(axis=1)
    alone = _dp_ranks_kept(trace, own, ideal).mean(axis=1) / ideal_ns
    by_stage = {stage: float(times[2 + len(parts) + stage] / ideal_ns) for stage in range(stages)}
    workers = _workers(trace, by_stage, alone)
    worst = max(1, int(np.ceil(round(_WORST_RATIO * len(workers), 9))))
    of_worst = np.ones((len(graph.names), len(trace.ranks)), bool)
    for worker in workers[:worst]:
        of_worst[stage_of == worker.stage, worker.dp_rank] = False
    without_worst = float(_some_kept(trace, own, ideal, of_worst[None]).mean())
    lost = float(times[0]) - ideal_ns
    return WhatIf(
        s=float(times[0]) / ideal_ns,
        by_kind=_slowest_first({name: float(times[2 + number] / ideal_ns) for name, number in parts.items()}),
        by_stage=_slowest_first(by_stage),
        by_dp_rank=_slowest_first({dp: float(s) for dp, s in enumerate(alone)}),
        workers=workers,
        worst=worst,
        m_w=(float(times[0]) - without_worst) / lost if lost else None,
        m_s=(float(times[0]) - float(times[1])) / lost if lost and stages > 1 else None,
        step_s={int(step): float(s) for step, s in zip(trace.steps, by_step[0] / ideal_ns, strict=True)},
        recorded_ns=float(recorded_times(trace).mean()),
        no_delay_ns=float(times[0]),
        ideal_ns=ideal_ns,
        path=critical_path(trace, own),
        trace=trace,
        lengths_ns=ideal,
    )


def recorded_times(trace: Trace) -> Floats:
    """Return the steps' times as recorded, ns."""
    last = list(trace.graph.last)
    times: Floats = (trace.start_ns[last] + trace.duration_ns[last]).max(axis=(0, 2))
    return times


def _some_kept(trace: Trace, own: Floats, ideal: Floats, kept: npt.NDArray[np.bool_]) -> Floats:
    """Return step times, (scenarios, steps), in which operations in the mask `kept` keep their own lengths.

    `kept` is (scenarios, nodes, data-parallel ranks or 1); all others are ideal.
    """

    def step_times_of(scenarios: slice, steps: slice) -> Floats:
        chosen = kept[scenarios]

        def lengths(node: int) -> Floats:
            keep = chosen[:, node, None, :]
            return np.where(keep, own[node, steps], ideal[node])

        times = step_times(trace.graph, lengths)
        return np.broadcast_to(times, (chosen.shape[0], own[0, steps].shape[0]))

    return _in_pieces(step_times_of, len(kept), own.shape)


def _dp_ranks_kept(trace: Trace, own: Floats, ideal: Floats) -> Floats:
    """Return step times, (data-parallel ranks, steps), in which only that rank keeps its own lengths.

    The others are then equal, so only two ranks are simulated: this one, and an ideal one.
    """
    count = own.shape[2]

    def step_times_of(ranks: slice, steps: slice) -> Floats:
        def lengths(node: int) -> Floats:
            lengths_of_ranks = own[node, steps, ranks].T
            return (
                lengths_of_ranks[:, :, None]
                if count == 1
                else np.stack([lengths_of_ranks, np.full_like(lengths_of_ranks, ideal[node])], axis=-1)
            )

        return step_times(trace.graph, lengths)

    return _in_pieces(step_times_of, count, (own.shape[0], own.shape[1], min(count, 2)))


def _in_pieces(step_times_of: Callable[[slice, slice], Floats], scenarios: int, shape: tuple[int, ...]) -> Floats:
    """Return (scenarios, steps), computed in batches that limit memory."""
    nodes, steps, lanes = shape
    times = np.empty((scenarios, steps))
    width = max(1, min(steps, _AT_A_TIME // (nodes * lanes)))
    height = max(1, min(scenarios, _AT_A_TIME // (nodes * lanes * width)))
    for top in range(0, scenarios, height):
        for left in range(0, steps, width):
            at = slice(top, top + height), slice(left, left + width)
            times[at] = step_times_of(*at)
    return times


def _workers(trace: Trace, by_stage: Mapping[int, float], by_dp: Floats) -> list[Worker]:
    workers = [
        Worker(int(trace.ranks[dp, stage]), dp, stage, min(float(by_dp[dp]), by_stage[stage]))
        for dp in range(len(by_dp))
        for stage in by_stage
    ]
    return sorted(workers, key=lambda worker: (-worker.s, worker.rank))


def _slowest_first(slowdowns: dict[_Key, float]) -> dict[_Key, float]:
    return dict(sorted(slowdowns.items(), key=lambda item: -item[1]))


@dataclass(frozen=True, slots=True)
class StepTimes:
    """Mean seconds of a step: as recorded, without launch delays, ideal."""

    recorded: float
    no_delay: float
    ideal: float


@dataclass(frozen=True, slots=True)
class Slowdowns:
    """How much slower a run's attempt was than necessary, and why; see `WhatIf`.

    Attributes
    ----------
    run, attempt
        Which.
    s
        Slowdown of the whole, as a ratio.
    by_kind, by_stage, by_dp_rank, by_worker
        Slowdown of each part alone, slowest first.
    m_w, m_s
        Share of the loss that the worst ranks, and the last stage, make; None if there is none.
    worst_ranks
        The ranks in `m_w`.
    per_step
        Slowdown of each step, by its number.
    step_time_s
        Mean step times.
    critical_path
        Shares of the steps' critical paths, and the pace of each step.
    notes
        What was left out or assumed, one line each.
    """

    run: str
    attempt: int
    s: float
    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_dp_rank: Mapping[int, float]
    by_worker: Sequence[Worker]
    m_w: float | None
    m_s: float | None
    worst_ranks: Sequence[int]
    per_step: Mapping[int, float]
    step_time_s: StepTimes
    critical_path: CriticalPath
    notes: Sequence[str]


def slowdowns(run: str, attempt: int, analysis: WhatIf) -> Slowdowns:
    """Return an analysis as plain values."""
    return Slowdowns(
        run=run,
        attempt=attempt,
        s=analysis.s,
        by_kind=dict(analysis.by_kind),
        by_stage=dict(analysis.by_stage),
        by_dp_rank=dict(analysis.by_dp_rank),
        by_worker=list(analysis.workers),
        m_w=analysis.m_w,
        m_s=analysis.m_s,
        worst_ranks=[one.rank for one in analysis.workers[: analysis.worst]],
        per_step=dict(analysis.step_s),
        step_time_s=StepTimes(analysis.recorded_ns / 1e9, analysis.no_delay_ns / 1e9, analysis.ideal_ns / 1e9),
        critical_path=analysis.path,
        notes=list(analysis.trace.notes),
    )


_GAP: Final = 1.05
"""Distance of steps in the timeline, in step times."""


def timeline(analysis: WhatIf) -> Iterator[dict[str, Any]]:
    """Yield trace events, times in microseconds: a process per data-parallel rank, a thread per stage and stream."""
    trace, graph, ideal = analysis.trace, analysis.trace.graph, analysis.lengths_ns
    starts, ends = run(graph, lambda node: ideal[node : node + 1])
    threads = {pair: number for number, pair in enumerate(sorted(set(zip(graph.stages, graph.streams, strict=True))))}
    several = len(trace.ranks) and trace.ranks.shape[1] > 1
    for dp in range(len(trace.ranks)):
        yield _named("process_name", dp, 0, f"data-parallel rank {dp}, ideal")
        for (stage, stream), thread in threads.items():
            place = f"stage {stage}, {stream}" if several else stream
            yield _named("thread_name", dp, thread, f"{place} (rank {trace.ranks[dp, stage]})")
            yield {"ph": "M", "name": "thread_sort_index", "pid": dp, "tid": thread, "args": {"sort_index": thread}}
    for at, step in enumerate(trace.steps.tolist()):
        begin = at * analysis.ideal_ns * _GAP
        for node, name in enumerate(graph.names):
            for dp in range(len(trace.ranks)):
                yield {
                    "ph": "X",
                    "name": name,
                    "cat": graph.parts[node],
                    "pid": dp,
                    "tid": threads[graph.stages[node], graph.streams[node]],
                    "ts": round((begin + float(starts[node].item())) / 1000, 3),
                    "dur": round(float(ends[node].item() - starts[node].item()) / 1000, 3),
                    "args": {"step": step, "recorded_us": round(float(trace.duration_ns[node, at, dp]) / 1000, 3)},
                }


def write_timeline(analysis: WhatIf, path: Path) -> int:
    """Write the timeline atomically to ``.json`` or ``.json.gz``; return the number of events.

    Raises
    ------
    WhatIfError
        The file cannot be written; no part of it is left.
    """
    scratch = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with gzip.open(scratch, "wt") if path.suffix == ".gz" else scratch.open("w") as file:
            file.write('{"displayTimeUnit": "ms", "traceEvents": [')
            count = 0
            for event in timeline(analysis):
                file.write(",\n" if count else "\n")
                file.write(json.dumps(event))
                count += 1
            file.write("\n]}\n")
        scratch.replace(path)
    except OSError as error:
        scratch.unlink(missing_ok=True)
        message = f"cannot be written: {error.strerror}"
        raise WhatIfError(message, where=str(path), hint="name another file with --timeline") from error
    return count


def _named(kind: str, process: int, thread: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": kind, "pid": process, "tid": thread, "args": {"name": name}}
