"""Spans of a pipeline-parallel job as a trace, and the graph of its step.

The rules are those of "Understanding Stragglers in Large Model Training Using What-if Analysis" (OSDI'25): in-order
streams, receives before and sends after their computes, collectives at the step's ends. A trace has whole steps of the
most common shape; others are counted.
"""

from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

import numpy as np
import numpy.typing as npt

from ranklake.insight.diagnosis.simulate import Graph, Trace, WhatIfError, in_order
from ranklake.insight.diagnosis.spans import OPERATIONS, Ints, Spans, left_out, rank_grid

_CLOCK_SLACK_NS: Final = 50_000
"""How much later than the last compute a receive may start and still belong to it."""

_END: Final = (
    "gc",
    "layernorm-grads-all-reduce",
    "embedding-grads-all-reduce",
    "grads-reduce-scatter",
    "optimizer-clip-main-grad",
    "optimizer",
)
_END_OVERLAPPED: Final = (*_END[1:3], "separate-grads-all-reduce", *_END[4:])
_HOPS: Final = {"forward-send": 1, "forward-recv": -1, "backward-send": -1, "backward-recv": 1}
"""Position of the peer's model chunk, by send and receive operations."""


@dataclass(frozen=True)
class Template:
    """Operations of one pipeline in one step, by stage; those of one name in recorded order.

    Parameters
    ----------
    names, stages
        Of each node.
    start_ns, end_ns
        Of each node.
    chunks
        Model chunk of each node on its stage, from 0; -1 where none is recorded.
    """

    names: tuple[str, ...]
    stages: tuple[int, ...]
    start_ns: npt.NDArray[np.float64]
    end_ns: npt.NDArray[np.float64]
    chunks: npt.NDArray[np.int64]


class _Builder:
    """Collects the dependencies of each node, stage by stage."""

    def __init__(self, template: Template) -> None:
        self.template = template
        self.stages = max(template.stages) + 1
        self.nodes: dict[tuple[int, str], list[int]] = defaultdict(list)
        for node, (name, stage) in enumerate(zip(template.names, template.stages, strict=True)):
            self.nodes[stage, name].append(node)
        self.chunks = int(max(template.chunks.max(), 0)) + 1
        self.waits_for: list[list[int]] = [[] for _ in template.names]
        self.peers: dict[tuple[int, str], list[int]] = {}

    def chain(self, nodes: list[int]) -> None:
        for before, after in pairwise(nodes):
            self.waits_for[after].append(before)

    def stage_nodes(self, stage: int, *names: str) -> list[int]:
        """Return the stage's nodes of some names in the order in which they started."""
        nodes = [node for name in names for node in self.nodes[stage, name]]
        return sorted(nodes, key=lambda node: (self.template.start_ns[node], node))

    def stage(self, stage: int) -> None:
        computes = self.stage_nodes(stage, "forward-compute", "backward-compute")
        self.chain(computes)
        for name in _HOPS:
            self.chain(self.nodes[stage, name])
            self.peers[stage, name] = self.match_transfers(stage, name)
        self.before_backward(stage, computes)
        self.chain(self.stage_nodes(stage, "params-all-gather", "grads-reduce-scatter"))
        self.parameters(stage)
        self.end(stage, computes[-1])

    def match_transfers(self, stage: int, name: str) -> list[int]:
        """Link sends or receives to their computes; return those with a peer."""
        template, nodes = self.template, self.nodes[stage, name]
        direction, _, action = name.partition("-")
        computes = self.nodes[stage, f"{direction}-compute"]
        if action == "recv":
            nodes = [n for n in nodes if template.start_ns[n] <= template.start_ns[computes[-1]] + _CLOCK_SLACK_NS]
        else:
            nodes = [n for n in nodes if template.end_ns[n] >= template.end_ns[computes[0]] - _CLOCK_SLACK_NS]
        if not nodes and stage in {0, self.stages - 1}:
            return []
        missing = len(computes) - len(nodes)
        if missing not in ({0, 1} if stage in {0, self.stages - 1} else {0}):
            raise WhatIfError(
                f"stage {stage} has {len(computes)} {direction}-compute a step, but {len(nodes)} {name}",
                where="spans",
                hint="record every send and receive, or none of them",
            )
        with_peer = []
        first = missing if action == "recv" else 0
        for node, at in zip(nodes, range(first, len(computes)), strict=False):
            compute = computes[at]
            if action == "send":
                self.waits_for[node].append(compute)
            else:
                self.waits_for[compute].append(node)
                if at:
                    self.waits_for[node].append(computes[at - 1])
            peer = max(int(template.chunks[compute]), 0) * self.stages + stage + _HOPS[name]
            if 0 <= peer < self.chunks * self.stages:
                with_peer.append(node)
        return with_peer

    def before_backward(self, stage: int, computes: list[int]) -> None:
        """Let the first backward send and receive wait for the second-last forward before the first backward."""
        names = [self.template.names[node] for node in computes]
        first = names.index("backward-compute") if "backward-compute" in names else 0
        if first < 2:  # noqa: PLR2004 - there is no second-last one
            return
        for name in ("backward-recv", "backward-send"):
            for node in self.nodes[stage, name][:1]:
                self.waits_for[node].append(computes[first - 2])

    def parameters(self, stage: int) -> None:
        """Let the first forward of each chunk wait for the last all-gather of the chunk's parameters."""
        chunks = np.maximum(self.template.chunks, 0)
        gathers = {int(chunks[node]): node for node in self.nodes[stage, "params-all-gather"]}
        for node in self.nodes[stage, "forward-compute"]:
            gather = gathers.pop(int(chunks[node]), None)
            if gather is not None:
                self.waits_for[node].append(gather)

    def end(self, stage: int, last_compute: int) -> None:
        """Chain the operations after the last compute."""
        overlapped = any(name == "separate-grads-all-reduce" for name in self.template.names)
        if not overlapped:
            self.chain([last_compute, *(node for name in _END for node in self.nodes[stage, name])])
            return
        chunks = np.maximum(self.template.chunks, 0)
        scatters = self.nodes[stage, "grads-reduce-scatter"]
        begun = set()
        for node in scatters:
            if int(chunks[node]) not in begun:
                begun.add(int(chunks[node]))
                of_chunk = [n for n in self.nodes[stage, "backward-compute"] if chunks[n] == chunks[node]]
                self.waits_for[node] += of_chunk[-1:]
        after = [node for name in _END_OVERLAPPED for node in self.nodes[stage, name]]
        self.chain([last_compute, *self.nodes[stage, "gc"], *after])
        if after:
            self.waits_for[after[0]] += scatters[-1:]

    def groups(self) -> list[tuple[int, ...]]:
        """Return groups of nodes that end together; other nodes are groups of one."""
        groups: list[tuple[int, ...]] = []
        for direction, hop in (("forward", 1), ("backward", -1)):
            for stage in range(self.stages):
                other = (stage + hop) % self.stages
                sends, recvs = self.peers[stage, f"{direction}-send"], self.peers[other, f"{direction}-recv"]
                if len(sends) != len(recvs):
                    raise WhatIfError(
                        f"stage {stage} has {len(sends)} {direction}-send a step, stage {other} {len(recvs)} "
                        f"{direction}-recv",
                        where="spans",
                        hint="record both sides",
                    )
                groups += zip(sends, recvs, strict=True)
        for name in ("embedding-grads-all-reduce", "optimizer-clip-main-grad"):
            of_stages = [nodes for stage in range(self.stages) if (nodes := self.nodes[stage, name])]
            if len({len(nodes) for nodes in of_stages}) > 1:
                raise WhatIfError(f"stages differ in how many {name} they have a step", where="spans")
            groups += zip(*of_stages, strict=True)
        grouped = {node for group in groups for node in group}
        return groups + [(node,) for node in range(len(self.template.names)) if node not in grouped]


