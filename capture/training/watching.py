"""Watching: the part of a run that looks over training's shoulder: loaders, collectives, places in the mesh."""

import itertools
from collections.abc import Iterable
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar, cast

from ranklake.capture.common.gaps import BAD_VALUE, Gaps, RefusedError
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, number
from ranklake.capture.metrics.metrics import Metrics
from ranklake.capture.steps.collectives import Collectives
from ranklake.capture.steps.flight import FlightRecorder
from ranklake.capture.steps.profiler import Profiler
from ranklake.capture.steps.steps import Step
from ranklake.capture.steps.waits import Loader, Waits

if TYPE_CHECKING:
    from ranklake.capture.lanes.lane import Lane
    from ranklake.capture.lanes.shards import Shards
    from ranklake.capture.recording.recorder import Recorder
    from ranklake.capture.steps.device_phases import Mark, Passage
    from ranklake.capture.steps.phases import Phase
    from ranklake.capture.steps.stack import Frame
    from ranklake.capture.training.run import Run

T = TypeVar("T")

_AXES: Final = {
    **{axis: f"{axis}_rank" for axis in ("dp", "pp", "tp", "ep", "cp")},
    "data": "dp_rank",
    "dp_shard": "dp_rank",
    "fsdp": "dp_rank",
    "pipeline": "pp_rank",
    "tensor": "tp_rank",
    "expert": "ep_rank",
    "context": "cp_rank",
}
"""Columns of spans by the names that meshes have for their axes."""


class Watching(Metrics):
    """The part of a run that looks over training's shoulder.

    Attributes
    ----------
    waits
        For data, that no step has claimed yet.
    span_ids
        Gives each span its number, unique in the process.
    coordinates_of_spans
        Columns that all spans have in common: where in the mesh the rank is.
    on_device
        Passages that a device works on now.
    mark
        Puts an event into a device's stream.
    """

    steps: "Lane | Shards"
    spans: "Lane | Shards"
    on_device: "dict[Frame, Passage]"
    mark: "Mark"

    def __init__(self, recorder: "Recorder | None", idle: Gaps | None = None) -> None:
        super().__init__(recorder, idle)
        self.span_ids = itertools.count(1)
        self.waits = Waits(self._me)
        self.coordinates_of_spans: dict[str, int] = {}
        self._phases: dict[object, Phase] = {}
        self._collectives: Collectives | None = None
        self._profiler: Profiler | None = None
        self._flight: FlightRecorder | None = None
        if recorder is not None:
            self.steps, self.spans = recorder.slots["steps"], recorder.slots["spans"]

    @property
    def _me(self) -> "Run":
        return cast("Run", self)

    @property
    def enabled(self) -> bool:
        """Whether anything is recorded."""
        return self._recorder is not None and not self._closed

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
        return Loader(batches, self._me) if self.enabled else batches

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
        if not self.enabled:
            return None
        try:
            if self._collectives is None:
                self._collectives = Collectives(self._me)
            self._collectives.watch(*models)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("watching collectives", error)
        return self._collectives

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
        if self._recorder is None or self._closed:
            return
        try:
            kept = Path(folder) if folder is not None else self._recorder.root / "profiles"
            self._profiler = Profiler(self._me, integer(every), kept, integer(max_bytes))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("profiling", error)

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
        if self._recorder is None or self._closed:
            return None
        try:
            if self._flight is None:
                kept = Path(folder) if folder is not None else self._recorder.root / "dumps"
                self._flight = FlightRecorder(self._me, kept, number(timeout_s))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("watching the flight recorder", error)
        return self._flight

    def enter_step(self, step: Step) -> None:
        """Take note that a step begins, and profile it if it is one of those."""
        super().enter_step(step)
        if self._profiler is not None:
            try:
                self._profiler.begin(step)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self.trouble("starting the profiler", error)

    def leave_step(self, around: Step | None) -> None:
        """Take note that a step ends; what profiled it stops."""
        if self._profiler is not None and self.current is not None:
            try:
                self._profiler.end(self.current)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self.trouble("stopping the profiler", error)
        super().leave_step(around)

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
        found: dict[str, object] = {}
        try:
            given: Any = mesh
            for name in () if given is None else given.mesh_dim_names or ():
                found[name] = given.get_local_rank(name)
            found |= axes
            for name, place in found.items():
                if name in _AXES and place is not None:
                    self.coordinates_of_spans[_AXES[name]] = integer(place) & 0x7FFFFFFF
            self._phases.clear()
        except (BadValueError, DeviceValueError) as error:
            self.refuse("spans", BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("reading the mesh", error)

    def span_number(self, name: str, kind: str, **facts: str | int | None) -> int | None:
        """Return the number of a span's name; None if there is none to be had, which is then counted."""
        assert self._recorder is not None
        try:
            known = {key: value for key, value in facts.items() if value is not None}
            return self._recorder.series.span(name, kind, **known, **self.coordinates_of_spans)
        except RefusedError as refused:
            self.refuse("spans", refused.reason, refused.detail)
            return None

    def stop_watching(self) -> None:
        """Give back what was hooked and record what waits."""
        if self._collectives is not None:
            self._collectives.stop()
        if self._profiler is not None:
            self._profiler.close()
        if self._flight is not None:
            if self._me.ending.get("reason"):
                self._flight.dump(f"training failed: {self._me.ending['reason']}")
            self._flight.close()
        self.waits.leave_all()
