"""Watchers: optional observers of training: collectives, profiler, flight recorder."""

from collections.abc import Callable
from os import PathLike
from pathlib import Path

from ranklake.capture.common.run_like import RunLike
from ranklake.capture.common.values import integer, number
from ranklake.capture.steps.collectives import Collectives
from ranklake.capture.steps.device_phases import DeviceTimer
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.flight import FlightRecorder
from ranklake.capture.steps.phases import Phases
from ranklake.capture.steps.profiler import Profiler
from ranklake.capture.steps.stack import OpenStep

Folder = str | PathLike[str] | None


class Watchers:
    """The watchers of one run, each made when it is first asked for.

    Parameters
    ----------
    keep
        Records a file of ours: `ranklake.capture.assets.artifacts.Artifacts.record_file`.
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
        try:
            if self._collectives is None:
                self._collectives = Collectives(self._device, self._phases, self._events)
            self._collectives.watch(*models)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("watching collectives", error)
        return self._collectives

    def profile(self, every: int, folder: Folder, max_bytes: int) -> None:
        """Profile one step in so many; see `ranklake.capture.Run.profile`."""
        try:
            kept, is_first = self._folder(folder, "profiles"), self._profiler is None
            self._profiler = Profiler(
                *(self._run, self._spans, self._events, self._keep),
                every=integer(every),
                folder=kept,
                max_bytes=integer(max_bytes),
            )
            if is_first:
                progress = self._spans.progress
                progress.on_begin += (self._begin_profile,)
                progress.on_end += (self._end_profile,)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("profiling", error)

    def flight_recorder(self, timeout_s: float, folder: Folder) -> FlightRecorder | None:
        """Keep torch's Flight Recorder; see `ranklake.capture.Run.flight_recorder`."""
        try:
            if self._flight is None:
                self._flight = FlightRecorder(
                    *(self._run, self._sink, self._events, self._spans.progress, self._keep),
                    folder=self._folder(folder, "dumps"),
                    timeout_s=number(timeout_s),
                )
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.trouble("watching the flight recorder", error)
        return self._flight

    def stop(self, failure: str | None) -> None:
        """Give back what was hooked and record what waits.

        Parameters
        ----------
        failure
            What ended the run, if it did not end as it should.
        """
        if self._collectives is not None:
            self._collectives.stop()
        if self._profiler is not None:
            self._profiler.close()
        if self._flight is not None:
            if failure:
                self._flight.dump(f"training failed: {failure}")
            self._flight.close()

    def _folder(self, given: Folder, otherwise: str) -> Path:
        return Path(given) if given is not None else self._root / otherwise

    def _begin_profile(self, step: OpenStep) -> None:
        if self._profiler is not None:
            try:
                self._profiler.begin(step)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self._sink.trouble("starting the profiler", error)

    def _end_profile(self, step: OpenStep) -> None:
        if self._profiler is not None:
            try:
                self._profiler.end(step)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self._sink.trouble("stopping the profiler", error)
