"""Spans of a data-parallel job's phases as a trace.

    a rank's thread    ├ data ┤├ forward ┤├─ backward ─┬─ backward ─┬┤ collective ├┤ optimizer ┤
    its collectives                                    ├ all_reduce ┼┤ all_reduce ┤

A phase is cut where a collective begins in it, so that its pieces are the rank's own work. A collective starts when the
piece before it has ended. The thread waits for a collective without its own stream; for a concurrent one, the phase
``collective`` waits. Collectives wait for all data-parallel ranks.
"""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.diagnosis.simulate import Graph, Trace, WhatIfError, in_order
from ranklake.insight.diagnosis.spans import integers, left_out, rank_grid
from ranklake.printable import counted

_KINDS: Final = ("phase", "collective", "checkpoint", "evaluation")
_ROUNDING_NS: Final = 1000
"""Tolerance in ns: starts are whole microseconds, so an end may lie after the next start."""

WORK, BLOCKING, BESIDE, WAIT = "work", "blocking", "beside", "wait"


class Node(NamedTuple):
    """A piece of a step: its name, and whether it is work, a blocking or concurrent collective, or a wait."""

    name: str
    role: str
    stream: str


class Span(NamedTuple):
    """A span, as `Pieces` takes it."""

    start_ns: int
    duration_ns: int
    name: str
    is_collective: bool
    stream: str


@dataclass
class Pieces:
    """A rank's step, cut into nodes, with their lengths and starts."""

    nodes: list[Node] = field(default_factory=list)
    starts: list[int] = field(default_factory=list)
    lengths: list[int] = field(default_factory=list)
    _phase: str = ""
    _phase_end: int = -1
    _cut: int = 0
    _busy_until: int = -1
    _ends: dict[str, int] = field(default_factory=dict)

    def add(self, span: Span) -> None:
        """Add the next span in order of start; of two with the same start, the longer comes first."""
        start, end = span.start_ns, span.start_ns + span.duration_ns
        if (
            span.is_collective
            and not span.stream
            and start < self._busy_until
            and end <= self._busy_until + _ROUNDING_NS
        ):
            return  # part of a collective
        in_phase = start < self._phase_end and (bool(span.stream) or end <= self._phase_end + _ROUNDING_NS)
        if not span.is_collective:
            if in_phase:
                return  # part of a phase
            self.finish()
            self._phase, self._phase_end, self._cut = span.name, end, start
            return
        if in_phase:
            self._put(Node(self._phase, WORK, ""), self._cut, start - self._cut)
        if span.stream:
            self._cut = max(self._cut, start)
            begun = max(start, self._ends.get(span.stream, start))
            self._put(Node(span.name, BESIDE, span.stream), begun, end - begun)
            self._ends[span.stream] = end
            return
        if self._ends:
            result = max(start, *self._ends.values())
            self._put(Node(span.name, WAIT, ""), start, end - result)
            self._ends.clear()
        else:
            self._put(Node(span.name, BLOCKING, ""), start, span.duration_ns)
        self._cut = self._busy_until = end

    def finish(self) -> None:
        """End the current phase."""
        if self._phase:
            self._put(Node(self._phase, WORK, ""), self._cut, self._phase_end - self._cut)
        self._phase = ""

    @property
    def is_awaited(self) -> bool:
        """Whether there was a wait for all concurrent collectives."""
        return not self._ends

    def _put(self, node: Node, start: int, length: int) -> None:
        self.nodes.append(node)
        self.starts.append(start)
        self.lengths.append(max(length, 0))


def phase_trace(rows: pa.Table, notes: tuple[str, ...] = ()) -> Trace:
    """Return the trace of the phases among some spans of one attempt of a run.

    Raises
    ------
    WhatIfError
        There are no phases, or stages that need other spans, a rank or all complete steps are missing, or waits for
        other ranks cannot be separated from work.
    """
    rows = _usable(rows)
    ranks = rank_grid(integers(rows, "dp_rank"), integers(rows, "pp_rank"), integers(rows, "rank"))
    cells = dict(_cells(rows))
    steps = np.unique(integers(rows, "step"))
    dp_size = len(ranks)
    shapes = Counter(tuple(pieces.nodes) for pieces in cells.values())
    usual = shapes.most_common(1)[0][0]
    whole = np.array([
        all((at := cells.get((int(step), dp))) is not None and tuple(at.nodes) == usual for dp in range(dp_size))
        for step in steps
    ])  # fmt: skip
    more_notes = left_out(whole, steps)
    _judge(usual, dp_size, [cells[int(step), dp] for step in steps[whole] for dp in range(dp_size)])
    shape = (int(whole.sum()), dp_size, len(usual))
    chosen = [cells[int(step), dp] for step in steps[whole] for dp in range(dp_size)]
    start_ns = np.array([pieces.starts for pieces in chosen], np.int64).reshape(shape)
    lengths = np.array([pieces.lengths for pieces in chosen], np.float64).reshape(shape)
    start_ns = start_ns - start_ns.min(axis=(1, 2), keepdims=True)
    return Trace(
        graph=_graph(usual),
        steps=steps[whole],
        ranks=ranks,
        start_ns=np.ascontiguousarray(start_ns.astype(np.float64).transpose(2, 0, 1)),
        duration_ns=np.ascontiguousarray(lengths.transpose(2, 0, 1)),
        notes=(*notes, *more_notes),
    )


