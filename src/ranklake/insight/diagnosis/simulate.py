"""Simulates a run's steps with other durations: each operation starts when its last dependency has ended.

Everything goes through all steps and data-parallel ranks at once: one array a node. Times are nanoseconds as float64,
which is exact up to 104 days.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ranklake.insight.diagnosis.graph import Graph

Floats = npt.NDArray[np.float64]
Lengths = Callable[[int], Floats]
"""Lengths of a node, (…, data-parallel ranks)."""


@dataclass(frozen=True)
class Trace:
    """What a run recorded, node by node.

    Parameters
    ----------
    graph
        What waits for what.
    steps
        Their numbers.
    ranks
        Global ranks, (data-parallel ranks, stages); both count from 0.
    start_ns
        Since the step's first start, (nodes, steps, data-parallel ranks).
    duration_ns
        As recorded, of the same shape.
    notes
        What was left out and why, a line each.
    """

    graph: Graph
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    start_ns: Floats
    duration_ns: Floats
    notes: tuple[str, ...] = ()


def own_lengths(trace: Trace) -> Floats:
    """Return what each operation needed itself: its duration, or from when the last of its group was there.

    Shape as `Trace.duration_ns`. A transfer that ended before the last of its group started (clocks differ) is 0.
    """
    graph, starts, durations = trace.graph, trace.start_ns, trace.duration_ns
    lengths = durations.copy()
    for nodes, meets, over_dp in zip(graph.groups, graph.meets, graph.over_dp, strict=True):
        if not meets or (len(nodes) == 1 and not over_dp):
            continue
        members = list(nodes)
        latest = starts[members].max(axis=0)
        if over_dp:
            latest = latest.max(axis=-1, keepdims=True)
        lengths[members] = np.maximum(starts[members] + durations[members] - latest, 0)
    return lengths


def ideal_lengths(graph: Graph, own: Floats) -> Floats:
    """Return each node's ideal length: the mean of its kind over all ranks and steps, the median if it communicates."""
    ideal = np.empty(len(graph.kinds))
    kinds = np.array(graph.kinds)
    for kind in dict.fromkeys(graph.kinds):
        of_kind = kinds == kind
        communicates = graph.communicates[int(np.argmax(of_kind))]
        ideal[of_kind] = (np.median if communicates else np.mean)(own[of_kind])
    return ideal


def run(graph: Graph, lengths: Lengths) -> tuple[list[Floats], list[Floats]]:
    """Return starts and ends of all nodes, since the step's start, without any delay between them."""
    starts: list[Floats] = [np.zeros(1)] * len(graph.names)
    ends = list(starts)
    for nodes, meets, over_dp in zip(graph.groups, graph.meets, graph.over_dp, strict=True):
        for node in nodes:
            starts[node] = _latest(graph.waits_for[node], ends)
        if meets:
            together = starts[nodes[0]]
            for node in nodes[1:]:
                together = np.maximum(together, starts[node])
            if over_dp:
                together = together.max(axis=-1, keepdims=True)
            for node in nodes:
                ends[node] = together + lengths(node)
        else:
            for node in nodes:
                ends[node] = starts[node] + lengths(node)
    return starts, ends


def step_times(graph: Graph, lengths: Lengths) -> Floats:
    """Return how long the steps take, (…): until the last rank's last operation has ended."""
    _, ends = run(graph, lengths)
    longest: Floats = _latest(graph.last, ends).max(axis=-1)
    return longest


def _latest(nodes: tuple[int, ...], ends: list[Floats]) -> Floats:
    if not nodes:
        return np.zeros(1)
    found = ends[nodes[0]]
    for node in nodes[1:]:
        found = np.maximum(found, ends[node])
    return found
