"""Intervals of an MLPerf log: matches starts and ends, handles unmatched ones, and finds what is training.

init_start (first) to run_start          init
staging_start to staging_stop            staging: data is brought to the nodes
block_start to block_stop, and epochs    train, outside of evaluations; of epochs, those that have no part in a block
eval_start to eval_stop                  evaluation; also where the next epoch, or evaluation, begins meanwhile
eval_stop, eval_accuracy alone           an evaluation of which nobody knows when it began; nor of one that is told to
                                         begin and end with a block: trainers on TPUs queue both at once
"""

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import groupby, pairwise
from typing import Final, NamedTuple

Stretch = tuple[int, int]
"""Begin and end, ms since 1970."""

KINDS: Final = {"block": ("train", "phase"), "eval": ("evaluation", "evaluation"), "epoch": ("epoch", "other"),
                "run": ("run", "other"), "staging": ("staging", "phase")}  # fmt: skip


class Edge(NamedTuple):
    """A begin or an end.

    Attributes
    ----------
    at, place
        When, ms since 1970, and where in the log.
    kind, end, which
        One of `KINDS`; ``start``, ``stop``, or ``end_only`` where the log does not say when it began; and the interval
        of its kind.
    """

    at: int
    place: int
    kind: str
    end: str
    which: str


@dataclass(frozen=True, slots=True)
class Interval:
    """An interval, and whether the log tells both its begin and its end."""

    begin: int
    end: int
    whole: bool = True


@dataclass
class Intervals:
    """What a rank's edges say.

    Attributes
    ----------
    by_kind
        As in `KINDS`.
    unstarted_evals
        Evaluations of which only the end is logged: from the last line about something else until then.
    """

    by_kind: dict[str, list[Interval]] = field(default_factory=dict)
    unstarted_evals: list[Stretch] = field(default_factory=list)

    def of(self, kind: str) -> list[Interval]:
        """Return the intervals of a kind."""
        return self.by_kind.setdefault(kind, [])

    def drop_queued_evals(self) -> None:
        """Drop evaluations that begin and end with a block or epoch; only their ends are known."""
        trained = [*self.of("block"), *self.of("epoch")]
        for evaluation in self.of("eval").copy():
            begin, end = evaluation.begin, evaluation.end
            if any(max(abs(begin - of.begin), abs(end - of.end)) * 100 < of.end - of.begin for of in trained):
                self.of("eval").remove(evaluation)
                self.unstarted_evals.append((end, end))

    def training_intervals(self) -> list[Interval]:
        """Return where it trained: blocks, and epochs outside of blocks, where no evaluation was.

        Epochs that all begin after the last evaluation were reported when all was over, and do not say when they were.
        """
        evals = sorted([(evaluation.begin, evaluation.end) for evaluation in self.of("eval")] + self.unstarted_evals)
        blocks, epochs = _merge(self.of("block")), _merge(self.of("epoch"))
        if evals and epochs and epochs[0].begin >= evals[-1][1]:
            epochs = []
        apart = [epoch for epoch in epochs if not any(epoch.begin < of.end and epoch.end > of.begin for of in blocks)]
        return [
            Interval(begin, end, training.whole or end < training.end)
            for training in sorted(blocks + apart, key=lambda training: training.begin)
            for begin, end in _subtract((training.begin, training.end), evals)
        ]


def pair_edges(edges: Iterable[Edge], last: int) -> Intervals:
    """Match begins and ends by time; those of a kind that overlap, by the epoch, samples or step that they name.

    What has no end goes to the next begin of its kind; an evaluation whose end is not logged before the next begins,
    to the next begin of training; all to the run's end; else to the log's last line. A block without a begin began
    where the run did, or where the last block ended. An evaluation without a begin began nobody knows when, but not
    before the last step or block ended.
    """
    ordered = sorted(edges)
    matching = _Matching(
        [edge.at for edge in ordered if (edge.kind, edge.end) == ("eval", "start")],
        [edge.at for edge in ordered if (edge.kind, edge.end) == ("eval", "stop")],
    )
    overlapping = {kind: _overlapping([edge for edge in ordered if edge.kind == kind and edge.which]) for kind in KINDS}
    places = {place for _, taken in overlapping.values() for place in taken}
    for edge in _ends_first([edge for edge in ordered if edge.place not in places]):
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
    """Return edges in the order of time; at one time, what is under way ends before the next begins, the run last."""
    edges: list[Edge] = []
    opened: set[str] = set()
    for _, group in groupby(ordered, key=lambda edge: edge.at):
        together = list(group)
        ended = opened & {edge.kind for edge in together if edge.end == "stop"}
        together.sort(
            key=lambda edge: ((edge.kind, edge.end) == ("run", "stop"), edge.end == "start" and edge.kind in ended)
        )
        for edge in together:
            if edge.end == "start":
                opened.add(edge.kind)
            elif edge.end == "stop":
                opened.discard(edge.kind)
        edges += together
    return edges