def need_phases(rows: pa.Table) -> None:
    """Raise `WhatIfError` if no span shows a rank's work in a step; spans of other ranks could not help."""
    if not pc.any(pc.equal(rows["kind"], "phase")).as_py():
        hint = "record phases of the steps, run.phase('forward'), or the operations of a pipeline"
        raise WhatIfError("no phases and no operations of a pipeline in any step", where="spans", hint=hint)


def _usable(rows: pa.Table) -> pa.Table:
    """Return the phases and collectives of steps; spans timed on a device replace the host's of the same name."""
    in_step = pc.and_(pc.is_valid(rows["step"]), pc.is_in(rows["kind"], pa.array(_KINDS)))
    rows = rows.filter(in_step)
    need_phases(rows)
    if integers(rows, "pp_rank").any():
        hint = "name computes forward-compute and backward-compute, and record forward-send, forward-recv, …"
        stages = int(integers(rows, "pp_rank").max()) + 1
        raise WhatIfError(f"{stages} stages, but no operations of a pipeline", where="spans", hint=hint)
    on_device = pc.and_(pc.not_equal(rows["kind"], "collective"), pc.fill_null(rows["device_time"], fill_value=False))
    timed = pc.unique(rows.filter(on_device)["name"])
    if len(timed) == 0:
        return rows
    by_host = pc.and_(pc.is_in(rows["name"], timed), pc.invert(pc.fill_null(rows["device_time"], fill_value=False)))
    return rows.filter(pc.invert(by_host))


def _cells(rows: pa.Table) -> Iterator[tuple[tuple[int, int], Pieces]]:
    """Yield (step, data-parallel rank) and its pieces."""
    step, dp = integers(rows, "step"), integers(rows, "dp_rank")
    start, duration = integers(rows, "ts") * 1000, integers(rows, "duration_ns")
    order = np.lexsort((integers(rows, "slot"), -duration, start, dp, step))
    names, kinds = rows["name"].to_pylist(), rows["kind"].to_pylist()
    streams, groups = rows["stream"].to_pylist(), rows["process_group"].to_pylist()
    sizes = rows["group_size"].to_pylist()
    at, pieces = None, Pieces()
    expected = int(dp.max()) + 1
    for row in order.tolist():
        cell = int(step[row]), int(dp[row])
        if cell != at:
            if at is not None:
                pieces.finish()
                yield at, pieces
            at, pieces = cell, Pieces()
        is_collective = kinds[row] == "collective"
        if is_collective and sizes[row] not in {None, expected}:
            raise WhatIfError(
                f"{names[row]} is among {sizes[row]} of {expected} data-parallel ranks (process group {groups[row]})",
                where="spans",
                hint="only collectives of all data-parallel ranks can be simulated",
            )
        stream = f"{streams[row]} {groups[row]}" if is_collective and streams[row] is not None else ""
        pieces.add(Span(int(start[row]), int(duration[row]), names[row], is_collective, stream))
    pieces.finish()
    if at is not None:
        yield at, pieces


def _judge(usual: tuple[Node, ...], dp_size: int, chosen: list[Pieces]) -> None:
    """Refuse spans in which waits for other ranks are part of a rank's own time."""
    roles = {node.role for node in usual}
    if dp_size > 1 and not roles & {BLOCKING, BESIDE}:
        raise WhatIfError(
            f"no collectives among the spans of {counted(dp_size, 'rank')}: waiting cannot be told from work",
            where="spans",
            hint="record them, run.collectives(model)",
        )
    if not all(pieces.is_awaited for pieces in chosen):
        raise WhatIfError(
            "collectives go on beside the phases, and no phase 'collective' says how long training waited for them",
            where="spans",
            hint="record it, run.collectives(model) or with run.phase('collective') around the wait",
        )


def _graph(nodes: tuple[Node, ...]) -> Graph:
    waits_for: list[tuple[int, ...]] = []
    before: int | None = None
    streams: dict[str, int] = {}
    for number, node in enumerate(nodes):
        needs = [] if before is None else [before]
        if node.role == BESIDE:
            needs += [streams[node.stream]] if node.stream in streams else []
            streams[node.stream] = number
        else:
            if node.role == WAIT:
                needs += streams.values()
                streams = {}
            before = number
        waits_for.append(tuple(needs))
    groups = [(number,) for number in range(len(nodes))]
    order = in_order(waits_for, groups)
    meets = tuple(nodes[number].role in {BLOCKING, BESIDE} for number in order)
    names = tuple(node.name for node in nodes)
    return Graph(
        names=names,
        stages=(0,) * len(nodes),
        waits_for=tuple(waits_for),
        groups=tuple(groups[number] for number in order),
        meets=meets,
        over_dp=meets,
        last=tuple(range(len(nodes))),
        communicates=tuple(node.role in {BLOCKING, BESIDE} for node in nodes),
        parts=names,
        kinds=tuple(f"{name} {number}" for number, name in enumerate(names)),
        streams=tuple(node.stream or "thread" for node in nodes),
    )
