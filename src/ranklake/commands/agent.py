"""``ranklake agent``."""

import json
import signal
import threading
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from ranklake.capture.places import local_root, spool_uri
from ranklake.capture.recover import Recovered, Recovery
from ranklake.commands.options import configuration, json_option
from ranklake.lake.store import filesystem

if TYPE_CHECKING:
    from types import FrameType


@click.command()
@click.option("--spool", metavar="URI", help="URI or folder of the spool; default: where each run meant to send it.")
@click.option("--local-dir", metavar="DIR", help="Local spool of this node; default: as the runs here have it.")
@click.option("--once", is_flag=True, help="Look once and end.")
@click.option(
    "--interval-s", default=10.0, show_default=True, type=click.FloatRange(min=0.1), help="Time between looks."
)
@json_option
@click.pass_context
def agent(
    ctx: click.Context, spool: str | None, local_dir: str | None, interval_s: float, *, once: bool, as_json: bool
) -> int:
    """Upload and adopt what the ranks of this node left in their local spool.

    Streams whose process runs are left alone: they upload themselves. Without --once it goes on until SIGTERM or
    Ctrl-C. Exits 1 if a stream could not be finished; segments that only wait for the spool are no such trouble.
    """
    config = configuration(ctx)
    uri = spool_uri(spool or config.spool.uri)
    options: dict[str, Any] = {}
    if uri and config.storage:
        options = dict(filesystem(uri, config.storage)[0].storage_options)
    recovery = Recovery(local_root(local_dir), uri, options)
    stop = threading.Event()
    if once:
        done = recovery.run()
        _tell(done, as_json=as_json)
        return 1 if done.troubles else 0

    def ask_to_stop(number: int, frame: "FrameType | None") -> None:
        del number, frame
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    troubled = False
    try:
        while not stop.is_set():
            done = recovery.run(stop=stop.is_set)
            troubled = bool(done.troubles)
            if done.segments or done.troubles:
                _tell(done, as_json=as_json)
            stop.wait(interval_s)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return 1 if troubled else 0


def _tell(done: Recovered, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps(asdict(done)))
        return
    click.echo(
        f"{done.streams} streams adopted, {done.segments} segments uploaded, {done.rows:,} rows"
        + (f"; {done.left} segments wait for the spool" if done.left else "")
        + (f"; {done.alive} streams are being written" if done.alive else "")
        + (f"; {done.foreign} streams are meant for another spool" if done.foreign else "")
    )
    for trouble in done.troubles:
        click.echo(trouble, err=True)
