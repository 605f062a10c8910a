"""GPU: rows of ``gpu_samples`` from NVML, and events for XIDs and lost devices."""

import socket
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any, Final, NamedTuple

from ranklake.capture.samplers.gpu_device import Device, devices
from ranklake.capture.samplers.gpu_parts import EACH, RARE, SLOW, Nvml, call_nvml, error_text, text
from ranklake.capture.samplers.sample import (
    Holders,
    Reading,
    Row,
    SourceStatus,
    Tree,
    UnavailableError,
    by_environment,
    by_process,
    event,
    held_by,
)
from ranklake.capture.spool.stream_files import StreamName

WAIT_MS: Final = 1000
"""Longest wait of one library call, and so the longest delay until the thread ends."""


class Xid(NamedTuple):
    """One XID report. Instances are None for a device without MIG."""

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
        Reasons why devices are not watched, by index in the list of handles.
    trouble
        Reason why the thread does not run; empty while it runs.
    """

    def __init__(self, nvml: Nvml, handles: list[Any]) -> None:
        self._nvml = nvml
        self._received: deque[Xid] = deque(maxlen=10_000)
        self._stopping = threading.Event()
        self.refused: dict[int, str] = {}
        self.trouble = ""
        self._set: Any = None
        self._thread: threading.Thread | None = None
        try:
            self._set = nvml.nvmlEventSetCreate()
        except nvml.NVMLError as error:
            self.trouble = error_text(nvml, error.value)
            return
        for place, handle in enumerate(handles):
            try:
                nvml.nvmlDeviceRegisterEvents(handle, nvml.nvmlEventTypeXidCriticalError, self._set)
            except nvml.NVMLError as error:
                self.refused[place] = error_text(nvml, error.value)
        if len(self.refused) == len(handles):
            self.trouble = next(iter(self.refused.values()), "no device")
            self._free()
            return
        self._thread = threading.Thread(target=self._run, name="ranklake-xid", daemon=True)
        self._thread.start()

    def take_reports(self) -> list[Xid]:
        """Return the reports since the last call, the oldest first."""
        reports = []
        while self._received:
            reports.append(self._received.popleft())
        return reports

    def stop(self) -> None:
        """Make the thread end within `WAIT_MS`, without waiting for it."""
        self._stopping.set()

    def join(self, timeout_s: float) -> None:
        """Wait for the thread to end."""
        if self._thread is not None:
            self._thread.join(timeout_s)

    def _run(self) -> None:
        nvml = self._nvml
        while not self._stopping.is_set():
            try:
                data = nvml.nvmlEventSetWait_v2(self._set, WAIT_MS)
                self._received.append(self._report(data))
            except nvml.NVMLError_Timeout:
                continue
            except nvml.NVMLError as error:
                self.trouble = error_text(nvml, error.value)
                break
        self._free()

    def _report(self, data: Any) -> Xid:  # noqa: ANN401 - a structure of the library
        at_ns = time.monotonic_ns()
        try:
            uuid = text(self._nvml.nvmlDeviceGetUUID(data.device))
        except self._nvml.NVMLError:  # the XID may report that the device is lost
            uuid = ""
        return Xid(
            at_ns,
            uuid,
            int(data.eventData),
            _instance_or_none(data.gpuInstanceId),
            _instance_or_none(data.computeInstanceId),
        )

    def _free(self) -> None:
        """Free the event set. Only the waiting thread may call it, because freeing during a wait is undefined."""
        try:
            self._nvml.nvmlEventSetFree(self._set)
        except self._nvml.NVMLError:
            return


def _instance_or_none(instance: int) -> int | None:
    return None if instance == 0xFFFFFFFF else int(instance)  # noqa: PLR2004 - all bits: not partitioned


TABLE: Final = "gpu_samples"
SLOW_NS: Final = 10 * 10**9
RARE_NS: Final = 60 * 10**9


class GpuSampler:
    """Samples all GPUs of the host.

    Parameters
    ----------
    nvml
        The module ``pynvml``, or a replacement.
    holders
        Returns the recording processes of this host.
    root
        Folder with /proc.

    Notes
    -----
    At each tick: utilization, memory, clocks, power, energy, temperature, reasons of low clocks, NVLink counters, GPM.
    Every 10 s: processes, ECC, links, limits, which take a lock of the driver or time of the firmware. Every 60 s:
    values that hardly change. In between, these columns are NULL, except the holder of the device, which is repeated.

    A missing driver and lost devices are tried again every 60 s.
    """

    def __init__(self, nvml: Nvml, holders: Holders, root: str = "/") -> None:
        self._nvml, self._holders, self._tree = nvml, holders, Tree(root)
        self._host = socket.gethostname()
        self._devices: list[Device] | None = None
        self._watch: XidWatch | None = None
        self._status, self._xid_status = SourceStatus("nvml"), SourceStatus("xid")
        self._lost: dict[str, int] = {}
        self._absent: dict[int, str] = {}
        self._held: dict[str, dict[str, Any]] = {}
        self._xids: dict[str, int] = {}
        self._last_ns: dict[str, int] = {}
        self._slow_ns = self._rare_ns = self._again_ns = 0

    def sample(self, now_ns: int) -> Iterator[Row]:
        """Yield a row for each device that answers, and events for XIDs and lost devices."""
        if (self._devices is None or self._lost or self._absent) and now_ns >= self._again_ns:
            self._again_ns = now_ns + RARE_NS
            yield from self._open(now_ns)
        often = RARE if now_ns >= self._rare_ns else SLOW if now_ns >= self._slow_ns else EACH
        yield from self._reports(now_ns)
        holders = dict(self._holders()) if often >= SLOW else {}
        for device in self._devices or []:
            if device.is_lost():
                continue
            yield self._row(device, often, holders, now_ns)
            if device.is_lost():
                self._lost[device.uuid] = device.index
                message = f"{device.uuid} is lost"
                yield event("gpu_lost", now_ns, "error", message, self._device_columns(device.uuid))
        if often >= SLOW:
            self._slow_ns = now_ns + SLOW_NS
        if often >= RARE:
            self._rare_ns = now_ns + RARE_NS

    def close(self) -> None:
        """Stop the thread that waits for XIDs; it frees the library's event set."""
        if self._watch is not None:
            self._watch.stop()

    def join(self, timeout_s: float = 5.0) -> None:
        """Wait until the thread that waits for XIDs has ended."""
        if self._watch is not None:
            self._watch.join(timeout_s)

    def _open(self, now_ns: int) -> Iterator[Row]:
        """Find the devices; yield events for missing ones."""
        nvml = self._nvml
        try:
            if self._devices is None:
                nvml.nvmlInit()
            present, absent = devices(nvml)
        except nvml.NVMLError as error:
            yield from self._status.failed(error_text(nvml, error.value), now_ns)
            return
        yield from self._status.recovery_event(now_ns)
        yield from self._absence_events(absent, now_ns)
        back = self._lost.keys() & {device.uuid for device in present}
        for uuid in sorted(back):
            yield event("gpu_found", now_ns, "info", f"{uuid} answers again", {"device_uuid": uuid})
            del self._lost[uuid]
        # A lost device may still be counted without a UUID; it must not count as another device.
        lost = set(self._lost.values())
        fresh = {item.uuid: item for item in present if item.identity.get("device_uuid") or item.index not in lost}
        kept = {device.uuid: device for device in self._devices or [] if not device.is_lost()}
        self._devices = [kept.get(uuid, device) for uuid, device in fresh.items()]
        self._rare_ns = now_ns
        if self._watch is None or back:
            yield from self._watch_for_xids(now_ns)

    def _absence_events(self, absent: dict[int, str], now_ns: int) -> Iterator[Row]:
        """Yield an event for each device that has not answered since the start, and one when it answers."""
        before, known = self._absent, {device.index for device in self._devices or []}
        self._absent = absent = {
            index: reason
            for index, reason in absent.items()
            if index in before or index not in known | set(self._lost.values())
        }
        for index in sorted(absent.keys() - before.keys()):
            message = f"GPU {index} of this host was lost before the start: {absent[index]}"
            yield event("gpu_lost", now_ns, "error", message, {"device_index": index, "reason": absent[index]})
        for index in sorted(before.keys() - absent.keys()):
            yield event("gpu_found", now_ns, "info", f"GPU {index} of this host answers now", {"device_index": index})

    def _watch_for_xids(self, now_ns: int) -> Iterator[Row]:
        if self._watch is not None:
            self._watch.stop()
        whole = [device for device in self._devices or [] if device.whole is None]
        self._watch = XidWatch(self._nvml, [device.handle for device in whole])
        for place, reason in self._watch.refused.items():
            attributes = {"source": "xid", **self._device_columns(whole[place].uuid)}
            message = f"XIDs of {whole[place].uuid} are not reported: {reason}"
            yield event("sampler_unavailable", now_ns, "warning", message, attributes)

    def _reports(self, now_ns: int) -> Iterator[Row]:
        """Yield the XIDs since the last tick."""
        watch = self._watch
        if watch is None:
            return
        for xid in watch.take_reports():
            self._xids[xid.uuid] = xid.code
            attributes = {**self._device_columns(xid.uuid), "xid": xid.code}
            if xid.gpu_instance is not None:
                attributes |= {"gpu_instance": xid.gpu_instance, "compute_instance": xid.compute_instance}
            yield event("xid", xid.at_ns, "error", f"XID {xid.code} on {xid.uuid or 'a lost GPU'}", attributes)
        if watch.trouble and not watch.refused:
            yield from self._xid_status.failed(watch.trouble, now_ns)

    def _row(self, device: Device, often: int, holders: Mapping[int, StreamName], now_ns: int) -> Row:
        reading = device.read(often)
        if often >= SLOW and not device.is_lost():
            self._held[device.uuid] = self._holding(device, holders, reading)
        if self._watch is not None and self._watch.trouble:
            reading.unavailable["xid_last"] = self._watch.trouble
        before = self._last_ns.get(device.uuid)
        self._last_ns[device.uuid] = now_ns
        reading.columns |= {
            "host": self._host,
            "interval_ns": None if before is None else now_ns - before,
            "xid_last": self._xids.get(device.uuid),
            **self._held.get(device.uuid, {}),
        }
        return Row(TABLE, reading.row(), now_ns)

    def _holding(self, device: Device, holders: Mapping[int, StreamName], reading: Reading) -> dict[str, Any]:
        """Return the holder columns of a device; add the memory of the holders' processes to the reading."""
        nvml = self._nvml
        try:
            processes = call_nvml(nvml, lambda: nvml.nvmlDeviceGetComputeRunningProcesses(device.handle))
        except UnavailableError as error:
            reading.unavailable["memory_own_bytes"] = str(error)
            processes = None
        ranks = by_process([process.pid for process in processes or []], holders)
        if ranks:
            sizes = [process.usedGpuMemory for process in processes if process.pid in holders]
            if None in sizes:
                reading.unavailable["memory_own_bytes"] = "not told for each process"
            else:
                reading.columns["memory_own_bytes"] = sum(sizes)
            return held_by(ranks)
        index = device.index if device.whole is None else None  # a MIG instance has no index
        ranks_by_variables = by_environment(index, device.uuid, holders, self._tree)
        if ranks_by_variables:
            reading.unavailable.setdefault("memory_own_bytes", "processes are seen by other numbers")
            return held_by(ranks_by_variables)
        if processes is None:
            reading.unavailable["holder_count"] = reading.unavailable["memory_own_bytes"]
            return {}
        reading.columns["memory_own_bytes"] = 0
        return {"holder_count": 0}

    def _device_columns(self, uuid: str) -> dict[str, Any]:
        """Return the attributes of a device for an event."""
        for device in self._devices or []:
            if device.uuid == uuid:
                named = ("device_uuid", "device_index", "pci_bus_id")
                return {name: device.identity.get(name) for name in named} | self._held.get(uuid, {})
        return {"device_uuid": uuid or None}
