"""Run: the interface for training loops.

A run is composed of parts with one job each (`ranklake.capture.training.parts`), and its methods call them. No method
raises into training, for any argument. A row that cannot be recorded is counted as a gap, by reason, and each reason is
logged once as a warning by the logger "ranklake".

The public methods have their signatures and documentation here, or take them from a part (`delegate`). The identity of
a run, its tags and its notes are in `ranklake.capture.training.recording`.
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
from ranklake.capture.metrics.value_log import ValueLog, with_plain_names
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.steps.collectives import Collectives
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.flight import FlightRecorder
from ranklake.capture.steps.flops import PEAK_MEASURED, FlopCount, measure_cpu_peak
from ranklake.capture.steps.nothing import NOTHING, NullContext, null_context
from ranklake.capture.steps.phases import AnyPhase
from ranklake.capture.steps.step import Step
from ranklake.capture.steps.waits import Loader
from ranklake.capture.training.parts import RowParts, SlotParts, delegate
from ranklake.capture.training.recording import Recording, RunInfo

if TYPE_CHECKING:
    from ranklake.capture.metrics.aggregate import Aggregate, Counter
    from ranklake.capture.metrics.distribution import Distribution
    from ranklake.capture.recording.recorder import Recorder
    from ranklake.capture.steps.phase import Phase
    from ranklake.capture.steps.step import Steps

T = TypeVar("T")


class Run(RunInfo):
    """A training run, recorded by one rank. `start` creates it and documents the parameters.

    Parameters
    ----------
    recorder
        None for a run that records nothing.
    idle
        Counts the rows that a run without a recorder is given; None if the user disabled recording.

    Attributes
    ----------
    rows, slots, recording
        The run's parts; `slots` and `recording` are None for a run that records nothing.
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
            # Short cuts for the calls of every step.
            self._steps, self._phases = self.slots.steps, self.slots.phases.handles
            object.__setattr__(self, "log", self.slots.values.fast)

    # ── steps and phases ──

    def step(
        self, n: object = None, *excess: object, tokens: object = None, samples: object = None, **scalars: object
    ) -> Step | NullContext:
        """Return a context for one training step. Its row is written when the block ends, and survives a crash then.

        Parameters
        ----------
        n
            Step number as the trainer counts it; by default the previous number plus one.
        tokens, samples
            Tokens and samples that this rank trains on in the step; `log` within the step takes them, too.
        scalars
            Further values, as for `log`.
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
        """Return a context for a part of a step, or for any other interval. Each use of it is recorded as a span.

        Within a step, ``data``, ``forward``, ``backward``, ``optimizer``, ``collective``, ``checkpoint`` and
        ``evaluation`` also add to the step's column of that name. To be fast, create the context once and enter it
        repeatedly; several threads may share it.

        Parameters
        ----------
        size_bytes
            Bytes that the phase moves or writes.
        microbatch
            Number of the micro-batch within the step.
        on_device
            Also time the CUDA stream, without waiting for it. The time on the GPU becomes a second span, and the step's
            column gets it in place of the host's time. No effect before CUDA is in use.
        """
        try:
            if size_bytes is None and microbatch is None and not on_device and not excess:
                return self._phases[name]
        except Exception:  # noqa: BLE001, S110 - a new or an invalid name: `find` handles both
            pass
        if self.slots is None:
            return null_context(self._idle, "spans")
        return self.slots.phases.find(name, *excess, size_bytes=size_bytes, microbatch=microbatch, on_device=on_device)

    def loader(self, batches: Iterable[T]) -> Iterable[T]:
        """Return an iterable over batches that records each wait for a batch as phase ``data`` of the next step.

            for n, batch in enumerate(run.loader(DataLoader(…))):
                with run.step(n): ...

        Parameters
        ----------
        batches
            Any iterable. The returned object has its length, attributes and methods.

        Notes
        -----
        A wait is recorded when the next step begins; see `ranklake.capture.steps.waits`.
        """
        return Loader(batches, self.slots.waits) if self.slots is not None and self.enabled else batches

    def coordinates(self, mesh: object = None, **axes: object) -> None:
        """Set this rank's coordinates in the mesh. Later spans have them in ``dp_rank``, ``pp_rank`` and ``tp_rank``.

        Call it before `phase`: existing handles keep the previous coordinates.

        Parameters
        ----------
        mesh
            A torch DeviceMesh with named axes.
        axes
            ``dp``, ``pp``, ``tp``, ``ep`` or ``cp``: the rank's index on that axis. They override `mesh`.
        """
        if self.slots is not None:
            self.slots.spans.locate(mesh, axes)
            self._phases.clear()

    # ── values ──

    def log(
        self, mapping: Mapping[Any, object] | None = None, *excess: object, step: object = None, **scalars: object
    ) -> None:
        """Record values by name, all with the same time.

        Within a step, ``loss``, ``lr``, ``grad_norm``, ``tokens`` and ``samples`` go to the step's row. All other names
        become metrics.

        Parameters
        ----------
        mapping
            Names to values, for names that are no Python identifiers, such as ``"eval/loss"``.
        step
            Number of the step that the values belong to; by default the running step, or the last one between steps.
        scalars
            Further names and values.
        """
        if self.slots is not None:
            self.slots.values.fast(mapping, *excess, step=step, **scalars)
        elif self._idle is not None:  # a run that was not started here: values are counted
            if excess:
                self.rows.sink.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
            values = {**mapping, **scalars} if mapping is not None else scalars
            self.rows.sink.miss("scalars", len(with_plain_names(self.rows.sink, values)))

    def scalar(self, name: object, kind: object = None, unit: object = None, *_: object, keep: object = None) -> Scalar:
        """Return a handle for one metric: the fastest way to record values.

        Parameters
        ----------
        kind
            ``gauge``, ``counter``, ``delta`` or ``ratio``: how values combine. By default the registry's kind of the
            metric, or ``gauge`` if the registry lacks the metric.
        unit
            Unit of the values, as the registry writes units; by default the registry's unit.
        keep
            Share of the values to keep, from 0 to 1; by default from the setting ``sampling``. See
            `ranklake.capture.metrics.sampling`.
        """
        if self.slots is None:
            return no_scalar(text(name, 80), self._idle)
        return self.slots.meter.scalar(name, kind, unit, keep)

    def counter(self, name: object, *_: object, unit: str | None = None) -> "Counter | NullHandle":
        """Return a handle for a sum that only grows: ``read.add(len(block))`` records the sum so far.

        Parameters
        ----------
        unit
            Unit of the sum, such as ``By`` for bytes; by default the registry's unit.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "scalars", self._idle)
        return self.slots.meter.counter(name, unit)

    def aggregate(
        self, name: object, *_: object, every_s: object = 10.0, kind: object = None, unit: object = None
    ) -> "Aggregate | NullHandle":
        """Return a handle whose values become one row per interval: count, minimum, maximum, mean, deviation, last.

        Use it for values that are too frequent to keep each one. Each thread that uses the handle has separate rows.

        Parameters
        ----------
        every_s
            Length of an interval in seconds. Sealing ends an interval early; a row has all values added until then.
        kind, unit
            As for `scalar`.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "scalars", self._idle)
        return self.slots.meter.aggregate(name, every_s, kind, unit)

    def histogram(
        self, name: object, *_: object, every_s: object = 60.0, max_buckets: object = 160, unit: object = None
    ) -> "Distribution | NullHandle":
        """Return a handle for distributions: ``grads.record(array)``. Each interval is one row of ``distributions``.

        Parameters
        ----------
        every_s, unit
            As for `aggregate`.
        max_buckets
            Buckets per sign, 4 to 160. The finest resolution is used at which the interval's values fit into them.
        """
        if self.slots is None:
            return NullHandle(text(name, 80), "distributions", self._idle)
        return self.slots.meter.histogram(name, every_s, max_buckets, unit)

    # ── events, log lines, files ──

    event = delegate("event", "rows.events", Events.add)

    def record(
        self, table: object = "", mapping: Mapping[Any, object] | None = None, *excess: object, **columns: object
    ) -> None:
        """Record one row of your own table, which an overlay of contracts defines; see docs/overlays.md.

            run.record("rollouts", reward=0.5, tokens=812, annotator=who)

        Parameters
        ----------
        table
            Name of the table.
        mapping
            Columns and values, for columns named like a parameter of this method.
        columns
            Further columns. Run, rank and time are added, and the running step if the table has a column ``step``.
            Values are converted to the contract's types. Text is redacted like log lines. Times have a time zone, or
            are seconds since 1970.

        A column that the table lacks is left out with a warning. A row is counted as a gap if a value does not fit, a
        required value is missing, or no contract defines the table.
        """
        self.rows.own_tables.add(table, mapping, excess, columns)

    def log_handler(
        self, level: int | str = logging.INFO, *, levels: Mapping[str, int | str] | None = None
    ) -> LogHandler:
        """Return a `logging` handler that records lines: ``logging.getLogger().addHandler(run.log_handler())``.

        Parameters
        ----------
        level
            Lowest level to record. Of lines below INFO, a share is kept (the setting ``log_verbose``).
        levels
            Levels for some loggers and their children, such as ``{"urllib3": "ERROR"}``.

        Raises `ValueError` for a level that `logging` does not know.
        """
        return self.rows.logs.handler(level, levels)

    def structlog_processor(self, level: int | str = logging.INFO) -> StructlogProcessor:
        """Return a structlog processor that records each event and returns it unchanged. Put it before the renderer.

        Raises `ValueError` for a level that `logging` does not know.
        """
        return self.rows.logs.processor(level)

    dataset = delegate("dataset", "rows.datasets", Datasets.add)
    artifact = delegate("artifact", "rows.artifacts", Artifacts.add)
    checkpoint = delegate("checkpoint", "rows.artifacts", Artifacts.checkpoint)
    media = delegate("media", "rows.media", Media.add)
    loading = delegate("loading", "rows.artifacts.loads", Loads.loading)
    tag = delegate("tag", "rows.artifacts", Artifacts.tag)

    # ── watchers of training ──

    def collectives(self, *models: object) -> Collectives | None:
        """Start timing collectives of torch.distributed and of models' gradients, without waiting for them.

        Parameters
        ----------
        models
            Each DistributedDataParallel in them gets a hook that times its all-reduce; see
            `ranklake.capture.steps.gradients.watch_gradients`. Fully sharded models (FSDP, ``fully_shard``) call
            functions of torch.distributed, which are always timed.

        Returns
        -------
        The watcher of collectives; its ``stop`` ends the timing, and so does `close`. None in a run that records
        nothing.
        """
        return self.slots.watchers.collectives(models) if self.slots is not None and self.enabled else None

    def profile(
        self, every: int = 1000, *, folder: str | PathLike[str] | None = None, max_bytes: int = 1 << 28
    ) -> None:
        """Run torch.profiler on one step in `every`, the same steps on all ranks.

        Traces are kept as artifacts. Spans of the step summarize them: compute, communication, overlap, idle. The
        profiler starts before the step and stops after it; stopping waits for the GPU.

        Parameters
        ----------
        every
            Steps per profiled step, on average. A hash of the run's name and the step's number selects steps.
        folder
            Folder on a local disk for traces; by default ``profiles`` in the local spool.
        max_bytes
            Largest trace before compression. A larger one is deleted, and an event reports it.
        """
        if self.slots is not None and self.enabled:
            self.slots.watchers.profile(every, folder, max_bytes)

    def flight_recorder(
        self, timeout_s: float = 300.0, *, folder: str | PathLike[str] | None = None
    ) -> FlightRecorder | None:
        """Save a dump of torch's Flight Recorder, which lists each rank's collectives, when training hangs or fails.

        Parameters
        ----------
        timeout_s
            Training counts as hung if no step or phase has begun for this time.
        folder
            Folder on a local disk for dumps; by default ``dumps`` in the local spool.

        Returns
        -------
        The recorder of dumps; its ``dump`` saves one immediately. None in a run that records nothing.
        """
        if self.slots is None or not self.enabled:
            return None
        return self.slots.watchers.flight_recorder(timeout_s, folder)

    def count_flops(self, *_: object, tokens: object = None) -> FlopCount | NullContext:
        """Return a context that counts the FLOPs of one real training step with torch; see `FlopCount`.

        Parameters
        ----------
        tokens
            Tokens that this rank trains on in that step, for FLOPs per token.
        """
        if self.slots is None:
            return NOTHING
        return FlopCount(self.rows.sink, self.rows.events, self.slots.scalars.add, tokens)

    def calibrate_peak(self) -> float | None:
        """Measure this CPU's peak, record it as device/peak_flops_measured, and return it in FLOP/s.

        It takes about two seconds. If a GPU computes or torch is not imported, nothing is recorded, and None is
        returned.
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
        """Seal and upload all rows recorded so far. Return whether all of them reached the spool in time."""
        return self.recording is not None and self.recording.flush(timeout_s)

    def close(self, timeout_s: float = 10.0) -> None:
        """End the recording: seal all rows and upload segments for at most `timeout_s` seconds.

        The next run on the node, or its agent, uploads the rest. A second call does nothing. Rows that are recorded
        later are counted as gaps.
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
        """Pickle as a run that records nothing: a checkpoint may contain a trainer that refers to a run."""
        is_enabled = self.recording is not None or self._idle is not None
        return (_unpickled_run if is_enabled else Run), (self.launch,)


def _unpickled_run(launch: Launch) -> Run:
    """Return a run that was unpickled, possibly in another process. Its rows are counted, and reported once."""
    return Run(launch, None, NOWHERE)


# A run that records binds `log` to this method: `help(run.log)` must show the same text.
ValueLog.log.__doc__ = Run.log.__doc__
