"""GPU device: the identity and the readings of one GPU or MIG instance."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

from ranklake.capture.samplers.gpu_parts import (
    FIELDS,
    GPM,
    LASTING,
    LOST,
    NOT_SUPPORTED,
    PARTS,
    PCIE_RATES,
    Nvml,
    Part,
    call_nvml,
    error_text,
    read_fields,
    text,
)
from ranklake.capture.samplers.sample import Reading, UnavailableError


class GpuPerformance:
    """GPM figures of one device, or of one GPU instance of a partitioned device.

    Parameters
    ----------
    device
        Handle of the whole device.
    instance
        Number of the GPU instance.
    """

    def __init__(self, nvml: Nvml, device: Any, instance: int | None = None) -> None:  # noqa: ANN401 - a handle
        self._nvml, self._device, self._instance = nvml, device, instance
        self._before: Any = None
        self._samples: Any = None
        self._spare: Any = None
        self.refused = ""
        """Reason why the device has no such figures; empty if unknown."""

    def read(self, reading: Reading) -> None:
        """Add the figures since the last call; the first call adds none. Raises NVML's errors."""
        nvml = self._nvml
        if self._before is None:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                raise UnavailableError(NOT_SUPPORTED)
            # The library's memory is never freed here, so allocate it once, also if a sample is refused at first.
            if self._samples is None:
                self._samples = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            first, self._spare = self._samples
            self._before = self._fill_sample(first)
            return
        now = self._fill_sample(self._spare)
        request = nvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        request.sample1, request.sample2 = self._before, now
        for at, (name, _) in enumerate(GPM.values()):
            request.metrics[at].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        self._before, self._spare = now, self._before
        nvml.nvmlGpmMetricsGet(request)
        for at, (column, (_, factor)) in enumerate(GPM.items()):
            metric = request.metrics[at]
            if metric.nvmlReturn == nvml.NVML_SUCCESS:
                value = metric.value * factor
                # Counters are read one after the other, so a share may slightly exceed 1.
                reading.columns[column] = min(1.0, value) if column.endswith("_ratio") else value
            else:
                reading.unavailable[column] = error_text(nvml, metric.nvmlReturn)

    def _fill_sample(self, sample: Any) -> Any:  # noqa: ANN401 - the library's
        if self._instance is None:
            return self._nvml.nvmlGpmSampleGet(self._device, sample)
        return self._nvml.nvmlGpmMigSampleGet(self._device, self._instance, sample)


_IDENTITY: Final = {
    "device_uuid": "nvmlDeviceGetUUID",
    "device_name": "nvmlDeviceGetName",
    "board_part_number": "nvmlDeviceGetBoardPartNumber",
    "serial_number": "nvmlDeviceGetSerial",
    "vbios_version": "nvmlDeviceGetVbiosVersion",
}


@dataclass
class Device:
    """One device.

    Attributes
    ----------
    handle
        The library's handle.
    index
        Number of the whole device on its host.
    identity
        Columns that do not change; `unidentified` has the reasons of missing ones.
    whole
        The device of which a MIG instance is a part; None for a whole device.
    """

    nvml: Nvml
    handle: Any
    index: int
    identity: dict[str, Any]
    unidentified: dict[str, str]
    whole: Any = None
    _lost: bool = False
    _gpm: GpuPerformance = field(init=False)
    _refused: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._gpm = GpuPerformance(
            self.nvml,
            self.handle if self.whole is None else self.whole,
            self.identity.get("mig_gpu_instance"),
        )

    @property
    def uuid(self) -> str:
        """The device's UUID, or its index if the UUID is unknown."""
        return str(self.identity.get("device_uuid") or f"index {self.index}")

    def is_lost(self) -> bool:
        """Whether the device was lost at the last reading."""
        return self._lost

    def read(self, often: int) -> Reading:
        """Read the parts of a frequency and all higher ones: `EACH`, `SLOW` or `RARE`. Nothing is raised."""
        reading = Reading(**self.identity)
        reading.unavailable.update(self.unidentified)
        parts = PARTS if self._gpm_part(reading) else PARTS + PCIE_RATES
        for part in parts:
            if part.often <= often:
                self._part(part, reading)
                if self._update_lost(reading):
                    return reading
        self._fields(often, reading)
        self._update_lost(reading)
        return reading

    def _part(self, part: Part, reading: Reading) -> None:
        refusal = self._refused.get(part.columns[0])
        if refusal is not None:
            reading.unavailable.update(dict.fromkeys(part.columns, refusal))
            return
        reading.take(part.columns, lambda: call_nvml(self.nvml, partial(part.read, self.nvml, self.handle)))
        self._remember(part.columns[0], reading)

    def _fields(self, often: int, reading: Reading) -> None:
        due = [field for field in FIELDS if field.often <= often]
        fields = [field for field in due if field.column not in self._refused]
        reading.unavailable.update({field.column: self._refused[field.column] for field in due if field not in fields})
        columns = [field.column for field in fields]
        if fields:
            reading.take(columns, lambda: self._add_columns(partial(read_fields, fields=fields), reading))
        for column in columns:
            self._remember(column, reading)

    def _gpm_part(self, reading: Reading) -> bool:
        """Add GPM's figures; return whether the device supports them, possibly only from the next tick on."""
        if not self._gpm.refused:
            reading.take(GPM, lambda: self._add_columns(lambda _, __, reading: self._gpm.read(reading), reading))
            refusal = reading.unavailable.get("sm_active_ratio", "")
            self._gpm.refused = refusal if refusal in LASTING else ""
            if not refusal:
                return True
        else:
            reading.unavailable.update(dict.fromkeys(GPM, self._gpm.refused))
        for part in PCIE_RATES:  # these are read from another source
            reading.unavailable.pop(part.columns[0], None)
        return False

    def _add_columns(self, read: Any, reading: Reading) -> dict[str, Any]:  # noqa: ANN401 - a function of this package
        """Add columns to a reading by a function that calls the library."""
        call_nvml(self.nvml, lambda: read(self.nvml, self.handle, reading=reading))
        return {}

    def _remember(self, column: str, reading: Reading) -> None:
        refusal = reading.unavailable.get(column)
        if refusal in LASTING:
            self._refused[column] = refusal

    def _update_lost(self, reading: Reading) -> bool:
        self._lost = LOST in reading.unavailable.values()
        return self._lost


