"""Phases: the handles of one run's phases, by name."""

from ranklake.capture.common.gaps import BAD_ARGUMENTS, BAD_VALUE, RefusedError
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.values import BadValueError, DeviceValueError, integer, repr_of
from ranklake.capture.lanes.series import check_name
from ranklake.capture.steps.device_phases import DevicePhase, DeviceTimer, cuda_in_use
from ranklake.capture.steps.nothing import NOTHING, NullContext
from ranklake.capture.steps.phase import Phase, phase_column, phase_handle, similar_phase
from ranklake.capture.steps.spans import Spans

AnyPhase = Phase | DevicePhase


class Phases:
    """The phases of one run.

    Attributes
    ----------
    handles
        Handles of phases without further arguments, by name.
    """

    def __init__(self, spans: Spans, device: DeviceTimer) -> None:
        self._spans, self._device = spans, device
        self.handles: dict[object, Phase] = {}

    def find(
        self,
        name: object = "",
        *excess: object,
        size_bytes: object = None,
        microbatch: object = None,
        on_device: bool = False,
    ) -> AnyPhase | NullContext:
        """Return a phase's handle (see `ranklake.capture.Run.phase`); on an error, a context that does nothing."""
        sink = self._spans.sink
        try:
            phase = self._make(name, size_bytes, microbatch, on_device=bool(on_device))
        except RefusedError as refused:
            sink.refuse("spans", refused.reason, refused.detail)
        except (BadValueError, DeviceValueError) as error:
            sink.refuse("spans", BAD_VALUE, str(error))
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            sink.trouble("beginning a phase", error, "spans")
        else:
            if excess:
                sink.refuse("spans", BAD_ARGUMENTS, repr_of(excess))
            return phase
        return NOTHING

    def _make(self, name: object, size_bytes: object, microbatch: object, *, on_device: bool) -> AnyPhase:
        spans = self._spans
        name = check_name(name)
        column, kind = phase_column(name)
        if column < 0 and (similar := similar_phase(name)):
            message = f"phase {name!r} adds to no column of the step; did you mean {similar!r}?"
            spans.sink.misuse(f"phase {name}", message)
        number = spans.series.span(name, kind, **spans.common)
        size = ABSENT if size_bytes is None else integer(size_bytes)
        batch = -1 if microbatch is None else integer(microbatch) & 0x7FFFFFFF
        if on_device and cuda_in_use():
            cuda_number = spans.series.span(name, kind, stream="cuda", device_time=1, **spans.common)
            return DevicePhase(self._device, phase_handle(spans, number, -1, size, batch), cuda_number, column)
        phase = phase_handle(spans, number, column, size, batch)
        if size_bytes is None and microbatch is None and not on_device:
            self.handles[name] = phase
        return phase
