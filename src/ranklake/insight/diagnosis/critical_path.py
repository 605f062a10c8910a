"""Critical path: of each step, the chain of operations that made it as long as it was.

    stage 0  ├ forward ┤           ╎               ├ backward ┤
    stage 1            ├ forward ══════┤├ backward ══┤              ══ on the path

The graph is that of the simulation without launch delays ("Understanding Stragglers in Large Model Training Using
What-if Analysis", OSDI'25). From the operation that ended the step the path goes back to what it waited for: of an
operation to the last of those before it, of a transfer to the member of its group that came last. Lengths on the path
add up to the step's time; what is not on it may take longer by some time and the step takes as long as before.
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
"""Operations that are gone back through together: 32 MB an array of them."""


@dataclass(frozen=True, slots=True)
class Pace:
    """What set the pace in a step: the rank and the kind of operation that most of the path's time is of.

    Attributes
    ----------
    rank_ratio, kind_ratio
        Their shares of it.
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
        What set the pace, step by step.
    """

    by_kind: Mapping[str, float]
    by_stage: Mapping[int, float]
    by_rank: Mapping[int, float]
    paces: Sequence[Pace]

    @property
    def holder(self) -> tuple[str, float] | None:
        """The part that most of the path is on, and its share: a stage, or a rank where there is but one stage.

        None where there is neither a path nor anything to compare.
        """
        parts: tuple[tuple[str, Mapping[int, float]], ...] = (("stage", self.by_stage), ("rank", self.by_rank))
        name, shares = next(((name, shares) for name, shares in parts if len(shares) > 1), ("", {}))
        return next(((f"{name} {number}", share) for number, share in shares.items()), None)


def critical_path(trace: Trace, own: Floats) -> CriticalPath:
    """Return what is on the critical paths of the steps; `own` are lengths as `own_lengths` gives them."""
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
    """Return which operations are on their step's critical path, (nodes, steps, data-parallel ranks).

    Of several that end at once the one that runs on the same rank is taken, else the first.
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
    """Return the node and the data-parallel rank whose time is the latest in each step; of `dp` alone where given."""
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
