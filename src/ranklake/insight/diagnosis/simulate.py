"""Simulates a run's steps with other durations: each operation starts when its last dependency has ended.

One graph of dependencies is shared by all steps and all data-parallel ranks of a run, so everything goes through these
at once: one array a node. Times are nanoseconds as float64, which is exact up to 104 days.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ranklake.errors import RanklakeError


class WhatIfError(RanklakeError):
    """A run's spans do not say what an analysis needs; nothing is computed."""


@dataclass(frozen=True)
class Graph:
    """The operations of one step on the ranks of one pipeline, as nodes.

    Parameters
    ----------
    names
        Of each node: its operation, such as ``forward-compute``.
    stages
        Of each node: the pipeline stage.
    waits_for
        Of each node: the nodes that must end before it starts; none: it starts with the step.
    groups
        Nodes that end together, in an order in which everything comes after what it waits for. A node that
        communicates with nobody is a group of its own.
    meets
        Of each group: whether its nodes communicate, so that they start when the last is there.
    over_dp
        Of each group: whether the other data-parallel ranks must be there, too.
    last
        Nodes whose ends end the step.
    communicates
        Of each node: whether its ideal length is a median.
    parts
        Of each node: the name that slowdowns are reported under.
    kinds
        Of each node: what has the same ideal length.
    streams
        Of each node: what it runs on.
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
    """Return the positions of `groups` in an order in which each comes after those that its nodes wait for.

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
        raise WhatIfError("operations wait for each other in a circle", hint=hint)
    return order


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
    latest = ends[nodes[0]]
    for node in nodes[1:]:
        latest = np.maximum(latest, ends[node])
    return latest
