"""Collectives: time the collectives of torch.distributed without extra synchronization.

    on the CPU (gloo)   synchronous call          a phase ``collective`` of the caller's step
                        called with async_op      a span that ends when its future completes; no phase of the caller
    on CUDA (NCCL)      both                      events on the streams, read later; see `device_phases`

While a run is watched, the functions of torch.distributed that start collectives are replaced by functions that also
time them. FSDP, ``fully_shard``, DeepSpeed and Megatron call these functions. DistributedDataParallel does not, and
`ranklake.capture.steps.gradients` hooks it.
"""

import functools
import inspect
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Final

from ranklake.capture.common.layouts import ABSENT, PHASES
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.values import repr_of
from ranklake.capture.steps.device_phases import NO_STREAM, DeviceTimer, StreamWait, cuda_in_use
from ranklake.capture.steps.events import Events
from ranklake.capture.steps.gradients import watch_gradients
from ranklake.capture.steps.phase import Phase
from ranklake.capture.steps.phases import Phases

FUNCTIONS: Final = (
    "all_reduce",
    "broadcast",
    "reduce",
    "all_gather",
    "all_gather_single",
    "all_gather_into_tensor",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "all_to_all",
    "all_to_all_single",
    "gather",
    "scatter",
    "barrier",
)
_DATA: Final = ("input_tensor", "input", "input_list", "input_tensor_list", "tensor")
"""Names of the parameter with this rank's data, whose size is the span's ``bytes``; the first existing one is used."""
_COLUMN: Final = PHASES.index("collective")


