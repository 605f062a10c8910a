"""Dependencies within a step: one graph that all steps and all data-parallel ranks of a run share."""

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
        Of each node: the name that slowdowns are told under.
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
