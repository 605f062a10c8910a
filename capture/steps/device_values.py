"""Device values: copy numbers from a GPU without waiting, and record them when they arrive."""

import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.common.gaps import BAD_VALUE, DEVICE_VALUE
from ranklake.capture.common.values import BadValueError, repr_of, text
from ranklake.capture.lanes.sink import Sink

MOST_PENDING: Final = 4096
MOST_BYTES: Final = 1 << 26
"""Most bytes of all pending copies of whole tensors, because pinned memory is scarce."""

Deliver = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class _WholeTensor:
    """A tensor that is delivered as a whole, and its size in bytes."""

    tensor: Any
    size: int


def _size(host: object) -> int:
    return host.size if isinstance(host, _WholeTensor) else 0


class DeviceQueue:
    """Pending copies, oldest first. All threads may use it."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.waiting: deque[tuple[Any, Any, Deliver, str]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def send(self, tensor: Any, deliver: Deliver) -> bool:  # noqa: ANN401 - torch is no dependency
        """Start the copy of a one-element tensor. Return False if it would block, or too many copies are pending.

        Raises
        ------
        BadValueError
            The tensor does not have exactly one element, or is complex.
        """
        if not _on_cuda(tensor):
            return False
        if tensor.numel() != 1 or tensor.is_complex():
            raise BadValueError(f"a tensor of {tensor.numel()} elements, {tensor.dtype}")
        return len(self.waiting) < MOST_PENDING and self.add(*_copy(tensor), deliver)

    def send_whole(self, tensor: Any, deliver: Deliver, table: str) -> bool:  # noqa: ANN401 - torch is no dependency
        """Start the copy of a tensor of any shape, as `send` does. `deliver` gets the copy in main memory."""
        if not _on_cuda(tensor):
            return False
        size = tensor.numel() * tensor.element_size()
        if self._bytes + size > MOST_BYTES or len(self.waiting) >= MOST_PENDING:
            return False
        event, host = _copy(tensor)
        return self.add(event, _WholeTensor(host, size), deliver, table)

    def add(self, event: Any, host: Any, deliver: Deliver, table: str = "scalars") -> bool:  # noqa: ANN401 - torch's
        """Add a pending value.

        Parameters
        ----------
        event
            Has ``query()``, which is true when the value has arrived.
        host
            The value; has ``item()``.
        deliver
            Called with the number.
        table
            Table that lacks a row if the value never arrives.

        Returns
        -------
        False if too many values are pending.
        """
        with self._lock:
            if len(self.waiting) >= MOST_PENDING:
                return False
            self.waiting.append((event, host, deliver, table))
            self._bytes += _size(host)
        return True

    def drain(self) -> None:
        """Deliver values that have arrived, in order, without waiting.

        Raises errors of the GPU and of `deliver`; undelivered values remain pending then.
        """
        while self.waiting:
            with self._lock:
                if not self.waiting or not self.waiting[0][0].query():
                    return
                first = self.waiting.popleft()
                self._bytes -= _size(first[1])
            _, host, deliver, _ = first
            try:
                deliver(host.tensor if isinstance(host, _WholeTensor) else float(host.item()))
            except BaseException:
                with self._lock:  # pending again, so that `give_up` counts it
                    self.waiting.appendleft(first)
                    self._bytes += _size(host)
                raise

    def give_up(self) -> "Counter[str]":
        """Drop pending values and return their number by table."""
        with self._lock:
            dropped = Counter(table for *_, table in self.waiting)
            self.waiting.clear()
            self._bytes = 0
        return dropped

    def after_fork(self) -> None:
        """Reset in a forked child: CUDA events are not valid there, and the parent delivers the values."""
        self._lock = threading.RLock()
        self.waiting = deque()
        self._bytes = 0


def _on_cuda(tensor: Any) -> bool:  # noqa: ANN401 - torch is no dependency
    """Whether a value is a CUDA tensor whose copy can be started now."""
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cuda"
        and not torch.cuda.is_current_stream_capturing()
    )


def _copy(tensor: Any) -> tuple[Any, Any]:  # noqa: ANN401 - torch is no dependency
    """Start a copy to main memory; return the event after it and the copy."""
    torch: Any = sys.modules["torch"]
    host = tensor.detach().to("cpu", non_blocking=True)  # torch uses pinned memory for this
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event, host


class DeviceValues:
    """Pending numbers of one run. Lost ones are counted as gaps."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.queue = DeviceQueue()

    def __len__(self) -> int:
        return len(self.queue)

    def defer(self, name: str, value: object, deliver: Callable[[Any], None], *, whole_for: str = "") -> None:
        """Start the copy of a number on a GPU, and call `deliver` when it has arrived. If that fails, count a gap.

        Parameters
        ----------
        whole_for
            Table whose rows take tensors of any shape; the whole tensor is then delivered. Empty for a number.
        """
        table = whole_for or "scalars"
        try:
            sent = self.queue.send_whole(value, deliver, table) if whole_for else self.queue.send(value, deliver)
        except BadValueError as error:
            self._sink.refuse(table, BAD_VALUE, f"{text(name, 80)}={error}")
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._sink.refuse(table, DEVICE_VALUE, repr_of(error))
        else:
            if not sent:
                self._sink.refuse(table, DEVICE_VALUE, text(name, 80))

    def expect(self, event: Any, host: Any, deliver: Callable[[float], None], table: str) -> bool:  # noqa: ANN401
        """Call `deliver` when an event has occurred, see `DeviceQueue.add`; False if too many are pending."""
        return self.queue.add(event, host, deliver, table)

    def deliver(self) -> None:
        """Record values that have arrived, without waiting."""
        try:
            self.queue.drain()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._give_up(repr_of(error))

    def drain(self, timeout_s: float) -> None:
        """Record values that have arrived. With a timeout, wait for the others, and count late ones as gaps."""
        deadline = time.monotonic() + timeout_s
        try:
            self.queue.drain()
            while len(self.queue) and time.monotonic() < deadline:
                time.sleep(0.001)
                self.queue.drain()
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._give_up(repr_of(error))
        if timeout_s:
            self._give_up("did not arrive before the close")

    def after_fork(self) -> None:
        """Reset in a forked child, because the parent delivers the values."""
        self.queue.after_fork()

    def _give_up(self, why: str) -> None:
        for table, rows in self.queue.give_up().items():
            self._sink.gaps.count(table, DEVICE_VALUE, rows, why)
