"""``ranklake agent``."""

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ranklake.capture.node.agent_metrics import CONTENT_TYPE, PassResult, prometheus
from ranklake.capture.node.agent_run import Sources, sample
from ranklake.capture.node.endpoint import ADDRESS, Answer, Endpoint
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.node.spool_monitor import SpoolMonitor
from ranklake.capture.node.worker import WorkerTask, run, send
from ranklake.capture.spool.leader import Leader, Leadership, leader
from ranklake.capture.spool.locations import LocalSpoolError, local_root, spool_uri
from ranklake.capture.spool.stream_files import pending_segments
from ranklake.commands.options import json_option, optional_spool, with_config
from ranklake.config import Config
from ranklake.live_page import LivePage
from ranklake.printable import counted
from ranklake.segments.storage_options import deferred_options, fsspec_options
from ranklake.views.json_output import json_text, show_json
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from types import FrameType

STANDBY_LOOK_S = 1.0
GRACE_S = 2.0
"""How long a running upload may continue after SIGTERM. If it is cut off, the next agent repeats it."""
_CLOSE_S = 0.5
_METRICS = "/metrics"


@dataclass(frozen=True, slots=True)
class Duty:
    """Options of the command, and the event that stops it."""

    root: Path
    spool: str
    storage_options: Mapping[str, Any]
    fallback: Fallback
    interval_s: float
    pack_s: float
    metrics_port: int
    metrics_host: str
    page_port: int
    as_json: bool
    encryption_key: str
    signing_key: str
    sources: Sources
    stop: threading.Event

    def worker_task(self, watch: SpoolMonitor | None = None) -> WorkerTask:
        """Return the agent's tasks at the local spool."""
        return WorkerTask(
            str(self.root),
            self.spool,
            self.storage_options,
            self.encryption_key,
            watch.breaker_states() if watch is not None else {},
            watch.read() if watch is not None else {},
            self.signing_key,
            self.fallback,
        )


@click.command()
@optional_spool("URI or folder of the spool; default: where each run meant to send it.")
@click.option("--local-dir", metavar="DIR", help="Local spool of this node; default: that of the runs here.")
@click.option("--once", is_flag=True, help="Send everything once and exit.")
@click.option(
    "--interval-s", default=10.0, show_default=True, type=click.FloatRange(min=0.1), help="Time between scans."
)
@click.option(
    "--pack-s",
    default=60.0,
    show_default=True,
    type=click.FloatRange(min=0.0),
    help="Max time that segments wait to be packed with others.",
)
@click.option(
    "--metrics-port",
    metavar="PORT",
    default=0,
    type=click.IntRange(0, 65535),
    help="Serve metrics for Prometheus at http://HOST:PORT/metrics, such as 9464; default: off.",
)
@click.option(
    "--metrics-host",
    default=ADDRESS,
    show_default=True,
    help="Address to serve them at, such as 0.0.0.0 for a Prometheus elsewhere: they name no run and no person.",
)
@click.option(
    "--page-port",
    metavar="PORT",
    default=0,
    type=click.IntRange(0, 65535),
    help="Serve 'ranklake watch' as a page on this node, at an address that is printed at the start; default: off.",
)
@click.option("--sample/--no-sample", default=True, show_default=True, help="Sample the node's GPUs and the host.")
@click.option(
    "--sample-interval-s",
    default=1.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Time between samples.",
)
@click.option(
    "--scrape",
    metavar="URL",
    multiple=True,
    help="Also read a dcgm-exporter, or any page in the Prometheus text format; repeatable.",
)
@click.option(
    "--scrape-interval-s",
    default=15.0,
    show_default=True,
    type=click.FloatRange(min=0.1),
    help="Time between reads of a page.",
)
@json_option
@with_config
def agent(  # noqa: PLR0913 - click passes options by name
    config: Config,
    local_dir: str | None,
    interval_s: float,
    pack_s: float,
    metrics_port: int,
    sample_interval_s: float,
    scrape: tuple[str, ...],
    scrape_interval_s: float,
    *,
    metrics_host: str,
    page_port: int,
    sample: bool,
    once: bool,
    as_json: bool,
) -> int:
    """Upload the segments of this node's ranks, in packs, and recover the files of dead processes in the local spool.

    A local spool has one agent; a second one waits, and takes over when the first ends. Without --once it runs until
    SIGTERM or Ctrl-C, and ends within five seconds. Exits 1 if a stream could not be finished; segments that still wait
    for upload are not an error.

    If a spool is configured, it also samples the node's GPUs and the host, in a run of its own.
    """
    uri = spool_uri(config.spool.uri)
    fsspec_options(uri, config.storage)  # their faults are reported now
    options = deferred_options(uri, config.storage)
    second = spool_uri(config.spool.fallback_uri) if config.spool.fallback_uri else ""
    second_storage = config.storage | config.spool.fallback_storage
    fsspec_options(second, second_storage)
    fallback = Fallback(second, deferred_options(second, second_storage), config.spool.fallback_after_s)
    stop = threading.Event()
    keys = config.capture.encryption_key, config.capture.signing_key
    sources = Sources(sample, sample_interval_s, scrape, scrape_interval_s)
    root = local_root(local_dir, config.spool.local)
    duty = Duty(
        root,
        uri,
        options,
        fallback,
        interval_s,
        pack_s,
        metrics_port,
        metrics_host,
        page_port,
        as_json,
        *keys,
        sources,
        stop,
    )
    if once:
        return _run_once(duty)
    troubled = False
    with _stopped_by_signals(duty.stop):
        while (lead := _wait_for_election(duty)) is not None:
            troubled = _serve(duty, lead)
    return 1 if troubled else 0


