"""Writes every node of a synthetic job to a spool, with several processes."""

import hashlib
import json
import multiprocessing
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy as np

import ranklake
from ranklake.bench.devices import Sampler
from ranklake.bench.job import DEVICE_NAME, RANKS_PER_NODE, Attempt, Job
from ranklake.bench.ranks import FLOPS_PER_TOKEN, FLOPS_SERIES, PARAMETERS, Window, definitions
from ranklake.capture.common.arrays import Array
from ranklake.capture.common.gaps import BACKPRESSURE
from ranklake.capture.common.layouts import ABSENT, MARK, SCALARS, SLOT_LANES, table_of
from ranklake.capture.node.agent_run import HAND_OVER_S
from ranklake.capture.recording.upload import Uploader, WaitingSegment, packs_of
from ranklake.capture.sealing.rows import NO_ROWS, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.sealing.tables import read_rows
from ranklake.capture.spool import frames
from ranklake.capture.spool.clock import Anchor, straighten
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.segments.pack import pack
from ranklake.segments.segment import AGENT_JOB as AGENT
from ranklake.segments.segment import ClockReading

ANCHOR_S: Final = 10


@dataclass(frozen=True)
class Clock:
    """A node's monotonic clock, and its readings of wall time.

    Attributes
    ----------
    boot_ns
        Monotonic time at which the job started.
    anchors, readings
        An anchor every `ANCHOR_S` seconds, and the kernel's clock readings at these times.
    """

    boot_ns: int
    anchors: tuple[Anchor, ...]
    readings: Mapping[int, ClockReading]

    @classmethod
    def of(cls, job: Job, node: int) -> "Clock":
        """Return the clock of a node, with an offset of tens of microseconds and a drift of one part in a million."""
        draws = job.random_for("clock", node)
        boot_ns = int(draws.integers(3_600 * _NS, 90 * 86_400 * _NS))
        epoch_ns = round(job.start.timestamp()) * _NS
        seconds = np.arange(-ANCHOR_S, job.seconds + 2 * ANCHOR_S, ANCHOR_S)
        offset = draws.normal(0, 60_000) + 1e3 * draws.normal(0, 1.0) * seconds + draws.normal(0, 300, len(seconds))
        monos = boot_ns + (seconds * _NS).astype(np.int64) + draws.integers(0, 4_000_000, len(seconds))
        walls = epoch_ns + (monos - boot_ns) + offset.astype(np.int64)
        anchors = tuple(straighten(zip(monos.tolist(), walls.tolist(), strict=True)))
        offsets = draws.integers(-9_000, 9_000, len(anchors)).tolist()
        readings = {
            mono: ClockReading(mono, offset, 2_000_000, 9_000, 1, 0)
            for (mono, _), offset in zip(anchors, offsets, strict=True)
        }
        return cls(boot_ns, anchors, readings)

    def anchors_between(self, begin_s: float, end_s: float) -> tuple[Anchor, ...]:
        """Return the anchors from which times of an interval are computed."""
        first = max(0, int(begin_s) // ANCHOR_S)
        return self.anchors[first : int(end_s) // ANCHOR_S + 3]


@dataclass(frozen=True, slots=True)
class Segment:
    """A sealed segment: its path below the spool, and its bytes."""

    file: SealedFile
    path: str
    raw: bytes


@dataclass
class Recording:
    """The stream of one process. Segments of a table are numbered in the order of sealing."""

    origin: Origin
    meta: Meta
    clock: Clock
    _next: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, name: StreamName, world_size: int, boot_id: str, meta: Meta, clock: Clock) -> "Recording":
        """Begin a stream with the definitions in `meta`."""
        meta.clock.update(clock.readings)
        return cls(Origin(name, world_size, boot_id), meta, clock)

    def slots(
        self, lane: str, slots: Array, anchors: tuple[Anchor, ...], date: str, *, final: bool
    ) -> Iterator[Segment]:
        """Seal slots of a lane, a full slot file at a time."""
        layout = SLOT_LANES[lane]
        most = layout.file_bytes // layout.slot_bytes
        parts = [slots[at : at + most] for at in range(0, len(slots), most)]
        for part in parts:
            rows = read_rows(lane, np.ascontiguousarray(part).tobytes(), self.meta, anchors)
            yield self.rows(layout.table, rows, anchors, date, final=final and part is parts[-1])

    def frames(self, lane: str, records: list[tuple[int, dict[str, Any]]], anchors: tuple[Anchor, ...], date: str, *,
               final: bool = False) -> Segment:  # fmt: skip
        """Seal frames records a lane, given as monotonic time and columns."""
        raw = b"".join(frames.pack({"s": slot, "m": mono, **columns}) for slot, (mono, columns) in enumerate(records))
        return self.rows(table_of(lane), read_rows(lane, raw, self.meta, anchors), anchors, date, final=final)

    def end(self, table: str, date: str) -> Segment:
        """Seal a last segment without rows, which reports gaps that no footer has yet."""
        return self.rows(table, NO_ROWS, (), date, final=True)

    def rows(self, table: str, rows: Rows, anchors: tuple[Anchor, ...], date: str, *, final: bool) -> Segment:
        """Seal rows as the next segment of a table."""
        number = self._next.get(table, 0)
        self._next[table] = number + 1
        raw, footer = segment_bytes(self.origin, self.meta, table, number, rows, anchors, final=final)
        self.meta.add_sealed(table, number, len(rows), footer.gaps, final=final)
        file = SealedFile(Path(), table, number, date, len(rows), hashlib.sha256(raw).hexdigest())
        return Segment(file, file.remote(self.origin.name), raw)


SYNTHETIC: Final = {"synthetic": "true", "generator": f"ranklake bench generate {ranklake.__version__}"}
"""Labels of every generated run."""
_NS: Final = 10**9
LOST_ROWS: Final = 37
"""Number of spans that a rank loses while its spool is full."""

Frames = list[tuple[int, dict[str, Any]]]


@dataclass
class Node:
    """One node of a job. `windows` can be iterated once."""

    job: Job
    number: int
    _streams: dict[tuple[int, int], Recording] = field(default_factory=dict)

    def windows(self) -> Iterator[list[Segment]]:
        """Yield the segments that are sealed in each window; the node's agent packs them."""
        clock = Clock.of(self.job, self.number)
        sampler = Sampler(self.job, self.number, clock.boot_ns)
        boot_id = self.job.identity("boot", self.number)
        name = StreamName(f"{AGENT}-{sampler.host}-{self.job.digest}", 0, 0, self.job.number("agent", self.number))
        agent = Recording.of(name, 1, boot_id, Meta(), clock)
        handed_over = 0.0
        for window in range(self.job.windows):
            begin, end = window * self.job.window_s, min((window + 1) * self.job.window_s, self.job.seconds)
            sealed: list[Segment] = []
            for attempt in self.job.attempts:
                if attempt.begin_s < end and attempt.end_s > begin:
                    sealed += self._ranks(attempt, window, begin, end, clock, boot_id)
            if end >= handed_over + HAND_OVER_S or end == self.job.seconds:
                sealed += self._agent(agent, sampler, window, handed_over, end)
                handed_over = end
            yield sealed

    def _agent(self, agent: Recording, sampler: Sampler, window: int, begin: float, end: float) -> Iterator[Segment]:
        date, anchors, final = (
            self.job.date(end),
            agent.clock.anchors_between(begin, end),
            window == self.job.windows - 1,
        )
        ticks = np.arange(np.ceil(begin), end)
        started = agent.clock.boot_ns + 1_000_000
        if begin == 0:
            row = self._run_row(AGENT, sampler.host, 1, {"device_type": "cuda", "device_name": DEVICE_NAME})
            yield agent.frames("runs", [(started, row)], anchors, date)
            events: Frames = [(started, {"event": name, "severity": "info"}) for name in ("run_start", "rank_start")]
            yield agent.frames("events", events, anchors, date)
        yield agent.rows("gpu_samples", sampler.gpus(window, ticks), anchors, date, final=final)
        yield agent.rows("host_samples", sampler.hosts(window, ticks), anchors, date, final=final)
        if final:
            ended = agent.clock.boot_ns + int(end * _NS) - 1_000_000
            events = [(ended, {"event": name, "severity": "info"}) for name in ("run_end", "rank_end")]
            yield agent.frames("events", events, anchors, date, final=True)

    def _ranks(
        self, attempt: Attempt, window: int, begin: float, end: float, clock: Clock, boot_id: str
    ) -> Iterator[Segment]:
        """Yield the segments that the ranks of an attempt seal in a window."""
        job = self.job
        ends = attempt.end_s <= end
        begin, end = max(begin, attempt.begin_s), min(end, attempt.end_s)
        step_slice = attempt.steps_between(begin, end if not ends else np.inf)
        result = Window(job, attempt, self.number, window, step_slice, clock.boot_ns)
        steps, rows, spans = result.steps(), result.rows(), result.spans()
        date = job.date(end)
        # a step that ends in this window may have begun before it, and before an anchor of its beginning
        first = begin if step_slice.start == step_slice.stop else min(begin, float(attempt.start_s[step_slice.start]))
        anchors = clock.anchors_between(first, end)
        for place, rank in enumerate(job.ranks(self.number)):
            is_new = (attempt.number, rank) not in self._streams
            stream = self._stream(attempt, rank, clock, boot_id)
            if is_new:
                yield from self._beginning(stream, attempt, rank, anchors, date)
            if self.drops_rows(rank, attempt, window):
                stream.meta.gaps["spans", BACKPRESSURE] += LOST_ROWS
            yield from stream.slots("steps", steps[place], anchors, date, final=ends)
            yield from stream.slots("rows", rows[place], anchors, date, final=ends)
            yield from stream.slots("spans", spans[place], anchors, date, final=ends)
            if ends:
                for table in stream.meta.tables_with_pending():
                    yield stream.end(table, date)
                ending = self._ending(attempt, rank, clock, end)
                yield stream.frames("events", ending, anchors, date, final=True)
            else:
                saved = self._checkpoints(attempt, step_slice, rank, clock)
                if saved:
                    yield stream.frames("events", saved, anchors, date)

    def _stream(self, attempt: Attempt, rank: int, clock: Clock, boot_id: str) -> Recording:
        key = (attempt.number, rank)
        if key not in self._streams:
            job = self.job
            name = StreamName(job.run, attempt.number, rank, job.number("incarnation", attempt.number, rank))
            self._streams[key] = Recording.of(name, job.gpus, boot_id, definitions(job, rank), clock)
        return self._streams[key]

    def drops_rows(self, rank: int, attempt: Attempt, window: int) -> bool:
        """Whether a rank's spool is full in a window, which is so in one of two hundred windows."""
        return float(self.job.random_for("gap", rank, attempt.number, window).random()) < 0.005  # noqa: PLR2004

    def _beginning(
        self, stream: Recording, attempt: Attempt, rank: int, anchors: tuple[tuple[int, int], ...], date: str
    ) -> Iterator[Segment]:
        """Yield the segments that a process records at its start; rank 0 records the run's row."""
        job = self.job
        start_ns = stream.clock.boot_ns + int(attempt.begin_s * _NS) + 3_000_000 + 11_000 * rank
        starting: Frames = [(start_ns + 400_000, {"event": "rank_start", "severity": "info",
                                        "attributes": f'{{"launcher":"slurm","world_size":{job.gpus}}}'})]  # fmt: skip
        if rank == 0:
            facts = {"compute_dtype": "bfloat16", "param_count": PARAMETERS, "device_count": job.gpus,
                     "device_type": "cuda", "device_name": DEVICE_NAME, "driver_version": "570.124.06",
                     "config": _compact({"seed": job.seed, "step_s": job.step_s, "metrics": job.metrics})}  # fmt: skip
            if attempt.number == len(job.attempts) - 1:
                facts["injected"] = f"slow rank {job.straggler}"
            host = f"synthetic-node{self.number:04d}"
            yield stream.frames("runs", [(start_ns, self._run_row("synthetic", host, job.gpus, facts))], anchors, date)
            starting.insert(0, (start_ns + 100_000, {"event": "run_start", "severity": "info"}))
            item = np.zeros(1, SCALARS.dtype())
            item["time_ns"], item["step"], item["value"] = start_ns + 900_000, ABSENT, FLOPS_PER_TOKEN
            item["series"], item["mark"] = FLOPS_SERIES, MARK
            yield from stream.slots("scalars", item, anchors, date, final=False)
        yield stream.frames("events", starting, anchors, date)

    def _checkpoints(self, attempt: Attempt, step_slice: slice, rank: int, clock: Clock) -> Frames:
        if rank:
            return []
        saved_steps = [index for index in range(step_slice.start, step_slice.stop) if attempt.checkpoint_s[index]]
        ends = clock.boot_ns + ((attempt.start_s + attempt.step_s) * _NS).astype(np.int64)
        return [
            (int(ends[index]), {"event": "checkpoint", "severity": "info", "step": int(attempt.steps[index]),
                             "duration_ns": int(attempt.checkpoint_s[index] * _NS),
                             "attributes": '{"size_bytes":5800000000}'})
            for index in saved_steps
        ]  # fmt: skip

    def _ending(self, attempt: Attempt, rank: int, clock: Clock, end: float) -> Frames:
        """Return the last events of a process; for a killed process, those that the node's agent adds."""
        end_ns = clock.boot_ns + int(end * _NS) - 2_000_000
        if not attempt.failed:
            names = ("run_end", "rank_end") if rank == 0 else ("rank_end",)
            return [(end_ns + 1000 * place, {"event": name, "severity": "info"}) for place, name in enumerate(names)]
        ending: Frames = [(end_ns + 1000, {"event": "abandoned", "severity": "error",
                                     "message": "the process ended without closing the run"})]  # fmt: skip
        if rank == self.job.failing:
            reason = {
                "event": "failure",
                "severity": "error",
                "message": "CUDA error: an illegal memory access was encountered",
            }
            ending.insert(0, (end_ns, reason))
        return ending

    def _run_row(self, job: str, host: str, world_size: int, facts: dict[str, Any]) -> dict[str, Any]:
        """Return a row of `runs`, labelled as synthetic."""
        ranks = min(RANKS_PER_NODE, world_size)
        return {
            "job": f"synthetic {job}" if job != "synthetic" else job,
            "host": host, "pid": 4_000 + self.number, "world_size": world_size, "local_world_size": ranks,
            "launcher": "slurm", "node_count": -(-world_size // RANKS_PER_NODE),
            "ranklake_version": ranklake.__version__,
            "labels": _compact(SYNTHETIC | {"seed": str(self.job.seed)}),
            "cluster": "synthetic", "cpu_count": 192, "host_memory_bytes": 2_048 << 30, **facts,
        }  # fmt: skip


def _compact(facts: dict[str, Any]) -> str:
    return json.dumps(facts, sort_keys=True, separators=(",", ":"))


Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class GenerateResult:
    """Result of `generate`.

    Attributes
    ----------
    run
        Name of the run.
    rows, segments, segment_bytes
        Numbers by table.
    objects, object_bytes
        Number and size of objects in the spool.
    wall_s, cpu_s
        Wall time, and CPU time of all processes.
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
        Options for fsspec.
    packed
        Whether the segments that a node seals together are one object, as an agent sends them.
    workers
        Number of processes; 0 is one per core, 1 is this process. The bytes do not depend on it.
    progress
        Called with the number of written nodes and of all nodes.

    Raises errors of the store. Written objects are kept; a second call writes the same objects.
    """
    began = time.monotonic()
    tally: Counter[tuple[str, str]] = Counter()
    cpu_s = 0.0
    count = min(workers or os.cpu_count() or 1, job.nodes)
    for written_nodes, (counts, node_cpu_s) in enumerate(
        _write_nodes(job, spool, dict(storage_options or {}), count, packed=packed), 1
    ):
        tally.update(counts)
        cpu_s += node_cpu_s
        if progress:
            progress(written_nodes, job.nodes)
    totals: dict[str, dict[str, int]] = {"rows": {}, "segments": {}, "bytes": {}}
    for (figure, table), value in sorted(tally.items()):
        totals.setdefault(figure, {})[table] = value
    return GenerateResult(
        job.run, job.gpus, job.seconds, totals["rows"], totals["segments"], totals["bytes"],
        tally["objects", ""], tally["object bytes", ""], time.monotonic() - began, cpu_s,
    )  # fmt: skip


def _write_nodes(
    job: Job, spool: str, options: dict[str, Any], workers: int, *, packed: bool
) -> Iterator[tuple["Counter[tuple[str, str]]", float]]:
    """Yield the results of `write_node` as nodes are written."""
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
    """Write one node; return counts by (figure, table), and the CPU time in seconds."""
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
    """Return the objects for the spool: paths and bytes."""
    raw = {segment.path: segment.raw for segment in sealed}
    if not packed:
        return list(raw.items())
    waiting = [
        WaitingSegment(segment.file, segment.path, "", len(segment.raw), 0.0, adopted=False) for segment in sealed
    ]
    return [pack({item.remote: raw[item.remote] for item in members}) for members in packs_of(waiting)]
