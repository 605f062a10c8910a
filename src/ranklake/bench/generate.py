"""Generating: every node of a job to a spool, by as many processes as are asked for."""

import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from typing import Any

from ranklake.bench.job import Job
from ranklake.bench.nodes import Node
from ranklake.bench.streams import Segment
from ranklake.capture.recording.packing import WaitingSegment, packs_of
from ranklake.capture.recording.upload import Uploader
from ranklake.segments.pack import pack

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """What was written.

    Attributes
    ----------
    run
        Its name.
    rows, segments, segment_bytes
        By table.
    objects, object_bytes
        In the spool.
    wall_s, cpu_s
        What it took, all processes together.
    """

    run: str
    gpus: int
    seconds: float
    rows: dict[str, int] = field(default_factory=dict)
    segments: dict[str, int] = field(default_factory=dict)
    segment_bytes: dict[str, int] = field(default_factory=dict)
    objects: int = 0
    object_bytes: int = 0
    wall_s: float = 0.0
    cpu_s: float = 0.0


def generate(
    job: Job,
    spool: str,
    storage_options: Mapping[str, Any] | None = None,
    *,
    packed: bool = True,
    workers: int = 0,
    progress: Progress | None = None,
) -> GenerateResult:
    """Write a job's segments to a spool, as its ranks and agents would.

    Parameters
    ----------
    storage_options
        Handed to fsspec.
    packed
        Whether what a node seals at a time goes in one object, as an agent sends them.
    workers
        Processes; 0 is one for each core, 1 is this process itself. The bytes do not depend on it.
    progress
        Called with (nodes done, nodes in all).

    Raises whatever the store raises; what was written stays, and writing it again gives the same objects.
    """
    began = time.monotonic()
    tally: Counter[tuple[str, str]] = Counter()
    cpu_s = 0.0
    count = min(workers or os.cpu_count() or 1, job.nodes)
    for done, (result, spent) in enumerate(
        _write_nodes(job, spool, dict(storage_options or {}), count, packed=packed), 1
    ):
        tally.update(result)
        cpu_s += spent
        if progress:
            progress(done, job.nodes)
    of: dict[str, dict[str, int]] = {"rows": {}, "segments": {}, "bytes": {}}
    for (figure, table), value in sorted(tally.items()):
        of.setdefault(figure, {})[table] = value
    return GenerateResult(
        job.run, job.gpus, job.seconds, of["rows"], of["segments"], of["bytes"],
        tally["objects", ""], tally["object bytes", ""], time.monotonic() - began, cpu_s,
    )  # fmt: skip


def _write_nodes(
    job: Job, spool: str, options: dict[str, Any], workers: int, *, packed: bool
) -> Iterator[tuple["Counter[tuple[str, str]]", float]]:
    """Yield what `write_node` returns, node by node as they are done."""
    if workers == 1:
        for node in range(job.nodes):
            yield write_node(job, node, spool, options, packed=packed)
        return
    context = multiprocessing.get_context("spawn")  # a fork would copy the locks of pyarrow's threads
    with ProcessPoolExecutor(workers, mp_context=context) as pool:
        pending = [pool.submit(write_node, job, node, spool, options, packed=packed) for node in range(job.nodes)]
        try:
            for future in as_completed(pending):
                yield future.result()
        finally:
            pool.shutdown(wait=False, cancel_futures=True)


def write_node(
    job: Job, node: int, spool: str, storage_options: dict[str, Any], *, packed: bool
) -> tuple["Counter[tuple[str, str]]", float]:
    """Write one node; return what was written by (figure, table), and the CPU time that it took."""
    began = time.process_time()
    tally: Counter[tuple[str, str]] = Counter()
    store = Uploader(spool, storage_options)
    for sealed in Node(job, node).windows():
        for item in sealed:
            tally["rows", item.file.table] += item.file.rows
            tally["segments", item.file.table] += 1
            tally["bytes", item.file.table] += len(item.raw)
        for path, raw in _objects(sealed, packed=packed):
            store.put(path, raw)
            tally["objects", ""] += 1
            tally["object bytes", ""] += len(raw)
    return tally, time.process_time() - began


def _objects(sealed: list[Segment], *, packed: bool) -> list[tuple[str, bytes]]:
    """Return what goes to the spool, by path."""
    raw = {one.path: one.raw for one in sealed}
    if not packed:
        return list(raw.items())
    waiting = [WaitingSegment(one.file, one.path, "", len(one.raw), 0.0, adopted=False) for one in sealed]
    return [pack({item.remote: raw[item.remote] for item in some}) for some in packs_of(waiting)]