def _run_once(duty: Duty) -> int:
    lead = _try_to_lead(duty)
    if lead is None:
        result, there = leader(duty.root), pending_segments(duty.root)
        left = f"it has {there.segments:,} segments to send, and its log says how that goes" if there.segments else ""
        tell(f"{duty.root} has an agent{f' ({result})' if result else ''}; {left or 'nothing waits there'}")
        return 0
    try:
        at_once = replace(duty, fallback=replace(duty.fallback, after_s=0.0))  # there is no later try
        results = run(at_once.worker_task(), duty.stop).done
    finally:
        lead.release()
    _tell(results, as_json=duty.as_json)
    return 1 if results.troubles else 0


def _try_to_lead(duty: Duty) -> Leadership | None:
    try:
        return Leadership.take(duty.root, duty.spool)
    except OSError as error:
        hint = "name a folder that can be written by --local-dir"
        raise LocalSpoolError(f"cannot be used ({error.strerror})", where=str(duty.root), hint=hint) from error


def _wait_for_election(duty: Duty) -> Leadership | None:
    """Wait until this process is the agent; None if a signal stops it first."""
    last_result = ""
    while not duty.stop.is_set():
        lead = _try_to_lead(duty)
        if lead is not None:
            return lead
        result = leader(duty.root)
        if result is not None and str(result) != last_result:
            last_result = str(result)
            tell(json_text({"standby": result}) if duty.as_json else standby_line(duty.root, result))
        duty.stop.wait(STANDBY_LOOK_S)
    return None