def _overlapping(edges: list[Edge]) -> tuple[list[Interval], set[int]]:
    """Return intervals of a kind that begin before another one has ended, and the places of their edges."""
    begun: dict[str, Edge] = {}
    pairs: list[tuple[Edge, Edge]] = []
    for edge in edges:
        if edge.end == "start":
            begun[edge.which] = edge
        elif edge.end == "stop" and edge.which in begun:
            pairs.append((begun.pop(edge.which), edge))
    pairs.sort()
    if not pairs:
        return [], set()
    is_next = [later[0][:2] < earlier[1][:2] for earlier, later in pairwise(pairs)]
    kept = [pair for pair, *near in zip(pairs, [False, *is_next], [*is_next, False], strict=True) if any(near)]
    return [Interval(start.at, stop.at) for start, stop in kept], {edge.place for pair in kept for edge in pair}


def _merge(intervals: list[Interval]) -> list[Interval]:
    """Return intervals in their order, those that overlap as one."""
    united: list[Interval] = []
    for interval in sorted(intervals, key=lambda interval: (interval.begin, interval.end)):
        if united and interval.begin < united[-1].end:
            longer = max(united[-1], interval, key=lambda of: (of.end, of.whole))
            united[-1] = Interval(united[-1].begin, longer.end, longer.whole)
        else:
            united.append(interval)
    return united


@dataclass
class _Matching:
    """Begins and ends on their way, in the order of time.

    Attributes
    ----------
    starts, stops
        Of evaluations, in their order.
    opened
        When what is under way began.
    free
        When the run began, or the last block ended: where a block may have begun.
    busy
        When the last step, or block, ended: where an evaluation may have begun.
    """

    starts: list[int]
    stops: list[int]
    intervals: Intervals = field(default_factory=Intervals)
    opened: dict[str, int] = field(default_factory=dict)
    free: int | None = None
    busy: int | None = None

    def close(self, kind: str, at: int, *, whole: bool) -> None:
        begin = self.opened.pop(kind, None)
        if begin is not None and (whole or at > begin):
            self.intervals.of(kind).append(Interval(begin, at, whole))

    def close_all(self, at: int) -> None:
        for kind in list(self.opened):
            self.close(kind, at, whole=False)

    def note_end(self, kind: str, at: int) -> None:
        if kind == "step":
            self.busy = at
        elif not self.starts and not self.stops:
            self.intervals.unstarted_evals.append((at, at))

    def stop(self, kind: str, at: int) -> None:
        if kind == "eval" and "eval" not in self.opened:
            self.intervals.unstarted_evals.append((at if self.busy is None else self.busy, at))
        if kind == "block" and self.free is not None:
            self.opened.setdefault("block", self.free)
        self.close(kind, at, whole=True)
        if kind == "block":
            self.free = at
        if kind in {"block", "epoch"}:
            self.busy = at
        if kind == "run":
            self.close_all(at)
            self.free = at

    def start(self, kind: str, at: int) -> None:
        self.close(kind, at, whole=False)
        if kind in {"block", "epoch"}:
            self.busy = None
            if not _ends_before_next(self.opened.get("eval"), self.starts, self.stops):
                self.close("eval", at, whole=False)
        if kind == "run":
            self.free = at
        self.opened[kind] = at


def _ends_before_next(begin: int | None, starts: list[int], stops: list[int]) -> bool:
    """Whether an evaluation's end is reported before the next one begins: it may overlap the next epoch."""
    if begin is None:
        return False
    after = bisect_left(stops, begin)
    later = [at for at in starts if at > begin]
    return after < len(stops) and (not later or stops[after] <= later[0])


def _subtract(of: Stretch, others: list[Stretch]) -> list[Stretch]:
    """Return what is left of an interval outside of others, which are in their order."""
    begin, end = of
    left: list[Stretch] = []
    for start, stop in others:
        if stop <= begin or start >= end:
            continue
        if start > begin:
            left.append((begin, start))
        begin = max(begin, stop)
    if begin < end:
        left.append((begin, end))
    return left