def devices(nvml: Nvml) -> tuple[list[Device], dict[int, str]]:
    """Return all devices and MIG instances, and by index the reasons why other devices do not answer.

    Raises NVML's errors.
    """
    present: list[Device] = []
    absent: dict[int, str] = {}
    system = Reading()
    system.take(["driver_version"], lambda: {"driver_version": text(call_nvml(nvml, nvml.nvmlSystemGetDriverVersion))})
    system.take(["nvml_version"], lambda: {"nvml_version": text(call_nvml(nvml, nvml.nvmlSystemGetNVMLVersion))})
    system.take(["cuda_version"], lambda: {"cuda_version": _cuda(call_nvml(nvml, nvml.nvmlSystemGetCudaDriverVersion))})
    for index in range(nvml.nvmlDeviceGetCount()):
        try:
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
        except nvml.NVMLError as error:  # lost: the other devices are sampled, and this one is tried again later
            absent[index] = error_text(nvml, error.value)
            continue
        present.append(_device(nvml, handle, index, system))
        present += _instances(nvml, present[-1], system)
    return present, absent


def _device(nvml: Nvml, handle: Any, index: int, system: Reading, whole: Any = None) -> Device:  # noqa: ANN401
    reading = Reading(source="nvml", device_index=index, **system.columns)
    reading.unavailable.update(system.unavailable)
    for column, call in _IDENTITY.items():
        reading.take([column], partial(_identify, nvml, column, call, handle))
    bus = handle if whole is None else whole
    reading.take(
        ["pci_bus_id"], lambda: {"pci_bus_id": text(call_nvml(nvml, lambda: nvml.nvmlDeviceGetPciInfo(bus).busId))}
    )
    return Device(nvml, handle, index, reading.columns, reading.unavailable, whole)


def _identify(nvml: Nvml, column: str, call: str, handle: Any) -> dict[str, str]:  # noqa: ANN401 - a handle
    return {column: text(call_nvml(nvml, lambda: getattr(nvml, call)(handle)))}


def _instances(nvml: Nvml, whole: Device, system: Reading) -> Iterator[Device]:
    """Yield the MIG instances of a device; none if it is not partitioned, or does not report it."""
    try:
        if call_nvml(nvml, lambda: nvml.nvmlDeviceGetMigMode(whole.handle))[0] != nvml.NVML_DEVICE_MIG_ENABLE:
            return
        count = call_nvml(nvml, lambda: nvml.nvmlDeviceGetMaxMigDeviceCount(whole.handle))
    except UnavailableError:
        return
    for number in range(count):
        try:
            handle = nvml.nvmlDeviceGetMigDeviceHandleByIndex(whole.handle, number)
            instance = nvml.nvmlDeviceGetGpuInstanceId(handle)
            compute = nvml.nvmlDeviceGetComputeInstanceId(handle)
        except nvml.NVMLError:  # numbers have holes
            continue
        part = _device(nvml, handle, whole.index, system, whole.handle)
        _, _, profile = str(part.identity.get("device_name", "")).partition("MIG ")
        part.identity |= {"mig_gpu_instance": instance, "mig_compute_instance": compute, "mig_profile": profile or None}
        part.__post_init__()
        yield part


def _cuda(number: int) -> str:
    return f"{number // 1000}.{number % 1000 // 10}"
