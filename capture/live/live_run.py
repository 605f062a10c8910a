"""Live run: the current state of a run in the local spool."""

import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, Self

from ranklake.capture.live.live_stream import LiveEvent, LiveStream, Step
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.files import may_serve
from ranklake.capture.spool.stream_files import StreamName, open_files, streams
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.segments.segment import readable_name

RECENT_STEPS: Final = 50
"""Number of recent steps for current figures."""
POINTS: Final = 64
"""Most points of a curve."""
_MOST_ALERTS: Final = 5
_LONG_S: Final = 10.0
_OVERDUE: Final = 10

Curve = tuple[tuple[int, float], ...]


@dataclass(frozen=True, slots=True)
class LostRows:
    """Rows of a table that could not be recorded."""

    table: str
    reason: str
    rows: int


@dataclass(frozen=True, slots=True)
class LiveRank:
    """The state of a rank; None means unknown.

    Attributes
    ----------
    state
        As in `LiveStream`, for the latest process of the rank.
    steps, step
        Number of steps read, and the last step's number.
    step_time_s, self_time_s
        Medians of recent steps; self time excludes the time in collectives.
    slower_ratio
        Excess of its self time over the median of the other ranks on this node, as a ratio.
    loss
        Loss of the last step that logged one.
    since_step_s
        Seconds since its last step ended.
    gap_rows
        Rows that it could not record.
    """

    rank: int
    state: str
    steps: int
    step: int | None
    step_time_s: float | None
    self_time_s: float | None
    slower_ratio: float | None
    loss: float | None
    since_step_s: float | None
    gap_rows: int


@dataclass(frozen=True, slots=True)
class LiveRun:
    """The state of a run in the local spool, for its ranks on this node; None means unknown.

    Attributes
    ----------
    time_ns
        When the files were read.
    world_size
        Number of ranks of the whole run; 0 if unknown.
    state
        ``runs`` while any rank runs; ``stalled`` if no running rank has ended a step for ten times a step's time (and
        ten seconds); else the state in which the ranks ended.
    ranks
        Ranks by self time, the slowest first.
    behind_s
        Age of the newest step.
    step_time_s, tokens_per_s
        Figures of recent steps: median over ranks, and sum over ranks.
    loss
        Mean over ranks for the last step that logged a loss.
    losses, step_times
        Curves by step; each point is the mean over ranks and neighbouring steps.
    flagged
        The last steps whose loss, gradient norm or learning rate was NaN or infinite: number and names.
    gaps
        Rows that could not be recorded, by table and reason.
    alerts
        The last warnings and errors.
    unreadable
        Number of segments in the local spool that could not be read.
    """

    run: str
    attempt: int
    time_ns: int
    world_size: int
    state: str
    ranks: tuple[LiveRank, ...]
    step: int | None
    behind_s: float | None
    step_time_s: float | None
    tokens_per_s: float | None
    loss: float | None
    losses: Curve
    step_times: Curve
    flagged: tuple[tuple[int, str], ...]
    gaps: tuple[LostRows, ...]
    alerts: tuple[LiveEvent, ...]
    unreadable: int

    @property
    def is_over(self) -> bool:
        """Whether all ranks have ended, so that no more rows are recorded."""
        return self.state in {"ended", "sent"}


