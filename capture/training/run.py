"""Run: what a training loop talks to.

Nothing in here raises into training, whatever it is given: what cannot be recorded is counted as a gap, by reason, and
told once in a warning of the logger "ranklake".
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.capture.assets.assets import Assets
from ranklake.capture.common.gaps import BAD_ARGUMENTS, BAD_VALUE, NOWHERE, Gaps, RefusedError
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.values import (
    BadValueError,
    DeviceValueError,
    integer,
    json_text,
    number,
    plain,
    redacted,
    repr_of,
    text,
)
from ranklake.capture.lifecycle.failures import FAILURES
from ranklake.capture.lifecycle.preemption import PREEMPTION
from ranklake.capture.logs.logs import Logging
from ranklake.capture.metrics.series import checked
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.spool.meta import ENDED
from ranklake.capture.steps.device_phases import DevicePhase, Mark, Passage, cuda_in_use, mark_cuda
from ranklake.capture.steps.flops import PEAK_MEASURED, FlopCount, measure_cpu_peak
from ranklake.capture.steps.phases import Phase, misspelt, now, phase_column, phase_handle
from ranklake.capture.steps.steps import NOTHING, Missed, Nothing, Step
from ranklake.capture.steps.waits import Waits
from ranklake.capture.training.watching import Watching
from ranklake.redaction.redact import redact

if TYPE_CHECKING:
    from ranklake.capture.recording.keeper import Keeper
    from ranklake.capture.recording.recorder import Recorder
    from ranklake.capture.steps.stack import Frame
    from ranklake.capture.training.identity import Identity

AnyPhase = Phase | DevicePhase
_SEVERITIES: Final = frozenset({"info", "warning", "error"})
_SEVERITY_OF: Final = {
    "warn": "warning",
    **dict.fromkeys(("err", "critical", "fatal", "emergency", "alert", "catastrophe", "catastrophic"), "error"),
}
"""What others say for them."""


class Run(Watching, Logging, Assets):
    """A training run being recorded by one rank. Made by `start`; see there for the parameters.

    Parameters
    ----------
    launch
        Who this process is.
    recorder
        None for a run that records nothing.
    idle
        Counts what such a run is given; None where it is the user's wish that nothing is recorded.

    Attributes
    ----------
    launch
        Who this process is, as far as it is known.
    identity
        What finds that out.
    turns
        Called when it turns out to be another rank, or of another run.
    """

    def __init__(self, launch: Launch, recorder: "Recorder | None" = None, idle: Gaps | None = None) -> None:
        super().__init__(recorder, idle)
        self.launch = launch
        self._keeper: Keeper | None = None
        self.ending: dict[str, Any] = {}
        self.drains, self.closers, self.each_second = [], [], []
        self.turns: list[Callable[[Launch], object]] = []
        self.identity: Identity | None = None
        self.on_device: dict[Frame, Passage] = {}
        self.mark: Mark = mark_cuda

    # ── who and what ──

    @property
    def name(self) -> str:
        """The run's name, the same on all ranks."""
        return self.launch.run

    @property
    def rank(self) -> int:
        """Global rank of this process."""
        return self.launch.rank

    @property
    def world_size(self) -> int:
        """Ranks in the run."""
        return self.launch.world_size

    @property
    def attempt(self) -> int:
        """Restart number of the run."""
        return self.launch.attempt

    def gaps(self) -> dict[str, dict[str, int]]:
        """Return what this process could not record so far: rows by table and reason."""
        counts: dict[str, dict[str, int]] = {}
        for (table, reason), rows in sorted(self._gaps.totals().items()):
            counts.setdefault(table, {})[reason] = rows
        return counts

    # ── steps and phases ──

    def step(
        self, n: object = None, *excess: object, tokens: object = None, samples: object = None, **scalars: object
    ) -> Step | Nothing:
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
        if self._recorder is None:
            return NOTHING if self._idle is None else Missed(self._idle, "steps", "spans")
        try:
            step = Step(self, n, {"tokens": tokens, "samples": samples}, scalars)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("beginning a step", error, "steps")
            return NOTHING
        if excess:
            self.refuse("scalars", BAD_ARGUMENTS, repr_of(excess))
        return step

    def phase(
        self,
        name: object = "",
        *excess: object,
        size_bytes: object = None,
        microbatch: object = None,
        on_device: bool = False,
    ) -> AnyPhase | Nothing:
        """Return a context for a part of a step, or for any stretch of time; each passage is recorded as a span.

        Within a step ``data``, ``forward``, ``backward``, ``optimizer``, ``collective``, ``checkpoint`` and
        ``evaluation`` also add to the step's column of that name.

        What is returned can be kept and entered again and again, by several threads at once, too: the fastest way.

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
        if self._recorder is None:
            return NOTHING if self._idle is None else Missed(self._idle, "spans")
        try:
            phase = self._new_phase(name, size_bytes, microbatch, on_device=bool(on_device))
        except RefusedError as refused:
            self.refuse("spans", refused.reason, refused.detail)
        except (BadValueError, DeviceValueError) as error:
            self.refuse("spans", BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("beginning a phase", error, "spans")
        else:
            if excess:
                self.refuse("spans", BAD_ARGUMENTS, repr_of(excess))
            return phase
        return NOTHING

    def _new_phase(self, name: object, size_bytes: object, microbatch: object, *, on_device: bool) -> AnyPhase:
        assert self._recorder is not None
        name = checked(name)
        column, kind = phase_column(name)
        if column < 0 and (meant := misspelt(name)):
            self.misuse(f"phase {name}", f"phase {name!r} adds to no column of the step; did you mean {meant!r}?")
        where = self.coordinates_of_spans
        number = self._recorder.series.span(name, kind, **where)
        size = ABSENT if size_bytes is None else integer(size_bytes)
        batch = -1 if microbatch is None else integer(microbatch) & 0x7FFFFFFF
        if on_device and cuda_in_use():
            on_stream = self._recorder.series.span(name, kind, stream="cuda", device_time=1, **where)
            return DevicePhase(self, phase_handle(self, number, -1, size, batch), on_stream, column, self.mark)
        phase = phase_handle(self, number, column, size, batch)
        if size_bytes is None and microbatch is None and not on_device:
            self._phases[name] = phase
        return phase

    def step_span(self) -> int | None:
        """Return the number of the name of steps' spans; None if there is none to be had, which is then counted."""
        return self.span_number("step", "step")

    # ── events ──

    def event(
        self,
        name: object = "",
        *excess: object,
        message: object = None,
        step: object = None,
        severity: object = "info",
        duration_s: object = None,
        **attributes: object,
    ) -> None:
        """Record that something happened.

        Parameters
        ----------
        name
            One of the contract's (``checkpoint``, ``failure``, ``preemption``, …) or your own.
        message
            One line for a person to read.
        step
            By default the running step, if there is one.
        severity
            ``info``, ``warning`` or ``error``.
        duration_s
            How long it took, if it took time; it then ended now.
        attributes
            What else is known, kept as JSON. What looks like a credential is redacted, here and in the message.
        """
        if self._recorder is None:
            self._miss("events")
            return
        moment = now()
        with self.recording("events"):
            frame = self.stack.top
            if step is None:
                at = ABSENT if frame is None or frame.step is None else frame.step.number
            else:
                at = integer(step)
            if excess:
                attributes["excess"] = excess
            columns: dict[str, Any] = {
                "event": checked(name)[:256],
                "severity": self._severity(severity),
                "message": None if message is None else redacted(message, 8192),
                "step": None if at == ABSENT else at,
                "duration_ns": None if duration_s is None else max(0, round(number(duration_s) * 1e9)),
                "attributes": json_text(redact(plain(attributes))),
            }
            self.record("events", columns, moment)

    def _severity(self, given: object) -> str:
        """Return a severity that the contract has; of another, the nearest, and it is told."""
        if isinstance(given, str) and given in _SEVERITIES:
            return given
        word = text(given, 80)
        severity = _SEVERITY_OF.get(word.lower(), "info")
        known = "info, warning or error"
        self.misuse(f"severity {word}", f"severity {word!r} is not {known}; it is recorded as {severity!r}")
        return severity

    def record(self, table: str, columns: Mapping[str, Any], at_ns: int | None = None) -> bool:
        """Write a row of one of `ranklake.capture.common.layouts.FRAME_LANES`; False if it was counted as a gap.

        For the sources of this room, which know the table's contract: what they give is written as it is.

        Parameters
        ----------
        columns
            By the contract's names, as JSON has them: times in microseconds since 1970, columns of JSON as text. None
            stands for NULL.
        at_ns
            Monotonic time of the row; by default now.
        """
        if self._recorder is None:
            self._miss(table)
            return False
        row = {column: value for column, value in columns.items() if value is not None}
        return self._recorder.records[table].append(now() if at_ns is None else at_ns, row)

    @contextlib.contextmanager
    def recording(self, table: str) -> Iterator[None]:
        """Count as a gap of the table what is raised within: telemetry never raises into training."""
        try:
            yield
        except RefusedError as refused:
            self.refuse(table, refused.reason, refused.detail)
        except (BadValueError, DeviceValueError, OverflowError, ValueError) as error:
            self.refuse(table, BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - whatever it is
            self.trouble(f"recording in {table}", error, table)

    # ── FLOPs ──

    def count_flops(self, *_: object, tokens: object = None) -> FlopCount | Nothing:
        """Return a context around one real training step whose FLOPs torch counts; see `FlopCount`.

        Parameters
        ----------
        tokens
            Tokens that this rank trains on in that step, for FLOPs per token.
        """
        return NOTHING if self._recorder is None else FlopCount(self, tokens)

    def calibrate_peak(self) -> float | None:
        """Measure this CPU's peak, record it as device/peak_flops_measured and return it in FLOP/s.

        None, and nothing is recorded, where a GPU computes or torch is not imported. Takes about two seconds.
        """
        if self._recorder is None:
            return None
        try:
            peak = measure_cpu_peak()
            if peak is not None:
                self.scalar(PEAK_MEASURED).add(peak)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("measuring the peak", error)
            return None
        return peak

    # ── the end ──

    def flush(self, timeout_s: float = 10.0) -> bool:
        """Seal and upload what is recorded so far; True if all of it reached the spool in time."""
        if self._keeper is None or self._closed:
            return False
        try:
            self.drain_devices(0.0)
            self.drain(1.0)
            return self._keeper.flush(self._gaps.lenient("timeout_s", number, timeout_s, 10.0))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("flushing", error)
            return False

    def close(self, timeout_s: float = 10.0) -> None:
        """End the recording: seal everything, upload it for at most `timeout_s`, leave the rest to recovery.

        Closing twice is harmless. What is logged afterwards is counted as a gap.
        """
        if self._recorder is None or self._closed:
            return
        seconds = self._gaps.lenient("timeout_s", number, timeout_s, 10.0)
        try:
            self.drain_devices(min(1.0, seconds))
            self.wind_up(min(1.0, seconds))
            if self.sampler is not None:
                self.sampler.close()
            self.stop_watching()
            if self.identity is not None:
                self.identity.close()
            self._record_end()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("ending the run", error)
        self._closed = True
        PREEMPTION.leave(self)
        FAILURES.leave(self)
        try:
            self._recorder.close()
            if self._keeper is not None:
                self._keeper.stop(seconds)
            elif self._recorder.stream is not None:  # a forked child: its parent seals and uploads
                self._recorder.flush_gaps()
                self._recorder.stream.close()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.trouble("closing", error)

    def _record_end(self) -> None:
        assert self._recorder is not None
        if self._recorder.is_worker:
            return
        self._recorder.flush_gaps()
        self._recorder.tell_gaps()
        if self.launch.rank == 0 and "signal" not in self.ending:  # what a signal ends has not come to its end
            self.event("run_end")
        self.event("rank_end", **self.ending)
        with contextlib.suppress(RefusedError):
            self._recorder.note(ENDED)

    def turn_over(self, launch: Launch) -> bool:
        """Have what is recorded from here on be another run's or rank's; False where that cannot be done now."""
        if self._keeper is None or not self._keeper.turn_over(launch):
            return False
        for told in self.turns:
            told(launch)
        return True

    def keep(self, keeper: "Keeper") -> None:
        """Have sealing and uploading looked after."""
        self._keeper = keeper

    def expects_late_values(self) -> bool:
        """Say whether values are on their way from a device."""
        return len(self._deferred) > 0

    def note_fork(self) -> None:
        """In the parent: a child may leave a stream of its own."""
        if self._keeper is not None:
            self._keeper.note_fork()

    def at_exit(self) -> None:
        """Close at interpreter exit; write down, in a stream of its own, what was refused after an earlier close."""
        self.close()
        if self._keeper is not None and self._recorder is not None:
            try:
                self._keeper.report_late()
            except Exception as error:  # noqa: BLE001 - nobody is left to handle it
                self.trouble("reporting late gaps", error)

    def after_fork(self) -> None:
        """In a forked child: no threads, no uploads; blocks that are open began in the parent, which records them."""
        self._keeper = None
        self.waits = Waits(self)
        self._deferred.after_fork()
        if self._meters is not None:
            self._meters.after_fork()
        if self.sampler is not None:
            self.sampler.after_fork()
        if self._recorder is not None:
            self._recorder.after_fork()
        if self.identity is not None:
            self.identity.after_fork()
        self.current = None
        frame = self.stack.top
        while frame is not None:
            frame.start = None
            frame = frame.parent

    def __enter__(self) -> Self:
        return self

    def __deepcopy__(self, memo: Mapping[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a run that records nothing: a checkpoint may hold a trainer that holds a run."""
        wanted = self._recorder is not None or self._idle is not None
        return (_elsewhere if wanted else Run), (self.launch,)


def _elsewhere(launch: Launch) -> Run:
    """Return a run that was pickled, maybe into another process: what it is given is counted, and told once."""
    return Run(launch, None, NOWHERE)
