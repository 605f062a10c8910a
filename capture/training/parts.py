"""Parts: the objects that a run is composed of, created in the order of their dependencies."""

import sys
from collections.abc import Callable
from functools import wraps
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

from ranklake.capture.assets.artifacts import Artifacts
from ranklake.capture.assets.datasets import Datasets
from ranklake.capture.assets.hashing import Hashing
from ranklake.capture.assets.media import Media
from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import integer, number
from ranklake.capture.lanes.policies import NO_CONTRACTS
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.logs.logs import Logs
from ranklake.capture.metrics.meter import Meter
from ranklake.capture.metrics.scalar_writer import ScalarWriter
from ranklake.capture.metrics.value_log import Mappings, ValueLog
from ranklake.capture.provenance.annotations import Annotations
from ranklake.capture.provenance.launcher import trace_id_of
from ranklake.capture.steps.collectives import Collectives
from ranklake.capture.steps.device_phases import DeviceTimer, cuda_in_use
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.flight import FlightRecorder
from ranklake.capture.steps.own_columns import OwnNumbers, OwnTables
from ranklake.capture.steps.phases import Phases
from ranklake.capture.steps.profiler import Profiler
from ranklake.capture.steps.progress import OpenStep, Progress
from ranklake.capture.steps.spans import Spans
from ranklake.capture.steps.step import Steps
from ranklake.capture.steps.waits import Waits

if TYPE_CHECKING:
    from ranklake.capture.recording.recorder import Recorder


Folder = str | PathLike[str] | None


class Watchers:
    """The watchers of one run, each created on first use.

    Parameters
    ----------
    keep
        Records a trace or dump as an artifact: `ranklake.capture.assets.artifacts.Artifacts.record_file`.
    root
        Local spool.
    """

    def __init__(
        self, run: RunLike, device: DeviceTimer, phases: Phases, events: Events, keep: Callable[..., None], root: Path
    ) -> None:
        self._run, self._device, self._phases, self._events, self._keep = run, device, phases, events, keep
        self._spans, self._sink, self._root = device.spans, device.spans.sink, root
        self._collectives: Collectives | None = None
        self._profiler: Profiler | None = None
        self._flight: FlightRecorder | None = None

    def collectives(self, models: tuple[object, ...]) -> Collectives | None:
        """Time collectives; see `ranklake.capture.Run.collectives`."""
        with self._sink.guarded("watching collectives"):
            if self._collectives is None:
                self._collectives = Collectives(self._device, self._phases, self._events)
            self._collectives.watch(*models)
        return self._collectives

    def profile(self, every: int, folder: Folder, max_bytes: int) -> None:
        """Profile one step in `every`; see `ranklake.capture.Run.profile`."""
        with self._sink.guarded("profiling"):
            traces, is_first = self._folder(folder, "profiles"), self._profiler is None
            self._profiler = Profiler(
                *(self._run, self._spans, self._events, self._keep),
                every=integer(every),
                folder=traces,
                max_bytes=integer(max_bytes),
            )
            if is_first:
                progress = self._spans.progress
                progress.on_begin += (self._begin_profile,)
                progress.on_end += (self._end_profile,)

    def flight_recorder(self, timeout_s: float, folder: Folder) -> FlightRecorder | None:
        """Save dumps of torch's Flight Recorder; see `ranklake.capture.Run.flight_recorder`."""
        with self._sink.guarded("watching the flight recorder"):
            if self._flight is None:
                self._flight = FlightRecorder(
                    *(self._run, self._sink, self._events, self._spans.progress, self._keep),
                    folder=self._folder(folder, "dumps"),
                    timeout_s=number(timeout_s),
                )
        return self._flight

    def stop(self, failure: str | None) -> None:
        """Remove all hooks and record pending results.

        Parameters
        ----------
        failure
            Failure that ended the run; None after a normal end.
        """
        if self._collectives is not None:
            self._collectives.stop()
        if self._profiler is not None:
            self._profiler.close()
        if self._flight is not None:
            if failure:
                self._flight.dump(f"training failed: {failure}")
            self._flight.close()

    def _folder(self, folder: Folder, default: str) -> Path:
        return Path(folder) if folder is not None else self._root / default

    def _begin_profile(self, step: OpenStep) -> None:
        if self._profiler is not None:
            with self._sink.guarded("starting the profiler"):
                self._profiler.begin(step)

    def _end_profile(self, step: OpenStep) -> None:
        if self._profiler is not None:
            with self._sink.guarded("stopping the profiler"):
                self._profiler.end(step)


T = TypeVar("T")
V = TypeVar("V")
P = ParamSpec("P")