def pipeline_graph(template: Template) -> Graph:
    """Return the graph of a step.

    Raises
    ------
    WhatIfError
        Sends and receives do not fit the computes or each other, or the recorded order could never have run.
    """
    builder = _Builder(template)
    for stage in range(builder.stages):
        counts = {name: len(builder.nodes[stage, name]) for name in ("forward-compute", "backward-compute")}
        if not all(counts.values()):
            text = " and ".join(f"{count} {name}" for name, count in counts.items())
            raise WhatIfError(f"stage {stage} has {text} a step", where="spans", hint="record both")
        builder.stage(stage)
    groups = builder.groups()
    order = in_order(builder.waits_for, groups)
    operations = [OPERATIONS[name] for name in template.names]
    ordered = tuple(groups[number] for number in order)
    last = tuple(node for node, name in enumerate(template.names) if name == "optimizer")
    return Graph(
        names=template.names,
        stages=template.stages,
        waits_for=tuple(tuple(dict.fromkeys(nodes)) for nodes in builder.waits_for),
        groups=ordered,
        meets=tuple(len(nodes) > 1 or operations[nodes[0]].over_dp for nodes in ordered),
        over_dp=tuple(operations[nodes[0]].over_dp for nodes in ordered),
        last=last or tuple(range(len(template.names))),
        communicates=tuple(one.communicates for one in operations),
        parts=tuple(one.part or one.name for one in operations),
        kinds=template.names,
        streams=tuple(one.stream for one in operations),
    )


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
    whole = _complete_steps(counts.reshape(len(steps), dp_size, -1))
    more_notes = left_out(whole, steps)
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
        notes=(*notes, *more_notes),
    )


def _complete_steps(counts: Ints) -> npt.NDArray[np.bool_]:
    """Return a mask of the steps that have, on every data-parallel rank, the most common number of each operation.

    `counts` is (steps, data-parallel ranks, stages times operations).
    """
    flat = np.ascontiguousarray(counts.reshape(-1, counts.shape[2]))
    keys = flat.view(np.dtype((np.void, flat.dtype.itemsize * flat.shape[1]))).ravel()
    _, which, times = np.unique(keys, return_inverse=True, return_counts=True)
    fits = which.reshape(counts.shape[:2]) == int(np.argmax(times))
    whole: npt.NDArray[np.bool_] = fits.all(axis=1)
    return whole
