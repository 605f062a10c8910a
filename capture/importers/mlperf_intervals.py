"""MLPerf intervals: matches the starts and stops of a log, and computes the time of training.

init_start (first) to run_start          init
staging_start to staging_stop            staging: data is copied to the nodes
block_start to block_stop, and epochs    train, without the time of evaluations, and without epochs that overlap a block
eval_start to eval_stop                  evaluation; it may overlap the next epoch or evaluation
eval_stop or eval_accuracy alone         an evaluation with an unknown begin. So is one that begins and ends with a
                                         block, because trainers on TPUs queue block and evaluation together
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, NamedTuple

TimeRange = tuple[int, int]
"""Begin and end, ms since 1970."""

KINDS: Final = {"block": ("train", "phase"), "eval": ("evaluation", "evaluation"), "epoch": ("epoch", "other"),
                "run": ("run", "other"), "staging": ("staging", "phase")}  # fmt: skip


class Edge(NamedTuple):
    """A start or a stop.

    Attributes
    ----------
    at, position
        Time, ms since 1970, and position among the rank's edges in the log.
    kind
        One of `KINDS`, or ``step``.
    end
        ``start``, ``stop``, or ``end_only`` for the end of an interval whose begin is not logged.
    interval_key
        Epoch, samples or step of the interval; empty if the line does not have it.
    """

    at: int
    position: int
    kind: str
    end: str
    interval_key: str


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval, ms since 1970. `is_complete`: the log has both its begin and its end."""

    begin: int
    end: int
    is_complete: bool = True


@dataclass
class Intervals:
    """The intervals of a rank.

    Attributes
    ----------
    by_kind
        Intervals by the keys of `KINDS`.
    unstarted_evals
        Evaluations without a logged begin. The end of the previous step or block is taken as their begin.
    """

    by_kind: dict[str, list[Interval]] = field(default_factory=dict)
    unstarted_evals: list[TimeRange] = field(default_factory=list)

    def of(self, kind: str) -> list[Interval]:
        """Return the intervals of a kind."""
        return self.by_kind.setdefault(kind, [])

    def drop_queued_evals(self) -> None:
        """Move evaluations that begin and end with a block or epoch to `unstarted_evals`: their begin is unknown."""
        training = [*self.of("block"), *self.of("epoch")]
        for evaluation in self.of("eval").copy():
            begin, end = evaluation.begin, evaluation.end
            if any(max(abs(begin - x.begin), abs(end - x.end)) * 100 < x.end - x.begin for x in training):
                self.of("eval").remove(evaluation)
                self.unstarted_evals.append((end, end))

    def training_intervals(self) -> list[Interval]:
        """Return the time of training: blocks, and epochs that overlap no block, without the time of evaluations.

        If all epochs begin after the last evaluation, they were logged late, and are ignored.
        """
        evals = sorted([(evaluation.begin, evaluation.end) for evaluation in self.of("eval")] + self.unstarted_evals)
        blocks, epochs = _merge(self.of("block")), _merge(self.of("epoch"))
        if evals and epochs and epochs[0].begin >= evals[-1][1]:
            epochs = []
        epochs = [epoch for epoch in epochs if not any(epoch.begin < x.end and epoch.end > x.begin for x in blocks)]
        return [
            Interval(begin, end, training.is_complete or end < training.end)
            for training in sorted(blocks + epochs, key=lambda training: training.begin)
            for begin, end in _subtract((training.begin, training.end), evals)
        ]


def pair_edges(edges: Iterable[Edge], last: int) -> Intervals:
    """Match starts and stops by time, and those of overlapping intervals of one kind by their `interval_key`.

    An interval without a stop ends at the next start of its kind, at the run's end, or at the log's last line (`last`).
    An evaluation without a stop also ends at the next start of training, unless its stop is logged before the next
    evaluation. A block without a start begins at the run's start, or at the end of the previous block. An evaluation
    without a start begins at the earliest at the end of the last step or block.
    """
    ordered = sorted(edges)
    matching = _Matching(
        [edge.at for edge in ordered if (edge.kind, edge.end) == ("eval", "start")],
        [edge.at for edge in ordered if (edge.kind, edge.end) == ("eval", "stop")],
    )
    overlapping = {
        kind: _overlapping([edge for edge in ordered if edge.kind == kind and edge.interval_key]) for kind in KINDS
    }
    matched = {index for _, indices in overlapping.values() for index in indices}
    for edge in _ends_first([edge for edge in ordered if edge.position not in matched]):
        if edge.end == "end_only":
            matching.note_end(edge.kind, edge.at)
        elif edge.end == "stop":
            matching.stop(edge.kind, edge.at)
        else:
            matching.start(edge.kind, edge.at)
    matching.close_all(last)
    for kind, (intervals, _) in overlapping.items():
        matching.intervals.of(kind).extend(intervals)
    matching.intervals.drop_queued_evals()
    return matching.intervals