class Collectives:
    """Times the collectives of one run. At most one run of a process can do so at a time."""

    def __init__(self, device: DeviceTimer, phases: Phases, events: Events) -> None:
        self.sink, self.events = device.spans.sink, events
        self._device, self._phases = device, phases
        self._originals: dict[str, Callable[..., Any]] = {}
        self._inside = threading.local()

    def watch(self, *models: object) -> None:
        """Start timing the functions of torch.distributed, if it is imported, and the gradients of models."""
        distributed = _torch_distributed()
        if distributed is None:
            return
        for name in FUNCTIONS:
            original = getattr(distributed, name, None)
            if name not in self._originals and original is not None and not hasattr(original, "ranklake_times"):
                timed = self._time_call(name, original)
                self._originals[name] = timed
                setattr(distributed, name, timed)
        for model in models:
            watch_gradients(self, model)

    def wait(self, *, on_cuda: bool) -> AbstractContextManager[object]:
        """Return a context for a wait of training for a collective, on the GPU or on the host."""
        return StreamWait(self._device) if on_cuda else self._phases.find("collective")

    def stop(self) -> None:
        """Restore the functions of torch.distributed, except those that other code has replaced since."""
        distributed = _torch_distributed()
        for name, timed in self._originals.items():
            if getattr(distributed, name, None) is timed:
                setattr(distributed, name, timed.ranklake_times)
        self._originals.clear()

    def _time_call(self, name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        parameters = tuple(inspect.signature(original).parameters)

        @functools.wraps(original)
        def timed(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - the original's
            if not self.sink.enabled or getattr(self._inside, "busy", False) or _compiling():
                return original(*args, **kwargs)
            arguments = dict(zip(parameters, args, strict=False)) | kwargs
            return self.time(name, lambda: original(*args, **kwargs), arguments, _tensors(arguments))

        timed.ranklake_times = original  # type: ignore[attr-defined]
        return timed

    def time(self, name: str, call: Callable[[], Any], arguments: Mapping[str, Any], tensors: Sequence[Any]) -> Any:  # noqa: ANN401 - the call's
        """Call a function that starts a collective, record the collective, and return the result.

        Exceptions of the call are raised.

        Parameters
        ----------
        name
            Name of the span.
        arguments
            Arguments of the call, of which ``group`` and ``async_op`` are used.
        tensors
            This rank's data.
        """
        passage = None
        try:
            passage = self._begin(name, arguments, tensors)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self.sink.trouble("timing a collective", error, "spans")
        self._inside.busy = True
        try:
            result = call()
        finally:
            self._inside.busy = False
            if passage is not None and passage.phase is not None:
                passage.phase.__exit__(None, None, None)
        if passage is not None and passage.phase is None:
            try:
                passage.follow(result)
            except Exception as error:  # noqa: BLE001 - telemetry never raises into training
                self.sink.trouble("timing a collective", error, "spans")
        return result

    def _begin(self, name: str, arguments: Mapping[str, Any], tensors: Sequence[Any]) -> "PendingCollective | None":
        device, group = self._device, arguments.get("group")
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors) if tensors else ABSENT
        on_cuda = cuda_in_use() and any(tensor.is_cuda for tensor in tensors)
        waits = not arguments.get("async_op") and not on_cuda
        facts = {"stream": None if waits else _backend(group), **_group(group), "device_time": 1 if on_cuda else None}
        number = device.spans.number(name, "collective", **facts)
        if number is None:
            return None
        sequence = _sequence(group)
        if waits:
            phase = Phase(device.spans, number, _COLUMN, size, -1, sequence)
            phase.__enter__()
            return PendingCollective(device, number, size, sequence, phase)
        return PendingCollective(device, number, size, sequence, None, on_cuda=on_cuda)


class PendingCollective:
    """One collective in progress.

    Parameters
    ----------
    number
        Number of the span's name.
    size
        Bytes of this rank's data.
    sequence
        See `ranklake.capture.common.layouts.SPANS`.
    phase
        Phase of a synchronous call; None for an asynchronous collective.
    """

    def __init__(
        self,
        device: DeviceTimer,
        number: int,
        size: int,
        sequence: int,
        phase: Phase | None = None,
        *,
        on_cuda: bool = False,
    ) -> None:
        self.phase = phase
        self._device, self._number, self._size, self._sequence, self._on_cuda = device, number, size, sequence, on_cuda
        if phase is not None:
            return
        progress = device.spans.progress
        frame, step = progress.stack.top, progress.current
        above = frame if frame is not None else step
        self._parent = ABSENT if above is None else above.span_id
        step = step if frame is None else frame.step
        self._step = ABSENT if step is None else step.number
        self._span_id = device.spans.next_id()
        self._begin = device.mark() if on_cuda else None
        self._start = now()

    def follow(self, result: Any) -> None:  # noqa: ANN401 - a future, a Work, or None
        """Record the collective when its future completes, or when the stream has finished the work so far."""
        if hasattr(result, "add_done_callback"):
            result.add_done_callback(self._on_completion)
        elif hasattr(result, "get_future"):
            result.get_future().add_done_callback(self._on_completion)
        elif self._on_cuda:
            self._on_completion(None)
        else:
            self._put(now() - self._start)

    def _on_completion(self, _: object) -> None:
        """Record the collective. Called by any thread; on CUDA, its current stream waits for the collective."""
        end = now()
        device = self._device
        try:
            if not self._on_cuda:
                self._put(end - self._start)
                return
            begin_event, end_event = self._begin, device.mark()
            if begin_event is None or end_event is None:
                device.refuse(NO_STREAM)
            else:
                device.expect(begin_event, end_event, self._put_ms)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            device.refuse(repr_of(error))

    def _put_ms(self, elapsed_ms: float) -> None:
        self._put(max(0, round(elapsed_ms * 1e6)))

    def _put(self, duration: int) -> None:
        self._device.spans.put(
            *(self._start, duration, self._step, self._span_id, self._parent),
            *(self._size, -1, self._sequence, self._number),
        )


def _torch_distributed() -> Any:  # noqa: ANN401 - torch is no dependency
    """Return torch.distributed if it is imported and available; else None."""
    module: Any = sys.modules.get("torch.distributed")
    return module if module is not None and module.is_available() else None


def _compiling() -> bool:
    """Whether torch traces the call for compilation; it must then see its own function."""
    torch: Any = sys.modules["torch"]
    return bool(torch.compiler.is_compiling())


def _tensors(arguments: Mapping[str, Any]) -> list[Any]:
    """Return the tensors with this rank's data, from the arguments of a call."""
    data = next((arguments[name] for name in _DATA if name in arguments), None)
    return [item for item in (data if isinstance(data, (list, tuple)) else [data]) if hasattr(item, "element_size")]


def _world(group: Any) -> Any:  # noqa: ANN401 - torch's
    return _torch_distributed().group.WORLD if group is None else group


def _backend(group: Any) -> str | None:  # noqa: ANN401 - torch's
    return str(_torch_distributed().get_backend(group))


def _group(group: Any) -> dict[str, str | int | None]:  # noqa: ANN401 - torch's
    world = _world(group)
    return {"process_group": str(world.group_name), "group_size": world.size()} if hasattr(world, "group_name") else {}


def _sequence(group: Any) -> int:  # noqa: ANN401 - torch's
    """Return the number of the next collective in a group, plus 1; 0 if the backend does not count."""
    try:
        return (int(_world(group)._get_sequence_number_for_group()) + 1) & 0xFFFFFFFF  # noqa: SLF001 - no public one
    except Exception:  # noqa: BLE001 - not every backend counts
        return 0