def summarize(run: str, attempt: int, streams: Sequence[LiveStream], time_ns: int) -> LiveRun:
    """Return the state of a run from the streams of one attempt."""
    by_rank: defaultdict[int, list[LiveStream]] = defaultdict(list)
    for stream in streams:
        by_rank[stream.name.rank].append(stream)
    ranks = _compare_to_median([_rank(number, by_rank[number], time_ns) for number in sorted(by_rank)])
    steps = [step for stream in streams for step in stream.steps.values()]
    by_step = _by_step(steps)
    losses = [(number, _mean(step.loss for step in same_step)) for number, same_step in by_step]
    times = [(number, _mean(step.step_time_s for step in same_step)) for number, same_step in by_step]
    known_losses = [loss for _, loss in losses if loss is not None]
    step_time = _median(rank.step_time_s for rank in ranks)
    behind = min((rank.since_step_s for rank in ranks if rank.since_step_s is not None), default=None)
    events = sorted(event for stream in streams for event in stream.alerts.values())
    gaps: Counter[tuple[str, str]] = sum((stream.gaps for stream in streams), Counter())
    return LiveRun(
        run=run,
        attempt=attempt,
        time_ns=time_ns,
        world_size=max((stream.world_size for stream in streams), default=0),
        state=_state([rank.state for rank in ranks], behind, step_time),
        ranks=ranks,
        step=by_step[-1][0] if by_step else None,
        behind_s=behind,
        step_time_s=step_time,
        tokens_per_s=_tokens_per_s(by_rank.values()),
        loss=known_losses[-1] if known_losses else None,
        losses=_curve(losses),
        step_times=_curve(times),
        flagged=tuple(sorted({(step.step, step.flagged) for step in steps if step.flagged}))[-_MOST_ALERTS:],
        gaps=tuple(LostRows(table, reason, rows) for (table, reason), rows in sorted(gaps.items())),
        alerts=tuple(events[-_MOST_ALERTS:]),
        unreadable=sum(stream.unreadable for stream in streams),
    )


def _rank(number: int, streams: Sequence[LiveStream], time_ns: int) -> LiveRank:
    recent = _recent(streams)
    states = [stream.state for stream in streams if not stream.is_child] or ["sent"]
    losses = [step.loss for step in recent if _nan_to_none(step.loss) is not None]
    own = (step.step_time_s - (_nan_to_none(step.collective_time_s) or 0.0) for step in recent)
    return LiveRank(
        rank=number,
        state=next((state for state in ("runs", "died") if state in states), states[-1]),
        steps=sum(len(stream.steps) for stream in streams),
        step=recent[-1].step if recent else None,
        step_time_s=_median(step.step_time_s for step in recent),
        self_time_s=_median(own),
        slower_ratio=None,
        loss=losses[-1] if losses else None,
        since_step_s=max(time_ns - recent[-1].end_ns, 0) / 1e9 if recent else None,
        gap_rows=sum(sum(stream.gaps.values()) for stream in streams),
    )


def _recent(streams: Iterable[LiveStream]) -> list[Step]:
    latest = (step for stream in streams for step in list(stream.steps.values())[-RECENT_STEPS:])
    return sorted(latest, key=lambda step: step.end_ns)[-RECENT_STEPS:]


def _compare_to_median(ranks: Sequence[LiveRank]) -> tuple[LiveRank, ...]:
    """Return ranks with `slower_ratio`, the excess over the median of the other ranks; the slowest first."""
    compared = []
    for rank in ranks:
        median_s = _median(other.self_time_s for other in ranks if other is not rank)
        own_s = rank.self_time_s
        compared.append(rank if own_s is None or not median_s else replace(rank, slower_ratio=own_s / median_s - 1))
    return tuple(sorted(compared, key=lambda rank: (-(rank.self_time_s or 0.0), rank.rank)))


def _state(states: Sequence[str], behind_s: float | None, step_time_s: float | None) -> str:
    if "runs" in states:
        is_late = behind_s is not None and behind_s > max(_LONG_S, _OVERDUE * (step_time_s or 0.0))
        return "stalled" if is_late else "runs"
    return next((state for state in ("died", "ended") if state in states), "sent")


def _by_step(steps: Iterable[Step]) -> list[tuple[int, list[Step]]]:
    by_step: defaultdict[int, list[Step]] = defaultdict(list)
    for step in steps:
        by_step[step.step].append(step)
    return sorted(by_step.items())


def _tokens_per_s(ranks: Iterable[Sequence[LiveStream]]) -> float | None:
    """Return the sum of the ranks' rates in their recent steps; None if a step's tokens are unknown."""
    rates = []
    for rank in ranks:
        recent = _recent(rank)
        duration_s, tokens = sum(step.step_time_s for step in recent), sum(step.tokens for step in recent)
        if recent and duration_s:
            rates.append(tokens / duration_s)
    return _nan_to_none(sum(rates)) if rates else None


