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
from typing import Final

Interval = tuple[int, int]
Edge = tuple[int, int, str, str, str]
"""Time (ms since 1970), place in the log, what, ``start`` or ``stop``, and which; ``sign`` of a step that ended."""

KINDS: Final = {"block": ("train", "phase"), "eval": ("evaluation", "evaluation"), "epoch": ("epoch", "other"),
                "run": ("run", "other"), "staging": ("staging", "phase")}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Told:
    """An interval, and whether the log tells both its begin and its end."""

    begin: int
    end: int
    whole: bool = True


@dataclass
class Intervals:
    """What a rank's edges say.

    Attributes
    ----------
    found
        By what, as in `KINDS`.
    untold
        Evaluations that only their end is told of: from the last sign of something else until then.
    """

    found: dict[str, list[Told]] = field(default_factory=dict)
    untold: list[Interval] = field(default_factory=list)

    def doubt(self) -> None:
        """Take evaluations that begin and end with a block, or epoch, for those of which only the end is told."""
        trained = [*self.found.get("block", []), *self.found.get("epoch", [])]
        for one in self.found.get("eval", []).copy():
            if any(max(abs(one.begin - of.begin), abs(one.end - of.end)) * 100 < of.end - of.begin for of in trained):
                self.found["eval"].remove(one)
                self.untold.append((one.end, one.end))

    def train(self) -> list[Told]:
        """Return where it trained: blocks, and epochs outside of blocks, where no evaluation was.

        Epochs that all begin after the last evaluation were told when all was over, and do not say when they were.
        """
        evals = sorted([(one.begin, one.end) for one in self.found.get("eval", [])] + self.untold)
        blocks, epochs = _united(self.found.get("block", [])), _united(self.found.get("epoch", []))
        if evals and epochs and epochs[0].begin >= evals[-1][1]:
            epochs = []
        apart = [one for one in epochs if not any(one.begin < of.end and one.end > of.begin for of in blocks)]
        spans = []
        for one in sorted(blocks + apart, key=lambda one: one.begin):
            for begin, end in outside((one.begin, one.end), evals):
                spans.append(Told(begin, end, one.whole or end < one.end))
        return spans


def paired(edges: Iterable[Edge], last: int) -> Intervals:
    """Match begins and ends by time; those of a kind that overlap, by the epoch, samples or step that they name.

    What has no end goes to the next begin of its kind; an evaluation whose end is not told before the next one begins,
    to the next begin of training; all to the run's end; else to the log's last line. A block without a begin began
    where the run did, or where the last block ended. An evaluation without a begin began nobody knows when, but not
    before the last step or block ended.
    """
    ordered = sorted(edges)
    matching = _Matching(
        [at for at, _, what, edge, _ in ordered if (what, edge) == ("eval", "start")],
        [at for at, _, what, edge, _ in ordered if (what, edge) == ("eval", "stop")],
    )
    overlapping = {what: _overlapping([edge for edge in ordered if edge[2] == what and edge[4]]) for what in KINDS}
    places = {place for _, taken in overlapping.values() for place in taken}
    for at, _, what, edge, _ in _ends_first([edge for edge in ordered if edge[1] not in places]):
        if edge == "sign":
            matching.sign(what, at)
        elif edge == "stop":
            matching.stop(what, at)
        else:
            matching.start(what, at)
    matching.close_all(last)
    for what, (intervals, _) in overlapping.items():
        if intervals:
            matching.of.found.setdefault(what, []).extend(intervals)
    matching.of.doubt()
    return matching.of


def _ends_first(ordered: list[Edge]) -> list[Edge]:
    """Return edges in the order of time; at one time, what is under way ends before the next begins, the run last."""
    found: list[Edge] = []
    opened: set[str] = set()
    for _, group in groupby(ordered, key=lambda edge: edge[0]):
        together = list(group)
        ended = opened & {edge[2] for edge in together if edge[3] == "stop"}
        together.sort(key=lambda edge: (edge[2:4] == ("run", "stop"), edge[3] == "start" and edge[2] in ended))
        for _, _, what, edge, _ in together:
            if edge == "start":
                opened.add(what)
            elif edge == "stop":
                opened.discard(what)
        found += together
    return found


def _overlapping(edges: list[Edge]) -> tuple[list[Told], set[int]]:
    """Return intervals of a kind that begin before another one has ended, and the places of their edges."""
    begun: dict[str, Edge] = {}
    found: list[tuple[Edge, Edge]] = []
    for edge in edges:
        if edge[3] == "start":
            begun[edge[4]] = edge
        elif edge[3] == "stop" and edge[4] in begun:
            found.append((begun.pop(edge[4]), edge))
    found.sort()
    if not found:
        return [], set()
    is_next = [later[0][:2] < earlier[1][:2] for earlier, later in pairwise(found)]
    kept = [pair for pair, *near in zip(found, [False, *is_next], [*is_next, False], strict=True) if any(near)]
    return [Told(start[0], stop[0]) for start, stop in kept], {edge[1] for pair in kept for edge in pair}


def _united(intervals: list[Told]) -> list[Told]:
    """Return intervals in their order, those that overlap as one."""
    found: list[Told] = []
    for one in sorted(intervals, key=lambda one: (one.begin, one.end)):
        if found and one.begin < found[-1].end:
            longer = max(found[-1], one, key=lambda of: (of.end, of.whole))
            found[-1] = Told(found[-1].begin, longer.end, longer.whole)
        else:
            found.append(one)
    return found


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
    of: Intervals = field(default_factory=Intervals)
    opened: dict[str, int] = field(default_factory=dict)
    free: int | None = None
    busy: int | None = None

    def close(self, what: str, at: int, *, whole: bool) -> None:
        begin = self.opened.pop(what, None)
        if begin is not None and (whole or at > begin):
            self.of.found.setdefault(what, []).append(Told(begin, at, whole))

    def close_all(self, at: int) -> None:
        for what in list(self.opened):
            self.close(what, at, whole=False)

    def sign(self, what: str, at: int) -> None:
        if what == "step":
            self.busy = at
        elif not self.starts and not self.stops:
            self.of.untold.append((at, at))

    def stop(self, what: str, at: int) -> None:
        if what == "eval" and "eval" not in self.opened:
            self.of.untold.append((at if self.busy is None else self.busy, at))
        if what == "block" and self.free is not None:
            self.opened.setdefault("block", self.free)
        self.close(what, at, whole=True)
        if what == "block":
            self.free = at
        if what in {"block", "epoch"}:
            self.busy = at
        if what == "run":
            self.close_all(at)
            self.free = at

    def start(self, what: str, at: int) -> None:
        self.close(what, at, whole=False)
        if what in {"block", "epoch"}:
            self.busy = None
            if not _ends_later(self.opened.get("eval"), self.starts, self.stops):
                self.close("eval", at, whole=False)
        if what == "run":
            self.free = at
        self.opened[what] = at


def _ends_later(begin: int | None, starts: list[int], stops: list[int]) -> bool:
    """Return whether an evaluation's end is told before the next one begins: it may overlap the next epoch."""
    if begin is None:
        return False
    after = bisect_left(stops, begin)
    later = [at for at in starts if at > begin]
    return after < len(stops) and (not later or stops[after] <= later[0])


def outside(of: Interval, others: list[Interval]) -> list[Interval]:
    """Return what is left of an interval outside of others, which are in their order."""
    begin, end = of
    left: list[Interval] = []
    for start, stop in others:
        if stop <= begin or start >= end:
            continue
        if start > begin:
            left.append((begin, start))
        begin = max(begin, stop)
    if begin < end:
        left.append((begin, end))
    return left
