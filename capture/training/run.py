"""Run: the interface for training loops.

A run is composed of parts with one job each, see `ranklake.capture.training.parts`; what is here hands on to them.
Nothing in here raises into training, whatever it is given: what cannot be recorded is counted as a gap, by reason, and
logged once as a warning by the logger "ranklake".

The calls that a training script may make have their signatures and documentation here, or are `handed_on` with those of
a part. Who a run is, and what people say of it, is in `ranklake.capture.training.recording`.
"""

import logging
from collections.abc import Iterable, Mapping
from os import PathLike
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from ranklake.capture.assets.artifacts import Artifacts
from ranklake.capture.assets.datasets import Datasets
from ranklake.capture.assets.loads import Loads
from ranklake.capture.assets.media import Media
from ranklake.capture.common.gaps import BAD_ARGUMENTS, NOWHERE, Gaps
from ranklake.capture.common.values import repr_of, text
from ranklake.capture.logs.logs import LogHandler, StructlogProcessor
from ranklake.capture.metrics.handles import NullHandle
from ranklake.capture.metrics.scalar_writer import Scalar, no_scalar
from ranklake.capture.metrics.value_log import ValueLog, plainly_named
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.steps.collectives import Collectives
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.flight import FlightRecorder
from ranklake.capture.steps.flops import PEAK_MEASURED, FlopCount, measure_cpu_peak
from ranklake.capture.steps.nothing import NOTHING, NullContext, null_context
from ranklake.capture.steps.phases import AnyPhase
from ranklake.capture.steps.step import Step
from ranklake.capture.steps.waits import Loader
from ranklake.capture.training.parts import RowParts, SlotParts, handed_on
from ranklake.capture.training.recording import Recording, RunInfo

if TYPE_CHECKING:
    from ranklake.capture.metrics.aggregate import Aggregate, Counter
    from ranklake.capture.metrics.distribution import Distribution
    from ranklake.capture.recording.recorder import Recorder
    from ranklake.capture.steps.phase import Phase
    from ranklake.capture.steps.step import Steps

T = TypeVar("T")


