"""XID: the driver's reports of GPU errors, received by a thread of its own without polling."""

import threading
import time
from collections import deque
from typing import Any, Final, NamedTuple

from ranklake.capture.samplers.nvml import Nvml, text, why

WAIT_MS: Final = 1000
"""How long the library may wait at a stretch: at most so late the thread sees that it is to end."""


class Xid(NamedTuple):
    """One report; instances are those of a partitioned device, None for a whole one."""

    at_ns: int
    uuid: str
    code: int
    gpu_instance: int | None
    compute_instance: int | None


class XidWatch:
    """Waits for XIDs of devices.

    Attributes
    ----------
    refused
        Why devices are not watched, by their handles' places in the list.
    trouble
        Why nothing is waited for any more; empty while it is.
    """

    def __init__(self, nvml: Nvml, handles: list[Any]) -> None:
        self._nvml = nvml
        self._found: deque[Xid] = deque(maxlen=10_000)
        self._stopping = threading.Event()
        self.refused: dict[int, str] = {}
        self.trouble = ""
        self._set: Any = None
        self._thread: threading.Thread | None = None
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.trouble = why(nvml, error.value)
            return
        for place, handle in enumerate(handles):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError as error:
                self.refused[place] = why(nvml, error.value)
        if len(self.refused) == len(handles):
            self.trouble = next(iter(self.refused.values()), "no device")
            self._free()
            return
        self._thread = threading.Thread(target=self._run, name="ranklake-xid", daemon=True)
        self._thread.start()

    def found(self) -> list[Xid]:
        """Return the reports since the last call, the oldest first."""
        reports = []
        while self._found:
            reports.append(self._found.popleft())
        return reports

    def stop(self) -> None:
        """Have the thread end; it does within `WAIT_MS`, and nobody waits for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread's end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        nvml = self._nvml
        while not self._stopping.is_set():
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
                self._found.append(self._report(data))
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError as error:
                self.trouble = why(nvml, error.value)
                break
        self._free()

    def _report(self, data: Any) -> Xid:  # noqa: ANN401 - a structure of the library
        at_ns = time.monotonic_ns()
        try:
            uuid = text(self._nvml.nvmlDeviceGetUUID(data.device))
        except self._nvml.NVMLError:  # what is reported may be that it is gone
            uuid = ""
        return Xid(at_ns, uuid, int(data.eventData), _known(data.gpuInstanceId), _known(data.computeInstanceId))

    def _free(self) -> None:
        """By the thread that waits on the set: to free it under a wait is undefined."""
        try:
            self._nvml.nvmlEventSetFree(self._set)
        except self._nvml.NVMLError:
            return


def _known(instance: int) -> int | None:
    return None if instance == 0xFFFFFFFF else int(instance)  # noqa: PLR2004 - all bits: not partitioned