def _serve(duty: Duty, lead: Leadership) -> bool:
    """Run as the agent until a signal, or until the local spool changes; return whether the last round failed.

    The work is done by threads, which get at most `GRACE_S` to end: a hanging PUT or driver must not delay the end. The
    process then ends as by SIGKILL, which files on disk survive.
    """
    last = PassResult()
    watch = SpoolMonitor(duty.root, duty.spool, duty.pack_s, duty.fallback)
    over = threading.Event()

    def work() -> None:
        nonlocal last
        while not over.is_set() and lead.still_holds():
            last = _look(watch, duty, over)
            if last.segments or last.troubles or last.failure:
                _tell(last, as_json=duty.as_json)
            over.wait(duty.interval_s)
        over.set()

    node = (duty.root, duty.spool, duty.sources, watch, over)
    threads = [threading.Thread(target=work, name="ranklake-agent", daemon=True)]
    if duty.spool:
        threads.append(threading.Thread(target=sample, args=node, name="ranklake-node", daemon=True))
    with contextlib.ExitStack() as open_things:
        open_things.callback(lead.release)
        if duty.metrics_port:
            open_things.enter_context(Endpoint(duty.metrics_port, partial(_metrics, watch), duty.metrics_host))
        if duty.page_port:
            page = open_things.enter_context(contextlib.closing(LivePage(duty.root)))
            url = page.url(open_things.enter_context(Endpoint(duty.page_port, page.answer)).port)
            tell(json_text({"page": url}) if duty.as_json else f"follow the runs on this node: {url}")
            sys.stdout.flush()
        for thread in threads:
            thread.start()
        while not over.is_set() and not duty.stop.wait(STANDBY_LOOK_S):
            pass
        over.set()
    if not _join_threads(threads, GRACE_S + _CLOSE_S):
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1 if last.troubles else 0)
    return bool(last.troubles)


def _metrics(watch: SpoolMonitor, path: str) -> Answer | None:
    is_there = path.partition("?")[0] == _METRICS
    return Answer(CONTENT_TYPE, prometheus(watch.figures).encode()) if is_there else None


def _join_threads(threads: list[threading.Thread], within_s: float) -> bool:
    deadline = time.monotonic() + within_s
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))
    return not any(thread.is_alive() for thread in threads)


def _look(watch: SpoolMonitor, duty: Duty, over: threading.Event) -> PassResult:
    """Find the tasks of a round, and run them."""
    try:
        if not watch.look():
            return PassResult(alive=watch.alive, foreign=watch.foreign)
        report = send(duty.worker_task(watch), over, GRACE_S)
        watch.add_result(report)
        watch.look()
    except Exception as error:  # noqa: BLE001 - the local spool vanished, say; the next look may find it
        return PassResult(troubles=(f"{duty.root}: {type(error).__name__}: {error}",))
    return report.done


@contextlib.contextmanager
def _stopped_by_signals(stop: threading.Event) -> Iterator[None]:
    def ask_to_stop(number: int, frame: "FrameType | None") -> None:
        del number, frame
        stop.set()

    before = {number: signal.signal(number, ask_to_stop) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _tell(done: PassResult, *, as_json: bool) -> None:
    if as_json:
        show_json(done)
        return
    tell(pass_line(done))
    for trouble in done.troubles:
        tell(trouble, err=True)


def pass_line(done: PassResult) -> str:
    """Return the results of one round at the local spool; zeros are left out."""
    reason = f" ({done.failure})" if done.failure else ""
    more = (
        (done.packs, f", in {counted(done.packs, 'pack')}"),
        (done.fallback, f"; {counted(done.fallback, 'segment')} to the fallback spool{reason}"),
        (done.left, f"; {counted(done.left, 'segment')} waiting for the spool{reason}"),
        (done.alive, f"; {counted(done.alive, 'stream')} still written"),
        (done.foreign, f"; {counted(done.foreign, 'stream')} meant for another spool"),
        (done.others, f"; {counted(done.others, 'stream')} of other users"),
    )
    adopted, sent = counted(done.streams, "stream"), counted(done.segments, "segment")
    first = f"{adopted} adopted, {sent} uploaded, {counted(done.rows, 'row')}"
    return first + "".join(text for count, text in more if count)


def standby_line(root: Path, leader: Leader) -> str:
    """Return the present agent of a local spool, for the one that waits."""
    return f"{root} has an agent ({leader}); waiting to take over"