def _ends_first(ordered: list[Edge]) -> list[Edge]:
    """Order edges of equal time: stops of open intervals before starts of the same kind, and the run's stop last."""
    edges: list[Edge] = []
    open_kinds: set[str] = set()
    for _, group in groupby(ordered, key=lambda edge: edge.at):
        simultaneous = list(group)
        stopped = open_kinds & {edge.kind for edge in simultaneous if edge.end == "stop"}
        simultaneous.sort(
            key=lambda edge: ((edge.kind, edge.end) == ("run", "stop"), edge.end == "start" and edge.kind in stopped)
        )
        for edge in simultaneous:
            if edge.end == "start":
                open_kinds.add(edge.kind)
            elif edge.end == "stop":
                open_kinds.discard(edge.kind)
        edges += simultaneous
    return edges


def _overlapping(edges: list[Edge]) -> tuple[list[Interval], set[int]]:
    """Return the intervals of one kind that overlap a neighbour, and the indices of their edges."""
    starts: dict[str, Edge] = {}
    pairs: list[tuple[Edge, Edge]] = []
    for edge in edges:
        if edge.end == "start":
            starts[edge.interval_key] = edge
        elif edge.end == "stop" and edge.interval_key in starts:
            pairs.append((starts.pop(edge.interval_key), edge))
    pairs.sort()
    if not pairs:
        return [], set()
    overlaps = [later[0][:2] < earlier[1][:2] for earlier, later in pairwise(pairs)]
    overlapping = [
        pair for pair, *sides in zip(pairs, [False, *overlaps], [*overlaps, False], strict=True) if any(sides)
    ]
    indices = {edge.position for pair in overlapping for edge in pair}
    return [Interval(start.at, stop.at) for start, stop in overlapping], indices


def _merge(intervals: list[Interval]) -> list[Interval]:
    """Return intervals in order, with overlapping ones merged."""
    merged: list[Interval] = []
    for interval in sorted(intervals, key=lambda interval: (interval.begin, interval.end)):
        if merged and interval.begin < merged[-1].end:
            longer = max(merged[-1], interval, key=lambda item: (item.end, item.is_complete))
            merged[-1] = Interval(merged[-1].begin, longer.end, longer.is_complete)
        else:
            merged.append(interval)
    return merged


@dataclass
class _Matching:
    """State of matching starts and stops in the order of time.

    Attributes
    ----------
    starts, stops
        Starts and stops of all evaluations, in order.
    opened
        Begin of the open interval, by kind.
    block_begin
        Start of the run, or end of the last block: begin of a block without a start.
    eval_begin
        End of the last step or block: begin of an evaluation without a start.
    """

    starts: list[int]
    stops: list[int]
    intervals: Intervals = field(default_factory=Intervals)
    opened: dict[str, int] = field(default_factory=dict)
    block_begin: int | None = None
    eval_begin: int | None = None

    def close(self, kind: str, at: int, *, is_complete: bool) -> None:
        begin = self.opened.pop(kind, None)
        if begin is not None and (is_complete or at > begin):
            self.intervals.of(kind).append(Interval(begin, at, is_complete))

    def close_all(self, at: int) -> None:
        for kind in list(self.opened):
            self.close(kind, at, is_complete=False)

    def note_end(self, kind: str, at: int) -> None:
        if kind == "step":
            self.eval_begin = at
        elif not self.starts and not self.stops:
            self.intervals.unstarted_evals.append((at, at))

    def stop(self, kind: str, at: int) -> None:
        if kind == "eval" and "eval" not in self.opened:
            self.intervals.unstarted_evals.append((at if self.eval_begin is None else self.eval_begin, at))
        if kind == "block" and self.block_begin is not None:
            self.opened.setdefault("block", self.block_begin)
        self.close(kind, at, is_complete=True)
        if kind == "block":
            self.block_begin = at
        if kind in {"block", "epoch"}:
            self.eval_begin = at
        if kind == "run":
            self.close_all(at)
            self.block_begin = at

    def start(self, kind: str, at: int) -> None:
        self.close(kind, at, is_complete=False)
        if kind in {"block", "epoch"}:
            self.eval_begin = None
            if not _ends_before_next(self.opened.get("eval"), self.starts, self.stops):
                self.close("eval", at, is_complete=False)
        if kind == "run":
            self.block_begin = at
        self.opened[kind] = at


def _ends_before_next(begin: int | None, starts: list[int], stops: list[int]) -> bool:
    """Whether the stop of the evaluation that began at `begin` is logged before the next evaluation starts."""
    if begin is None:
        return False
    next_stop = bisect_left(stops, begin)
    later_starts = [at for at in starts if at > begin]
    return next_stop < len(stops) and (not later_starts or stops[next_stop] <= later_starts[0])


def _subtract(interval: TimeRange, others: list[TimeRange]) -> list[TimeRange]:
    """Return the parts of an interval outside of others, which are in order."""
    begin, end = interval
    parts: list[TimeRange] = []
    for start, stop in others:
        if stop <= begin or start >= end:
            continue
        if start > begin:
            parts.append((begin, start))
        begin = max(begin, stop)
    if begin < end:
        parts.append((begin, end))
    return parts
