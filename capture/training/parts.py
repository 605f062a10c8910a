"""Parts: the objects that a run is composed of, created in order of their dependencies."""

from typing import TYPE_CHECKING

from ranklake.capture.assets.artifacts import Artifacts
from ranklake.capture.assets.datasets import Datasets
from ranklake.capture.assets.hashing import Hashing
from ranklake.capture.assets.media import Media
from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.logs.logs import Logs
from ranklake.capture.metrics.mappings import Mappings
from ranklake.capture.metrics.meter import Meter
from ranklake.capture.metrics.scalar_writer import ScalarWriter
from ranklake.capture.metrics.value_log import ValueLog
from ranklake.capture.provenance.annotations import Annotations
from ranklake.capture.steps.device_phases import DeviceTimer
from ranklake.capture.steps.device_values import DeviceValues
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.own_numbers import OwnNumbers
from ranklake.capture.steps.own_tables import OwnTables
from ranklake.capture.steps.phases import Phases
from ranklake.capture.steps.progress import Progress
from ranklake.capture.steps.spans import Spans
from ranklake.capture.steps.steps import Steps
from ranklake.capture.steps.waits import Waits
from ranklake.capture.training.watchers import Watchers

if TYPE_CHECKING:
    from ranklake.capture.recording.recorder import Recorder


class RowParts:
    """The parts that every run has: rows of any width, and who is told what when.

    Parameters
    ----------
    recorder
        None for a run that records nothing.
    idle
        Counts what such a run is given; None where it is the user's wish that nothing is recorded.
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
        self.logs = Logs(self.lifecycle, self.sink, self.progress)
        self.hashing = Hashing(self.sink, self.lifecycle, None if recorder is None else recorder.root)
        self.artifacts = Artifacts(self.sink, self.events, self.progress, self.hashing)
        self.datasets = Datasets(self.sink, self.hashing)
        self.media = Media(self.sink, self.progress, self.lifecycle, settings)
        self.annotations = Annotations(self.sink)
        self.own_tables = OwnTables(self.sink, self.progress, {} if recorder is None else recorder.own.tables)


class SlotParts:
    """The parts of a run that records: steps, spans and values, which are written to slots."""

    def __init__(self, run: RunLike, recorder: "Recorder", rows: RowParts) -> None:
        sink, slots = rows.sink, recorder.slots
        self.device = DeviceValues(sink)
        self.spans = Spans(sink, rows.progress, recorder.series, slots["spans"])
        self.device_timer = DeviceTimer(self.spans, self.device)
        self.phases = Phases(self.spans, self.device_timer)
        self.waits = Waits(self.spans, self.phases)
        self.scalars = ScalarWriter(
            run, recorder.settings, sink, rows.progress, self.device, recorder.series, slots["scalars"]
        )
        recorder.misuses.counted = self.scalars.count_misuses
        self.meter = Meter(self.scalars, slots["intervals"], slots["histograms"])
        own = OwnNumbers(recorder.own.step_columns) if recorder.own.step_columns else None
        self.values = ValueLog(self.scalars, Mappings(recorder.series, slots["scalars"], slots["rows"]), own)
        self.steps = Steps(self.spans, self.waits, self.device, rows.events, self.values, slots["steps"], own)
        self.watchers = Watchers(
            run, self.device_timer, self.phases, rows.events, rows.artifacts.record_file, recorder.root
        )

    def after_fork(self) -> None:
        """In a forked child: what is under way is the parent's."""
        self.waits.after_fork()
        self.device.after_fork()
        self.meter.after_fork()
        if self.scalars.sampler is not None:
            self.scalars.sampler.after_fork()