class Run(RunInfo):
    """A training run being recorded by one rank. Made by `start`; see there for the parameters.

    Parameters
    ----------
    recorder
        None for a run that records nothing.
    idle
        Counts what such a run is given; None where it is the user's wish that nothing is recorded.

    Attributes
    ----------
    rows, slots, recording
        The parts that it is composed of; the last two are None for a run that records nothing.
    """

    def __init__(self, launch: Launch, recorder: "Recorder | None" = None, idle: Gaps | None = None) -> None:
        self.launch = launch
        self.rows = RowParts(self, recorder, idle)
        self.slots: SlotParts | None = None
        self.recording: Recording | None = None
        self._idle = idle
        self._steps: Steps | None = None
        self._phases: dict[object, Phase] = {}
        if recorder is not None:
            self.slots = SlotParts(self, recorder, self.rows)
            self.recording = Recording(self, recorder, self.rows, self.slots)
            # Short cuts for what a training loop calls in each step.
            self._steps, self._phases = self.slots.steps, self.slots.phases.made
            object.__setattr__(self, "log", self.slots.values.fast)

    # ── steps and phases ──

    def step(
        self, n: object = None, *excess: object, tokens: object = None, samples: object = None, **scalars: object
    ) -> Step | NullContext:
        """Return a context for one training step; its row is written, and survives, when the block ends.

        Parameters
        ----------
        n
            Step number as the trainer counts it; by default one more than the last.
        tokens, samples
            What this rank trains on in the step; may as well be logged within the step.
        scalars
            Further values, as if logged in the step.
        """
        steps = self._steps
        if steps is None:
            return null_context(self._idle, "steps", "spans")
        try:
            step = Step(steps, n, tokens, samples, scalars)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            steps.sink.trouble("beginning a step", error, "steps")
            return NOTHING
        if excess:
            steps.sink.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
        return step

    def phase(
        self,
        name: object = "",
        *excess: object,
        size_bytes: object = None,
        microbatch: object = None,
        on_device: bool = False,
    ) -> AnyPhase | NullContext:
        """Return a context for a part of a step, or for any stretch of time; each passage is recorded as a span.

        Within a step ``data``, ``forward``, ``backward``, ``optimizer``, ``collective``, ``checkpoint`` and
        ``evaluation`` also add to the step's column of that name. Keep the context and enter it repeatedly, from
        several threads, too: that is the fastest way.

        Parameters
        ----------
        size_bytes
            Data moved or written, if that is what the phase does.
        microbatch
            Number of the micro-batch within the step.
        on_device
            Time the CUDA stream as well, without waiting for it: the device's time is a span of its own, and is what
            the step's column gets. Where CUDA is not in use yet, it makes no difference.
        """
        try:
            if size_bytes is None and microbatch is None and not on_device and not excess:
                return self._phases[name]
        except Exception:  # noqa: BLE001, S110 - not made yet, or no name at all: see below
            pass
        if self.slots is None:
            return null_context(self._idle, "spans")
        return self.slots.phases.find(name, *excess, size_bytes=size_bytes, microbatch=microbatch, on_device=on_device)

    def loader(self, batches: Iterable[T]) -> Iterable[T]:
        """Return batches whose waits are recorded as phase ``data`` of the step that they feed.

            for n, batch in enumerate(run.loader(DataLoader(…))):
                with run.step(n): ...

        Parameters
        ----------
        batches
            Any iterable. What is returned has its length, attributes and methods.

        Notes
        -----
        The wait before a step belongs to the step: `ranklake.capture.steps.waits` says how. It is recorded when
        the step begins.
        """
        return Loader(batches, self.slots.waits) if self.slots is not None and self.enabled else batches

    def coordinates(self, mesh: object = None, **axes: object) -> None:
        """Say where in the mesh this rank is: all spans from here on have it in ``dp_rank``, ``pp_rank``, ``tp_rank``.

        Call it before phases are looked up: handles that there are keep what they had.

        Parameters
        ----------
        mesh
            A torch DeviceMesh with names for its axes.
        axes
            ``dp``, ``pp``, ``tp``, ``ep`` or ``cp``, each with the rank's number on it. These win.
        """
        if self.slots is not None:
            self.slots.spans.locate(mesh, axes)
            self._phases.clear()

    # ── values ──

    def log(
        self, mapping: Mapping[Any, object] | None = None, *excess: object, step: object = None, **scalars: object
    ) -> None:
        """Record values by name, all at one moment.

        Within a step, ``loss``, ``lr``, ``grad_norm``, ``tokens`` and ``samples`` go to the step's row; all else
        becomes metrics.

        Parameters
        ----------
        mapping
            Names to values, for names that are no identifiers, such as ``"eval/loss"``.
        step
            Step that the values belong to; by default the running one, or between steps the one that ended last.
        scalars
            Further names and values.
        """
        if self.slots is not None:
            self.slots.values.fast(mapping, *excess, step=step, **scalars)
        elif self._idle is not None:  # a run that was never started: counted
            if excess:
                self.rows.sink.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
            given = {**mapping, **scalars} if mapping is not None else scalars
            self.rows.sink.miss("scalars", len(plainly_named(self.rows.sink, given)))

    def scalar(self, name: object, kind: object = None, unit: object = None, *_: object, keep: object = None) -> Scalar:
        """Return a handle for one metric: the fastest way to record values.

        Parameters
        ----------
        kind
            ``gauge``, ``counter``, ``delta`` or ``ratio``: how values combine. By default what the registry says of
            the metric, and gauge if it says nothing.
        unit
            What the values are in, in the registry's letters. None stands for what the registry says.
        keep
            Share of the values to keep, from 0 to 1; by default what the setting ``sampling`` says. See
            `ranklake.capture.metrics.sampling`.
        """
        if self.slots is None:
            return no_scalar(text(name, 80), self._idle)
        return self.slots.meter.scalar(name, kind, unit, keep)

    def counter(self, name: object, *_: object, unit: str | None = None) -> "Counter | NullHandle":
        """Return a handle that only grows: ``read.add(len(block))`` records the sum so far.

        Parameters
        ----------
        unit
            What is counted, such as ``By`` for bytes. None stands for what the registry says.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "scalars", self._idle)
        return self.slots.meter.counter(name, unit)

    def aggregate(
        self, name: object, *_: object, every_s: object = 10.0, kind: object = None, unit: object = None
    ) -> "Aggregate | NullHandle":
        """Return a handle whose values become one row per interval: count, least, greatest, mean, deviation, last.

        For what happens too often to keep each value. Each thread that uses the handle has rows of its own.

        Parameters
        ----------
        every_s
            Length of an interval; sealing ends it early, and a row never lacks a value that was added.
        kind, unit
            As for `scalar`.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "scalars", self._idle)
        return self.slots.meter.aggregate(name, every_s, kind, unit)

    def histogram(
        self, name: object, *_: object, every_s: object = 60.0, max_buckets: object = 160, unit: object = None
    ) -> "Distribution | NullHandle":
        """Return a handle for whole distributions: ``grads.record(array)``; one row of ``distributions`` per interval.

        Parameters
        ----------
        every_s, unit
            As for `aggregate`.
        max_buckets
            Of each sign, 4 to 160: the resolution is the finest at which the interval's values fit into so many.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "distributions", self._idle)
        return self.slots.meter.histogram(name, every_s, max_buckets, unit)

    # ── events, log lines, files ──

    event = handed_on("event", "rows.events", Events.add)

    def record(
        self, table: object = "", mapping: Mapping[Any, object] | None = None, *excess: object, **columns: object
    ) -> None:
        """Record one row of a table of your own, which an overlay of contracts adds; see docs/overlays.md.

            run.record("rollouts", reward=0.5, tokens=812, annotator=who)

        Parameters
        ----------
        table
            Its name.
        mapping
            Columns and values, for columns whose names are those of parameters here.
        columns
            Further columns. Run, rank and time come by themselves, and so does the running step, if the table has a
            column ``step``. Values are converted as the contract says: text is redacted like a log line's, times bear
            their zone or are seconds since 1970.

        A column that the table lacks is reported, and left out. A row is counted as a gap if a value does not fit or a
        required one is missing, and so is one of a table that no contract has.
        """
        self.rows.own_tables.add(table, mapping, excess, columns)

    def log_handler(
        self, level: int | str = logging.INFO, *, levels: Mapping[str, int | str] | None = None
    ) -> LogHandler:
        """Return a handler of `logging` that records: ``logging.getLogger().addHandler(run.log_handler())``.

        Parameters
        ----------
        level
            Least level to record. Of what is below INFO a share is kept (the setting ``log_verbose``).
        levels
            Others for some loggers and those below them, such as ``{"urllib3": "ERROR"}``.

        Raises `ValueError` for a level that `logging` does not know.
        """
        return self.rows.logs.handler(level, levels)

    def structlog_processor(self, level: int | str = logging.INFO) -> StructlogProcessor:
        """Return a processor for structlog that records and hands on; it goes before the renderer.

        Raises `ValueError` for a level that `logging` does not know.
        """
        return self.rows.logs.processor(level)

    dataset = handed_on("dataset", "rows.datasets", Datasets.add)
    artifact = handed_on("artifact", "rows.artifacts", Artifacts.add)
    checkpoint = handed_on("checkpoint", "rows.artifacts", Artifacts.checkpoint)
    media = handed_on("media", "rows.media", Media.add)
    loading = handed_on("loading", "rows.artifacts.loads", Loads.loading)
    tag = handed_on("tag", "rows.artifacts", Artifacts.tag)

    # ── what looks over training's shoulder ──

    def collectives(self, *models: object) -> Collectives | None:
        """Time collectives from here on, without waiting for any: those of torch.distributed and of models' gradients.

        Parameters
        ----------
        models
            Each DistributedDataParallel in them gets a hook that times its all-reduce; see
            `ranklake.capture.steps.gradients.watch_gradients`. Fully sharded ones (FSDP, ``fully_shard``) call
            torch.distributed's functions, which are timed for everyone.

        Returns
        -------
        What times them, whose ``stop`` ends that; None in a run that records nothing. `close` stops it, too.
        """
        return self.slots.watchers.collectives(models) if self.slots is not None and self.enabled else None

    def profile(
        self, every: int = 1000, *, folder: str | PathLike[str] | None = None, max_bytes: int = 1 << 28
    ) -> None:
        """Run torch.profiler on one step in so many, the same on every rank.

        The traces are kept as artifacts and summed up as spans of the step: compute, communication, overlap, idle. The
        profiler starts before the step and stops after it, waiting for the GPU then.

        Parameters
        ----------
        every
            Steps are drawn by the run's name and their number: a thousand have one on average, not exactly.
        folder
            Where traces are kept, on a local disk; by default ``profiles`` in the local spool.
        max_bytes
            A trace that is larger before it is compressed is deleted, and an event says so.
        """
        if self.slots is not None and self.enabled:
            self.slots.watchers.profile(every, folder, max_bytes)

    def flight_recorder(
        self, timeout_s: float = 300.0, *, folder: str | PathLike[str] | None = None
    ) -> FlightRecorder | None:
        """Keep torch's Flight Recorder, what collectives each rank has begun and ended, when training hangs or fails.

        Parameters
        ----------
        timeout_s
            Training hangs if no step or phase has begun for so long.
        folder
            Where dumps are kept, on a local disk; by default ``dumps`` in the local spool.

        Returns
        -------
        What keeps them, whose ``dump`` keeps one now; None in a run that records nothing.
        """
        if self.slots is None or not self.enabled:
            return None
        return self.slots.watchers.flight_recorder(timeout_s, folder)

    def count_flops(self, *_: object, tokens: object = None) -> FlopCount | NullContext:
        """Return a context around one real training step whose FLOPs torch counts; see `FlopCount`.

        Parameters
        ----------
        tokens
            Tokens that this rank trains on in that step, for FLOPs per token.
        """
        if self.slots is None:
            return NOTHING
        return FlopCount(self.rows.sink, self.rows.events, self.slots.scalars.add, tokens)

    def calibrate_peak(self) -> float | None:
        """Measure this CPU's peak, record it as device/peak_flops_measured and return it in FLOP/s.

        None, and nothing is recorded, where a GPU computes or torch is not imported. Takes about two seconds.
        """
        if self.slots is None:
            return None
        peak = None
        with self.rows.sink.guarded("measuring the peak"):
            peak = measure_cpu_peak()
            if peak is not None:
                self.slots.scalars.add(PEAK_MEASURED, peak)
        return peak

    # ── the end ──

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Seal and upload what is recorded so far; True if all of it reached the spool in time."""
        return self.recording is not None and self.recording.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """End the recording: seal everything, upload it for at most `timeout_s`, leave the rest to recovery.

        Closing twice is harmless. What is logged afterwards is counted as a gap.
        """
        if self.recording is not None:
            self.recording.close(timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None and not isinstance(error, GeneratorExit):
            self.rows.lifecycle.fail(error)
        self.close()

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a run that records nothing: a checkpoint may hold a trainer that holds a run."""
        wanted = self.recording is not None or self._idle is not None
        return (_unpickled_run if wanted else Run), (self.launch,)


def _unpickled_run(launch: Launch) -> Run:
    """Return a run that was pickled, maybe into another process: what it is given is counted, and reported once."""
    return Run(launch, None, NOWHERE)


# What stands in its place in a run that records: `help(run.log)` tells the same.
ValueLog.log.__doc__ = Run.log.__doc__
