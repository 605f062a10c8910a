"""Simulates a run's steps with other durations: each operation starts when its last dependency has ended.

One graph of dependencies is shared by all steps and all data-parallel ranks of a run, so all of them are computed at
once: one array per node. Times are nanoseconds as float64, which is exact up to 104 days.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ranklake.errors import RanklakeError


class WhatIfError(RanklakeError):
    """A run's spans are not sufficient for an analysis."""


@dataclass(frozen=True)
class Graph:
    """The operations of one step on the ranks of one pipeline, as nodes.

    Parameters
    ----------
    names
        Operation of each node, such as ``forward-compute``.
    stages
        Pipeline stage of each node.
    waits_for
        Nodes that must end before each node starts; a node without any starts with the step.
    groups
        Nodes that end together, in topological order. A node that does not communicate is a group of one.
    meets
        Whether each group's nodes communicate, so that they start with the last of them.
    over_dp
        Whether each group also waits for the other data-parallel ranks.
    last
        Nodes whose ends end the step.
    communicates
        Whether each node's ideal length is a median.
    parts
        Name under which each node's slowdown is reported.
    kinds
        Kind of each node; nodes of a kind have the same ideal length.
    streams
        Stream on which each node runs.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    waits_for: tuple[tuple[int, ...], ...]
    groups: tuple[tuple[int, ...], ...]
    meets: tuple[bool, ...]
    over_dp: tuple[bool, ...]
    last: tuple[int, ...]
    communicates: tuple[bool, ...]
    parts: tuple[str, ...]
    kinds: tuple[str, ...]
    streams: tuple[str, ...]


def in_order(waits_for: Sequence[Iterable[int]], groups: Sequence[tuple[int, ...]]) -> list[int]:
    """Return the positions of `groups` in topological order.

    Raises
    ------
    WhatIfError
        Some groups wait for each other.
    """
    group_of = {node: number for number, group in enumerate(groups) for node in group}
    open_waits = [0] * len(groups)
    followers: list[set[int]] = [set() for _ in groups]
    for node, others in enumerate(waits_for):
        for other in others:
            if group_of[node] not in followers[group_of[other]]:
                followers[group_of[other]].add(group_of[node])
                open_waits[group_of[node]] += 1
    ready = deque(number for number, count in enumerate(open_waits) if count == 0)
    order = []
    while ready:
        number = ready.popleft()
        order.append(number)
        for follower in sorted(followers[number]):
            open_waits[follower] -= 1
            if open_waits[follower] == 0:
                ready.append(follower)
    if len(order) < len(groups):
        hint = "spans of one stage must be in the order in which they ran; are the ranks' clocks far apart?"
        raise WhatIfError("operations have circular dependencies", hint=hint)
    return order


Floats = npt.NDArray[np.float64]
Lengths = Callable[[int], Floats]
"""Lengths of a node, (…, data-parallel ranks)."""


@dataclass(frozen=True)
class Trace:
    """Recorded durations of a run, by node.

    Parameters
    ----------
    graph
        Graph of dependencies.
    steps
        Their numbers.
    ranks
        Global ranks, (data-parallel ranks, stages); both count from 0.
    start_ns
        Since the step's first start, (nodes, steps, data-parallel ranks).
    duration_ns
        As recorded, of the same shape.
    notes
        What was left out and why, one line each.
    """

    graph: Graph
    steps: npt.NDArray[np.int64]
    ranks: npt.NDArray[np.int64]
    start_ns: Floats
    duration_ns: Floats
    notes: tuple[str, ...] = ()


def own_lengths(trace: Trace) -> Floats:
    """Return each operation's own length: its duration, or the time since the last member of its group started.

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
            common_start = starts[nodes[0]]
            for node in nodes[1:]:
                common_start = np.maximum(common_start, starts[node])
            if over_dp:
                common_start = common_start.max(axis=-1, keepdims=True)
            for node in nodes:
                ends[node] = common_start + lengths(node)
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
    latest = ends[nodes[0]]
    for node in nodes[1:]:
        latest = np.maximum(latest, ends[node])
    return latest
