"""Critical path: the chain of operations that determined the length of each step.

    stage 0  ├ forward ┤           ╎               ├ backward ┤
    stage 1            ├ forward ══════┤├ backward ══┤              ══ on the path

The graph is that of the simulation without launch delays ("Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI'25). From the operation that ended the step, the path goes back to the dependency that ended
last, and from a transfer to the last member of its group. Lengths on the path add up to the step's time; operations off
the path could be somewhat longer without changing it.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

import numpy as np
import numpy.typing as npt

from ranklake.insight.diagnosis.simulate import Floats, Trace, run

Marks = npt.NDArray[np.bool_]
_Integers = npt.NDArray[np.int64]
_Key = TypeVar("_Key")
_AT_A_TIME: Final = 4_000_000
"""Number of operations per batch of the walk back: 32 MB per array."""


@dataclass(frozen=True, slots=True)
class Pace:
    """The rank and the kind of operation with most of a step's critical path.

    Attributes
    ----------
    rank_ratio, kind_ratio
        Their shares of the path.
    path_ns
        The step's time without launch delays.
    """

    step: int
    rank: int
    rank_ratio: float
    kind: str
    kind_ratio: float
    path_ns: float


@dataclass(frozen=True, slots=True)
class CriticalPath:
    """Shares of the time on the critical paths of a run's steps, the largest first.

    Attributes
    ----------
    by_kind, by_stage, by_rank
        By kind of operation, pipeline stage and global rank; each adds up to 1. Empty if no step took any time.
    paces
        `Pace` of each step.
    """

    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_rank: Mapping[int, float]
    paces: Sequence[Pace]

    @property
    def holder(self) -> tuple[str, float] | None:
        """The stage with most of the path, and its share; the rank, if there is only one stage.

        None if there is no path, or only one rank.
        """
        parts: tuple[tuple[str, Mapping[int, float]], ...] = (("stage", self.by_stage), ("rank", self.by_rank))
        name, shares = next(((name, shares) for name, shares in parts if len(shares) > 1), ("", {}))
        return next(((f"{name} {number}", share) for number, share in shares.items()), None)


def critical_path(trace: Trace, own: Floats) -> CriticalPath:
    """Return shares of the steps' critical paths; `own` are lengths from `own_lengths`."""
    graph = trace.graph
    dp_size, stages = trace.ranks.shape
    kinds = list(dict.fromkeys(graph.parts))
    kind_of = np.array([kinds.index(name) for name in graph.parts])
    stage_of = np.array(graph.stages)
    by_worker = np.zeros((len(trace.steps), dp_size, stages))
    by_kind = np.zeros((len(trace.steps), len(kinds)))
    for steps in _pieces(own.shape):
        lengths = own[:, steps]
        spent = np.where(on_path(trace, lengths), lengths, 0.0)
        for stage in range(stages):
            by_worker[steps, :, stage] = spent[stage_of == stage].sum(axis=0)
        for kind in range(len(kinds)):
            by_kind[steps, kind] = spent[kind_of == kind].sum(axis=(0, 2))
    return CriticalPath(
        by_kind=_shares(dict(zip(kinds, by_kind.sum(axis=0).tolist(), strict=True))),
        by_stage=_shares(dict(enumerate(by_worker.sum(axis=(0, 1)).tolist()))),
        by_rank=_shares(dict(zip(trace.ranks.ravel().tolist(), by_worker.sum(axis=0).ravel().tolist(), strict=True))),
        paces=list(_paces(trace, by_worker.reshape(len(trace.steps), -1), by_kind, kinds)),
    )


def on_path(trace: Trace, own: Floats) -> Marks:
    """Return a mask of the operations on their step's critical path, (nodes, steps, data-parallel ranks).

    If several end at once, the one on the same rank is chosen, else the first.
    """
    graph = trace.graph
    shape = own.shape[1:]
    starts, ends = ([np.broadcast_to(member, shape) for member in of] for of in run(graph, lambda node: own[node]))
    marks = np.zeros(own.shape, bool)
    all_steps = np.arange(shape[0])
    node, dp = _latest_node(graph.last, ends, all_steps, None)
    for nodes, meets, over_dp in zip(graph.groups[::-1], graph.meets[::-1], graph.over_dp[::-1], strict=True):
        at = np.flatnonzero(np.isin(node, nodes))
        if not len(at):
            continue
        marks[node[at], at, dp[at]] = True
        if meets:
            last, of_dp = _latest_node(nodes, starts, at, None if over_dp else dp[at])
            own_start = np.array([starts[n][step, lane] for n, step, lane in zip(node[at], at, dp[at], strict=True)])
            last_start = np.array([starts[n][step, lane] for n, step, lane in zip(last, at, of_dp, strict=True)])
            waited = last_start > own_start
            node[at[waited]], dp[at[waited]] = last[waited], of_dp[waited]
        for member in nodes:
            here = at[node[at] == member]
            before = graph.waits_for[member]
            if not before:
                node[here] = -1
            elif len(here):
                node[here], dp[here] = _latest_node(before, ends, here, dp[here])
    return marks


def _latest_node(
    nodes: Sequence[int], times: Sequence[Floats], steps: _Integers, dp: _Integers | None
) -> tuple[_Integers, _Integers]:
    """Return the node and data-parallel rank with the latest time in each step; only of rank `dp`, if given."""
    numbers = np.array(nodes, np.int64)
    if dp is not None:
        return numbers[np.argmax(np.stack([times[node][steps, dp] for node in nodes]), axis=0)], dp
    of_all = np.stack([times[node][steps] for node in nodes])
    nodes_count, steps_count, lanes = of_all.shape
    first = np.argmax(of_all.transpose(1, 0, 2).reshape(steps_count, nodes_count * lanes), axis=1)
    return numbers[first // lanes], first % lanes


def _pieces(shape: tuple[int, ...]) -> Iterator[slice]:
    nodes, steps, lanes = shape
    width = max(1, min(steps, _AT_A_TIME // max(1, nodes * lanes)))
    return (slice(left, left + width) for left in range(0, steps, width))


def _shares(spent: dict[_Key, float]) -> dict[_Key, float]:
    whole = sum(spent.values())
    return {key: one / whole for key, one in sorted(spent.items(), key=lambda item: -item[1])} if whole else {}


def _paces(trace: Trace, by_worker: Floats, by_kind: Floats, kinds: Sequence[str]) -> Iterator[Pace]:
    ranks = trace.ranks.ravel()
    for at, step in enumerate(trace.steps.tolist()):
        whole = float(by_kind[at].sum())
        if whole:
            worker, kind = int(np.argmax(by_worker[at])), int(np.argmax(by_kind[at]))
            rank_ratio, kind_ratio = float(by_worker[at, worker] / whole), float(by_kind[at, kind] / whole)
            yield Pace(step, int(ranks[worker]), rank_ratio, kinds[kind], kind_ratio, whole)
