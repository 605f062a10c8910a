"""``ranklake watch``: follow a run while it records."""

import sys
import time
from collections.abc import Iterator

import click

from ranklake.capture.live.live_run import LiveRun, RunWatch, find_run
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.locations import planned_root
from ranklake.commands.options import json_option, with_config
from ranklake.config import Config
from ranklake.terminal import Screen
from ranklake.views.json_output import json_text
from ranklake.views.live_run import live_line, live_lines
from ranklake.views.tell import tell

_NEXT_ATTEMPT_S = 10.0
"""How long to wait for a next attempt once all processes of a run died or sent their streams."""


@click.command()
@click.argument("run", default="")
@click.option("--local-dir", metavar="DIR", help="Local spool of this node; default: that of the runs here.")
@click.option(
    "--interval-s", default=1.0, show_default=True, type=click.FloatRange(min=0.1), help="Time between updates."
)
@click.option("--once", is_flag=True, help="Show the state of now and exit.")
@json_option
@with_config
def watch(config: Config, run: str, local_dir: str | None, interval_s: float, *, once: bool, as_json: bool) -> None:
    """Follow RUN while it records on this node: steps, loss, slowest ranks, gaps, seconds behind.

    RUN may be the beginning of a name; without it, the latest run here. It reads the files of the local spool: no
    ingest is needed, and the ranks do nothing for it. It ends when the run does; Ctrl-C ends it, too.
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
        except KeyboardInterrupt:  # the usual way to stop looking
            return
    if not once and not as_json:
        tell(f"the run is over; once it is in the lake, 'ranklake show {watched.run}' tells of it", err=True)


def _updates(watched: RunWatch, every_s: float) -> Iterator[LiveRun]:
    """Yield what each look tells, until the run is over or Ctrl-C; without a time between looks only one."""
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
