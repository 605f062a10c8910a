"""Device values: what a run does with numbers that are still in transfer from a device."""

import time
from collections.abc import Callable
from typing import Any

from ranklake.capture.common.gaps import BAD_VALUE, DEVICE_VALUE
from ranklake.capture.common.values import BadValueError, repr_of, text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.device_queue import DeviceQueue


class DeviceValues:
    """The numbers of one run that are under way; those that cannot be had are counted as gaps."""

    def __init__(self, sink: Sink) -> None:
        self._sink = sink
        self._queue = DeviceQueue()

    def __len__(self) -> int:
        return len(self._queue)

    def defer(self, name: str, value: object, deliver: Callable[[Any], None], *, whole_for: str = "") -> None:
        """Have a device's number delivered once it has arrived; one that cannot be sent for is counted.

        Parameters
        ----------
        whole_for
            A table whose rows take tensors of any shape: then the whole of it is delivered.
        """
        table = whole_for or "scalars"
        try:
            sent = self._queue.send_whole(value, deliver, table) if whole_for else self._queue.send(value, deliver)
        except BadValueError as error:
            self._sink.refuse(table, BAD_VALUE, f"{text(name, 80)}={error}")
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._sink.refuse(table, DEVICE_VALUE, repr_of(error))
        else:
            if not sent:
                self._sink.refuse(table, DEVICE_VALUE, text(name, 80))

    def expect(self, event: Any, host: Any, deliver: Callable[[float], None], table: str) -> bool:  # noqa: ANN401
        """Have a value delivered when its event has happened, see `DeviceQueue.add`; False if too many are."""
        return self._queue.add(event, host, deliver, table)

    def deliver(self) -> None:
        """Record values that have arrived; never waits."""
        try:
            self._queue.drain()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._give_up(repr_of(error))

    def drain(self, timeout_s: float) -> None:
        """Record values that have arrived; with a timeout, wait for the others and then give them up."""
        deadline = time.monotonic() + timeout_s
        try:
            self._queue.drain()
            while len(self._queue) and time.monotonic() < deadline:
                time.sleep(0.001)
                self._queue.drain()
        except Exception as error:  # noqa: BLE001 - a device in trouble must not be ours
            self._give_up(repr_of(error))
        if timeout_s:
            self._give_up("did not arrive before the close")

    def after_fork(self) -> None:
        """In a forked child: the values are the parent's to deliver."""
        self._queue.after_fork()

    def _give_up(self, why: str) -> None:
        for table, rows in self._queue.give_up().items():
            self._sink.gaps.count(table, DEVICE_VALUE, rows, why)