def delegate(name: str, part: str, method: Callable[Concatenate[T, P], V]) -> Callable[Concatenate[Any, P], V]:
    """Return a method of `Run` that calls a method of a part, such as ``rows.events``.

    ``help``, completion and type checkers show the parameters and documentation of the part's method.
    """
    part_of = attrgetter(part)

    @wraps(method)
    def call(run: object, /, *args: P.args, **kwargs: P.kwargs) -> V:
        return method(part_of(run), *args, **kwargs)

    call.__name__, call.__qualname__ = name, f"Run.{name}"
    return call


class RowParts:
    """Parts of every run: those that write rows of variable size.

    Parameters
    ----------
    recorder
        None for a run that records nothing.
    idle
        Counts the rows that a run without a recorder is given; None if the user disabled recording.
    """

    def __init__(self, run: RunLike, recorder: "Recorder | None", idle: Gaps | None) -> None:
        if recorder is None:
            self.sink = Sink(idle or Gaps(), idle=idle)
        else:
            self.sink = Sink(recorder.gaps, recorder.records, recorder.misuses, idle)
        self.progress = Progress()
        self.events = Events(self.sink, self.progress)
        settings = CaptureSettings() if recorder is None else recorder.settings
        self.lifecycle = Lifecycle(run, settings, self.sink, self.events, self.progress)
        trace_id = None if recorder is None else trace_id_of(recorder.traceparent)
        self.logs = Logs(self.lifecycle, self.sink, self.progress, trace_id)
        self.hashing = Hashing(self.sink, self.lifecycle, None if recorder is None else recorder.root)
        self.artifacts = Artifacts(self.sink, self.events, self.progress, self.hashing)
        self.datasets = Datasets(self.sink, self.hashing)
        self.media = Media(self.sink, self.progress, self.lifecycle, settings)
        self.annotations = Annotations(self.sink)
        own = NO_CONTRACTS if recorder is None else recorder.own
        self.own_tables = OwnTables(self.sink, self.progress, own.tables, own.renamed)


class SlotParts:
    """Parts of a run that records: steps, spans and values, which are written to slots."""

    def __init__(self, run: RunLike, recorder: "Recorder", rows: RowParts) -> None:
        sink, slots = rows.sink, recorder.slots
        self.device = DeviceValues(sink)
        self.spans = Spans(sink, rows.progress, recorder.series, slots["spans"], trace_id_of(recorder.traceparent))
        self.device_timer = DeviceTimer(self.spans, self.device)
        self.phases = Phases(self.spans, self.device_timer)
        self.waits = Waits(self.spans, self.phases)
        self.scalars = ScalarWriter(
            run, recorder.settings, sink, rows.progress, self.device, recorder.series, slots["scalars"]
        )
        recorder.misuses.on_count = self.scalars.count_misuses
        self.meter = Meter(self.scalars, slots["intervals"], slots["histograms"])
        own = OwnNumbers(recorder.own.step_columns) if recorder.own.step_columns else None
        self.values = ValueLog(self.scalars, Mappings(recorder.series, slots["scalars"], slots["rows"]), own)
        self.steps = Steps(self.spans, self.waits, self.device, rows.events, self.values, slots["steps"], own)
        rows.progress.on_settled += (DeviceMemory(sink).look,)
        self.watchers = Watchers(
            run, self.device_timer, self.phases, rows.events, rows.artifacts.record_file, recorder.root
        )

    def after_fork(self) -> None:
        """In a forked child, drop the steps, waits and values that the parent has begun and will record."""
        self.waits.after_fork()
        self.device.after_fork()
        self.meter.after_fork()
        if self.scalars.sampler is not None:
            self.scalars.sampler.after_fork()


_INTERVAL_NS: Final = 10**9


class DeviceMemory:
    """Adds the memory of the GPU that this process computes on to rows of steps."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._next_ns = 0

    def look(self, step: OpenStep, _: int, is_failed: bool) -> None:
        """Add the allocator's bytes to a step's row, about once a second. Called when a step ends."""
        now_ns = now()
        if now_ns < self._next_ns or is_failed or not cuda_in_use():
            return
        self._next_ns = now_ns + _INTERVAL_NS
        with self._sink.guarded("looking at the device's memory"):
            torch: Any = sys.modules["torch"]
            stats = torch.cuda.memory_stats()
            allocated, reserved = (stats.get(f"{part}_bytes.all.current") for part in ("allocated", "reserved"))
            if allocated is not None and reserved is not None:  # a custom allocator may report neither
                step.put_memory(allocated, reserved)
