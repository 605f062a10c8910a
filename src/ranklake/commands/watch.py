"""``ranklake watch``: follow a run while it records, on a terminal."""

import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Final

import click

from ranklake.capture.live.live_run import Curve, LiveRank, LiveRun, RunWatch, find_run
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.locations import planned_root
from ranklake.commands.options import json_option, with_config
from ranklake.config import Config
from ranklake.printable import counted
from ranklake.terminal import Screen
from ranklake.views.json_output import json_text
from ranklake.views.run_plot import curve_lines
from ranklake.views.table import TextColumn, fitting
from ranklake.views.tell import tell
from ranklake.views.words import UNKNOWN, length_text, number_text, or_dash, percent_text

_NEXT_ATTEMPT_S = 10.0
"""How long to wait for another attempt after all processes of a run died or sent their streams."""


@click.command()
@click.argument("run", default="")
@click.option("--local-dir", metavar="DIR", help="Local spool of this node; default: that of the runs here.")
@click.option(
    "--interval-s", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Time between updates."
)
@click.option("--once", is_flag=True, help="Show the current state and exit.")
@json_option
@with_config
def watch(config: Config, run: str, local_dir: str | None, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Follow RUN while it records on this node: steps, loss, slowest ranks, gaps, lag in seconds.

    RUN may be the beginning of a name; without it, the latest run here. Reads the files of the local spool, without an
    ingest and without work for the ranks. Ends with the run, or on Ctrl-C.
    """
    root = planned_root(local_dir or config.spool.local)
    keys = SealingKeys(config.capture.encryption_key, config.capture.signing_key)
    screen = Screen(sys.stdout)
    with RunWatch(root, find_run(root, run), keys) as watched:
        try:
            for facts in _updates(watched, 0.0 if once else interval_s):
                if as_json:
                    tell(json_text(facts))
                elif once or screen.is_terminal:
                    screen.show(live_lines(facts, screen.width))
                else:
                    tell(live_line(facts))
                sys.stdout.flush()
        except KeyboardInterrupt:  # the usual way to stop
            return
    if not once and not as_json:
        tell(f"the run is over; once it is in the lake, 'ranklake show {watched.run}' tells of it", err=True)


def _updates(watched: RunWatch, every_s: float) -> Iterator[LiveRun]:
    """Yield the run's state at intervals, until the run ends or Ctrl-C; once without an interval."""
    quiet_since = None
    while True:
        begun = time.monotonic()
        facts = watched.look()
        yield facts
        if not every_s or facts.state == "ended":
            return
        quiet_since = None if facts.state in {"runs", "stalled"} else quiet_since or begun
        if quiet_since is not None and begun - quiet_since > _NEXT_ATTEMPT_S:
            return
        time.sleep(max(every_s - (time.monotonic() - begun), 0.0))


_MOST_RANKS: Final = 8
_AXIS_COLUMNS: Final = 10
_PLOT_COLUMNS: Final = 64
_HEIGHT: Final = 6
_STATES: Final = {
    "runs": "records",
    "stalled": "records no steps",
    "ended": "ended",
    "died": "its process died without closing the run",
    "sent": "ended, and all of it is sent",
}
_COLUMNS: Final = (
    TextColumn("rank", is_right=True),
    TextColumn("step", is_right=True),
    TextColumn("step time", is_right=True),
    TextColumn("self time", is_right=True),
    TextColumn("vs peers", is_right=True),
    TextColumn("last step", is_right=True),
    TextColumn("gaps", is_right=True),
    TextColumn("loss", is_right=True),
    TextColumn("state"),
)


def live_line(facts: LiveRun) -> str:
    """Return the state of a run as one line."""
    parts = [f"step {_number(facts.step)}", f"loss {number_text(facts.loss)}", length_text(facts.step_time_s)]
    slowest = facts.ranks[0] if facts.ranks else None
    if slowest is not None and slowest.slower_ratio is not None:
        parts.append(f"slowest rank {slowest.rank} {_signed_percent(slowest.slower_ratio)}")
    parts += [f"last step {length_text(facts.behind_s)} ago"] if facts.behind_s is not None else []
    parts += [f"{_lost_rows(facts):,} rows lost"] if facts.gaps else []
    return f"{facts.run}  {'  '.join(parts)}  {_STATES[facts.state]}"


def live_lines(facts: LiveRun, width: int | None) -> list[str]:
    """Return the state of a run as a screen of lines."""
    lines = [*_head(facts), "", *fitting(_COLUMNS, map(_cells, facts.ranks[:_MOST_RANKS]), width)]
    if len(facts.ranks) > _MOST_RANKS:
        lines.append(f"the slowest {_MOST_RANKS} of {counted(len(facts.ranks), 'rank')} here")
    for title, curve in (("loss (mean of the ranks here)", facts.losses), ("step time (s)", facts.step_times)):
        lines += ["", *_plot(title, curve, width)]
    return [*lines, "", *_trouble(facts)]


def _head(facts: LiveRun) -> Iterator[str]:
    here = len(facts.ranks)
    ranks = f"{here} of {counted(facts.world_size, 'rank')} here" if facts.world_size > here else counted(here, "rank")
    attempt = f", attempt {facts.attempt}" if facts.attempt else ""
    yield f"run {facts.run}  {_STATES[facts.state]}"
    yield f"{ranks}{attempt}, {datetime.fromtimestamp(facts.time_ns / 1e9, UTC):%H:%M:%S} UTC"
    if facts.step is None:
        yield "no step recorded so far"
        return
    yield f"step {facts.step:,}, {length_text(facts.behind_s)} ago; loss {number_text(facts.loss)}"
    pace = f"; {number_text(facts.tokens_per_s)} tokens/s here" if facts.tokens_per_s is not None else ""
    yield f"{length_text(facts.step_time_s)} a step{pace}"


def _cells(rank: LiveRank) -> tuple[str, ...]:
    return (
        str(rank.rank),
        _number(rank.step),
        or_dash(rank.step_time_s, length_text(rank.step_time_s)),
        or_dash(rank.self_time_s, length_text(rank.self_time_s)),
        "-" if rank.slower_ratio is None else _signed_percent(rank.slower_ratio),
        or_dash(rank.since_step_s, f"{length_text(rank.since_step_s)} ago"),
        f"{rank.gap_rows:,}",
        or_dash(rank.loss, number_text(rank.loss)),
        _STATES[rank.state],
    )


def _plot(title: str, curve: Curve, width: int | None) -> list[str]:
    if not curve:
        return [f"{title}: {UNKNOWN}, none was recorded so far"]
    columns = _PLOT_COLUMNS if width is None else max(min(_PLOT_COLUMNS, width - _AXIS_COLUMNS - 1), 1)
    drawn = curve_lines([value for _, value in curve], width=columns, height=_HEIGHT)
    return [title, *drawn, f"{'':{_AXIS_COLUMNS}}step {curve[0][0]:,} to {curve[-1][0]:,}"]


def _trouble(facts: LiveRun) -> Iterator[str]:
    yield from (f"step {step:,}: {flagged}" for step, flagged in facts.flagged)
    for event in facts.alerts:
        moment = datetime.fromtimestamp(event.time_ns / 1e9, UTC)
        yield f"{moment:%H:%M:%S} {event.severity} {event.event}{f': {event.message}' if event.message else ''}"
    yield from (f"gap: {event.rows:,} rows of {event.table}: {event.reason}" for event in facts.gaps)
    if facts.unreadable:
        yield f"{counted(facts.unreadable, 'segment')} here cannot be read: encrypted, or damaged"
    if not facts.gaps:
        yield "gaps none"


def _lost_rows(facts: LiveRun) -> int:
    return sum(one.rows for one in facts.gaps)


def _signed_percent(ratio: float) -> str:
    return f"{'+' if ratio >= 0 else ''}{percent_text(ratio)}"


def _number(value: int | None) -> str:
    return "-" if value is None else f"{value:,}"
