"""Device values: what a run does with numbers that are still in transfer from a device."""

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

MOST_WAITING: Final = 4096
MOST_BYTES: Final = 1 << 26
"""Of one tensor that is wanted whole, and of all such that are under way: pinned memory is dear."""

Deliver = Callable[[Any], None]


@dataclass(frozen=True, slots=True)
class _WholeTensor:
    """A tensor that is wanted as it is, and its size in bytes."""

    tensor: Any
    size: int


def _size(host: object) -> int:
    return host.size if isinstance(host, _WholeTensor) else 0


class DeviceQueue:
    """Values under way, oldest first. Safe from any thread."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.waiting: deque[tuple[Any, Any, Deliver, str]] = deque()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self.waiting)

    def send(self, tensor: Any, deliver: Deliver) -> bool:  # noqa: ANN401 - torch is no dependency
        """Start the copy of a one-element tensor. False if the copy would have to wait, or too many are under way.

        Raises
        ------
        BadValueError
            It has not exactly one element, or is complex.
        """
        if not _on_cuda(tensor):
            return False
        if tensor.numel() != 1 or tensor.is_complex():
            raise BadValueError(f"a tensor of {tensor.numel()} elements, {tensor.dtype}")
        return len(self.waiting) < MOST_WAITING and self.add(*_copy(tensor), deliver)

    def send_whole(self, tensor: Any, deliver: Deliver, table: str) -> bool:  # noqa: ANN401 - torch is no dependency
        """Start the copy of a tensor of any shape, as `send` does; its copy in main memory goes to `deliver`."""
        if not _on_cuda(tensor):
            return False
        size = tensor.numel() * tensor.element_size()
        if self._bytes + size > MOST_BYTES or len(self.waiting) >= MOST_WAITING:
            return False
        event, host = _copy(tensor)
        return self.add(event, _WholeTensor(host, size), deliver, table)

    def add(self, event: Any, host: Any, deliver: Deliver, table: str = "scalars") -> bool:  # noqa: ANN401 - torch's
        """Wait for an event (has ``query()``) whose value (has ``item()``) goes to `deliver`.

        Parameters
        ----------
        table
            That lacks a row if the value never arrives.

        Returns
        -------
        False if too many are under way.
        """
        with self._lock:
            if len(self.waiting) >= MOST_WAITING:
                return False
            self.waiting.append((event, host, deliver, table))
            self._bytes += _size(host)
        return True

    def drain(self) -> None:
        """Deliver what has arrived, in order; never waits.

        Raises what a device in trouble does; then what was not delivered is still under way.
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
                with self._lock:  # back to where `give_up` counts it
                    self.waiting.appendleft(first)
                    self._bytes += _size(host)
                raise

    def give_up(self) -> "Counter[str]":
        """Forget what is still under way and return how many values that was, by table."""
        with self._lock:
            left = Counter(table for *_, table in self.waiting)
            self.waiting.clear()
            self._bytes = 0
        return left

    def after_fork(self) -> None:
        """In a forked child: a device's events mean nothing here; the values are the parent's to deliver."""
        self._lock = threading.RLock()
        self.waiting = deque()
        self._bytes = 0


def _on_cuda(tensor: Any) -> bool:  # noqa: ANN401 - torch is no dependency
    """Whether this is a tensor whose value can be sent for now."""
    torch: Any = sys.modules.get("torch")
    return (
        torch is not None
        and isinstance(tensor, torch.Tensor)
        and tensor.device.type == "cuda"
        and not torch.cuda.is_current_stream_capturing()
    )


def _copy(tensor: Any) -> tuple[Any, Any]:  # noqa: ANN401 - torch is no dependency
    """Start a copy to main memory; return the event behind it and where it goes."""
    torch: Any = sys.modules["torch"]
    host = tensor.detach().to("cpu", non_blocking=True)  # torch takes pinned memory for this
    event = torch.cuda.Event()
    event.record(torch.cuda.current_stream(tensor.device))
    return event, host


class DeviceValues:
    """The numbers of one run that are under way; those that are lost are counted as gaps."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self.queue = DeviceQueue()

    def __len__(self) -> int:
        return len(self.queue)

    def defer(self, name: str, value: object, deliver: Callable[[Any], None], *, whole_for: str = "") -> None:
        """Have a device's number delivered once it has arrived; one that cannot be sent for is counted.

        Parameters
        ----------
        whole_for
            A table whose rows take tensors of any shape: then the whole of it is delivered.
        """
        table = whole_for or "scalars"
        try:
            sent = self.queue.send_whole(value, deliver, table) if whole_for else self.queue.send(value, deliver)
        except BadValueError as error:
            self._sink.refuse(table, BAD_VALUE, f"{text(name, 80)}={error}")
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._sink.refuse(table, DEVICE_VALUE, repr_of(error))
        else:
            if not sent:
                self._sink.refuse(table, DEVICE_VALUE, text(name, 80))

    def expect(self, event: Any, host: Any, deliver: Callable[[float], None], table: str) -> bool:  # noqa: ANN401
        """Have a value delivered when its event has happened, see `DeviceQueue.add`; False if too many are."""
        return self.queue.add(event, host, deliver, table)

    def deliver(self) -> None:
        """Record values that have arrived; never waits."""
        try:
            self.queue.drain()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._give_up(repr_of(error))

    def drain(self, timeout_s: float) -> None:
        """Record values that have arrived; with a timeout, wait for the others and then give them up."""
        deadline = time.monotonic() + timeout_s
        try:
            self.queue.drain()
            while len(self.queue) and time.monotonic() < deadline:
                time.sleep(0.001)
                self.queue.drain()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._give_up(repr_of(error))
        if timeout_s:
            self._give_up("did not arrive before the close")

    def after_fork(self) -> None:
        """In a forked child: the values are the parent's to deliver."""
        self.queue.after_fork()

    def _give_up(self, why: str) -> None:
        for table, rows in self.queue.give_up().items():
            self._sink.gaps.count(table, DEVICE_VALUE, rows, why)