def _curve(points: Sequence[tuple[int, float | None]]) -> Curve:
    """Return at most `POINTS` points; each has the first step and the mean of a group of known values."""
    known = [(step, value) for step, value in points if value is not None]
    count = min(POINTS, len(known))
    edges = [index * len(known) // count for index in range(count + 1)] if count else []
    parts = [known[low:high] for low, high in itertools.pairwise(edges)]
    return tuple((part[0][0], statistics.fmean(value for _, value in part)) for part in parts)


def _median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _mean(values: Iterable[float]) -> float | None:
    known = [value for value in values if not math.isnan(value)]
    return statistics.fmean(known) if known else None


def _nan_to_none(value: float) -> float | None:
    return None if math.isnan(value) else value


class NoLiveRunError(RanklakeError):
    """The local spool has no matching run."""


def recording_runs(root: Path) -> dict[str, float]:
    """Return the runs in a local spool that record steps, each with the time of its newest file of steps."""
    last_seen: dict[str, float] = {}
    for folder in streams(root, may_serve):
        name = StreamName.of(folder)
        try:
            times = [file.path.stat().st_ctime for file in open_files(folder) if file.table == "steps"]
        except OSError:  # deleted meanwhile
            continue
        if name is not None and times:
            last_seen[name.run] = max(last_seen.get(name.run, 0.0), *times)
    return last_seen


def find_run(root: Path, prefix: str) -> str:
    """Return the run of this name, or the only run whose name or readable name begins with `prefix`.

    With an empty `prefix`, return the run that recorded last. Raises `NoLiveRunError`.
    """
    runs = sorted({name.run for folder in streams(root, may_serve) if (name := StreamName.of(folder))})
    recording = recording_runs(root)
    if not prefix and recording:
        return max(recording, key=lambda run: recording[run])
    matches = [run for run in runs if prefix and (run.startswith(prefix) or readable_name(run).startswith(prefix))]
    if prefix in runs or len(matches) == 1:
        return prefix if prefix in runs else matches[0]
    where = f"local spool {root}"
    if len(matches) > 1:
        hint = f"write more of the name: {', '.join(matches[:6])}"
        raise NoLiveRunError(f"{len(matches)} runs begin with {prefix!r}", where=where, hint=hint)
    problem = f"no run {prefix!r} records here" if prefix else "no run records here"
    suggestion = f"{did_you_mean(prefix, runs)} " if prefix and runs else ""
    hint = f"{suggestion}'ranklake show RUN' shows runs in the lake"
    raise NoLiveRunError(problem, where=where, hint=hint)


@dataclass
class RunWatch:
    """The latest attempt of a run in a local spool, with the rows read so far.

    It only reads files: nothing is written, and recording processes are not affected.
    """

    root: Path
    run: str
    keys: SealingKeys = field(default_factory=SealingKeys)
    attempt: int = 0
    _streams: dict[Path, LiveStream] = field(default_factory=dict)

    def look(self) -> LiveRun:
        """Read new rows and return the state of the run. Raises `OSError` if the local spool cannot be read."""
        began_ns = time.time_ns()  # steps that ended before this time are included
        found_streams = {
            folder: name for folder in streams(self.root, may_serve) if (name := self._own_stream(folder)) is not None
        }
        self.attempt = max([self.attempt, *(name.attempt for name in found_streams.values())])
        for folder, stream in list(self._streams.items()):
            if stream.name.attempt != self.attempt:
                stream.close()
                del self._streams[folder]
        for folder, name in found_streams.items():
            if name.attempt == self.attempt and folder not in self._streams:
                self._streams[folder] = LiveStream(name, folder, self.keys)
        for stream in self._streams.values():
            stream.look()
        return summarize(self.run, self.attempt, list(self._streams.values()), began_ns)

    def _own_stream(self, folder: Path) -> StreamName | None:
        name = StreamName.of(folder)
        return name if name is not None and name.run == self.run else None

    def close(self) -> None:
        """Close all files."""
        for stream in self._streams.values():
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
