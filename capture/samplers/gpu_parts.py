"""GPU parts: the calls of NVML that fill the columns of ``gpu_samples``, with units and frequencies.

Sources of units: NVIDIA's NVML API reference (nvml.h). KiB there means a factor of 1024, KB of 1000.

The library's module, ``pynvml`` of nvidia-ml-py, is passed as an argument, so that tests can replace it by a recording.
"""

import importlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.samplers.sample import Reading, UnavailableError

Nvml = Any
"""The module ``pynvml``, or a replacement."""

NOT_SUPPORTED: Final = "not supported"
LOST: Final = "GPU is lost"
_REASONS: Final = {
    "NVML_ERROR_NOT_SUPPORTED": NOT_SUPPORTED,
    "NVML_ERROR_FUNCTION_NOT_FOUND": "not known to the driver",
    "NVML_ERROR_NO_PERMISSION": "not permitted",
    "NVML_ERROR_GPU_IS_LOST": LOST,
    "NVML_ERROR_RESET_REQUIRED": "GPU needs a reset",
    "NVML_ERROR_DRIVER_NOT_LOADED": "driver not loaded",
    "NVML_ERROR_LIBRARY_NOT_FOUND": "NVML not found",
    "NVML_ERROR_LIB_RM_VERSION_MISMATCH": "driver and NVML are of different versions",
    "NVML_ERROR_UNINITIALIZED": "NVML not initialised",
    "NVML_ERROR_NOT_FOUND": "not there",
    "NVML_ERROR_TIMEOUT": "timeout",
    "NVML_ERROR_IRQ_ISSUE": "interrupt issue",
    "NVML_ERROR_INSUFFICIENT_POWER": "external power not connected",
    "NVML_ERROR_NO_DATA": "no data yet",
    "NVML_ERROR_UNKNOWN": "unknown error",
}
UNKNOWN_TO_DRIVER: Final = _REASONS["NVML_ERROR_FUNCTION_NOT_FOUND"]
UNKNOWN_TO_MODULE: Final = "not known to nvidia-ml-py"
LASTING: Final = frozenset({NOT_SUPPORTED, UNKNOWN_TO_DRIVER, UNKNOWN_TO_MODULE})
"""Permanent reasons: a call that fails with one of these is not repeated for the device."""

_CLOCK_REASONS: Final = (
    "gpu_idle",
    "applications_clocks_setting",
    "sw_power_cap",
    "hw_slowdown",
    "sync_boost",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
    "display_clock_setting",
    "board_limit",
    "reliability",
)
"""Names by bit, from the lowest: ``nvmlClocksEventReason…`` and, for the last two, ``nvmlClocksThrottleReason…``."""


def load_nvml() -> Nvml:
    """Import the module, only when a sampler starts, to save memory elsewhere. Raises `ImportError`."""
    return importlib.import_module("pynvml")


def error_text(nvml: Nvml, code: int) -> str:
    """Return the reason for an error code."""
    for name, text in _REASONS.items():
        if getattr(nvml, name) == code:
            return text
    return f"NVML error {code}"


def call_nvml(nvml: Nvml, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - the call's result
    """Return the result of a call. Raises `UnavailableError` in place of errors of NVML and of the module."""
    try:
        return call()
    except nvml.NVMLError as error:
        raise UnavailableError(error_text(nvml, error.value)) from error
    except nvml.NVMLLibraryMismatchError as error:  # which is no NVMLError
        raise UnavailableError(UNKNOWN_TO_DRIVER) from error
    except AttributeError as error:
        raise UnavailableError(UNKNOWN_TO_MODULE) from error


def text(raw: object) -> str:
    """Return a text, which older versions of the module return as bytes."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def clock_reasons(bits: int) -> str:
    """Return the names of the reasons that reduce the clocks; an unknown bit is named by its number."""
    names = [name for at, name in enumerate(_CLOCK_REASONS) if bits >> at & 1]
    rest = bits >> len(_CLOCK_REASONS)
    names += [f"bit_{len(_CLOCK_REASONS) + at}" for at in range(rest.bit_length()) if rest >> at & 1]
    return ",".join(sorted(names))


Columns = dict[str, Any]
Handle = Any

EACH, SLOW, RARE = 0, 1, 2
"""Frequencies: at each tick, every 10 s, every 60 s."""
_ALL_LINKS: Final = 0xFFFFFFFF
_FIRST_OF_SIGN: Final = 1 << 31
"""An answer of 32 bits from this value on is an error of the driver, such as -1 read as 4,294,967,295 mW."""
_MILLI, _MEGA, _KILO, _KIBI, _MEBI, _PERCENT = 1e-3, 1e6, 1e3, 1 << 10, 1 << 20, 1e-2


@dataclass(frozen=True, slots=True)
class Part:
    """One call, or a few related ones.

    Attributes
    ----------
    columns
        Columns that it fills.
    read
        Makes the call and returns the columns; raises NVML's errors.
    often
        `EACH`, `SLOW` or `RARE`.
    """

    columns: tuple[str, ...]
    read: Callable[[Nvml, Handle], Columns]
    often: int = EACH


def _memory(nvml: Nvml, device: Handle) -> Columns:
    try:
        info = nvml.nvmlDeviceGetMemoryInfo(device, version=nvml.nvmlMemory_v2)
    except (
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLLibraryMismatchError,
    ):  # a driver before 510, which counts reserved memory as used
        info = nvml.nvmlDeviceGetMemoryInfo(device)
    columns = {f"memory_{part}_bytes": int(getattr(info, part)) for part in ("used", "free", "total")}
    if hasattr(info, "reserved"):
        columns["memory_reserved_bytes"] = int(info.reserved)
    return columns


def _utilization(nvml: Nvml, device: Handle) -> Columns:
    rates = nvml.nvmlDeviceGetUtilizationRates(device)
    return {"gpu_utilization_ratio": rates.gpu * _PERCENT, "memory_utilization_ratio": rates.memory * _PERCENT}


def _rows(nvml: Nvml, device: Handle) -> Columns:
    corrected, uncorrected, pending, failure = nvml.nvmlDeviceGetRemappedRows(device)
    return {
        "remapped_rows_corrected_count": corrected,
        "remapped_rows_uncorrected_count": uncorrected,
        "row_remap_pending": bool(pending),
        "row_remap_failure": bool(failure),
    }


def _links(nvml: Nvml, device: Handle) -> Columns:
    active = 0
    for link in range(nvml.NVML_NVLINK_MAX_LINKS):
        try:
            active += nvml.nvmlDeviceGetNvLinkState(device, link) == 1
        except (nvml.NVMLError_NotSupported, nvml.NVMLError_InvalidArgument):
            if link == 0:
                raise
            break
    return {"nvlink_active_count": active}


def _single(column: str, call: str, *arguments: str, factor: float = 1, often: int = EACH) -> Part:
    """Return a part for a call that returns one number; `arguments` are names of the library's constants."""

    def read(nvml: Nvml, device: Handle) -> Columns:
        value = getattr(nvml, call)(device, *(getattr(nvml, name) for name in arguments))
        value = value[0] if isinstance(value, list | tuple) else value
        if value >= _FIRST_OF_SIGN:
            raise UnavailableError(f"the driver answers {value}")
        return {column: value * factor if factor != 1 else value}

    return Part((column,), read, often)


PARTS: Final = (
    Part(("gpu_utilization_ratio", "memory_utilization_ratio"), _utilization),
    Part(tuple(f"memory_{what}_bytes" for what in ("used", "free", "total", "reserved")), _memory),
    _single("sm_clock_hz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_SM", factor=_MEGA),
    _single("memory_clock_hz", "nvmlDeviceGetClockInfo", "NVML_CLOCK_MEM", factor=_MEGA),
    _single("power_watts", "nvmlDeviceGetPowerUsage", factor=_MILLI),
    _single("temperature_celsius", "nvmlDeviceGetTemperature", "NVML_TEMPERATURE_GPU"),
    _single("performance_state", "nvmlDeviceGetPerformanceState"),
    Part(
        ("clock_event_reasons",),
        lambda nvml, device: {"clock_event_reasons": clock_reasons(event_reasons(nvml, device))},
    ),
    _single("power_limit_watts", "nvmlDeviceGetEnforcedPowerLimit", factor=_MILLI, often=SLOW),
    _single("encoder_utilization_ratio", "nvmlDeviceGetEncoderUtilization", factor=_PERCENT, often=SLOW),
    _single("decoder_utilization_ratio", "nvmlDeviceGetDecoderUtilization", factor=_PERCENT, often=SLOW),
    _single("fan_speed_ratio", "nvmlDeviceGetFanSpeed", factor=_PERCENT, often=SLOW),
    _single("pcie_link_generation", "nvmlDeviceGetCurrPcieLinkGeneration", often=SLOW),
    _single("pcie_link_width", "nvmlDeviceGetCurrPcieLinkWidth", often=SLOW),
    Part(("bar1_used_bytes",), lambda n, d: {"bar1_used_bytes": int(n.nvmlDeviceGetBAR1MemoryInfo(d).bar1Used)}, SLOW),
    Part(
        (
            "remapped_rows_corrected_count",
            "remapped_rows_uncorrected_count",
            "row_remap_pending",
            "row_remap_failure",
        ),
        _rows,
        SLOW,
    ),
    Part(("nvlink_active_count",), _links, SLOW),
    Part(("ecc_enabled",), lambda nvml, device: {"ecc_enabled": bool(nvml.nvmlDeviceGetEccMode(device)[0])}, RARE),
    _single("sm_clock_max_hz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_SM", factor=_MEGA, often=RARE),
    _single("memory_clock_max_hz", "nvmlDeviceGetMaxClockInfo", "NVML_CLOCK_MEM", factor=_MEGA, often=RARE),
    _single("sm_clock_target_hz", "nvmlDeviceGetApplicationsClock", "NVML_CLOCK_SM", factor=_MEGA, often=RARE),
    _single("memory_clock_target_hz", "nvmlDeviceGetApplicationsClock", "NVML_CLOCK_MEM", factor=_MEGA, often=RARE),
    _single("power_limit_default_watts", "nvmlDeviceGetPowerManagementDefaultLimit", factor=_MILLI, often=RARE),
    _single(
        "slowdown_temperature_celsius",
        "nvmlDeviceGetTemperatureThreshold",
        "NVML_TEMPERATURE_THRESHOLD_SLOWDOWN",
        often=RARE,
    ),
    _single(
        "shutdown_temperature_celsius",
        "nvmlDeviceGetTemperatureThreshold",
        "NVML_TEMPERATURE_THRESHOLD_SHUTDOWN",
        often=RARE,
    ),
)

PCIE_RATES: Final = (
    _single(
        "pcie_transmit_bytes_per_s", "nvmlDeviceGetPcieThroughput", "NVML_PCIE_UTIL_TX_BYTES", factor=_KILO, often=SLOW
    ),
    _single(
        "pcie_receive_bytes_per_s", "nvmlDeviceGetPcieThroughput", "NVML_PCIE_UTIL_RX_BYTES", factor=_KILO, often=SLOW
    ),
)
"""Rates for devices without GPM; each call blocks the driver for 20 ms."""


def event_reasons(nvml: Nvml, device: Handle) -> int:
    """Return the bits of the reasons that reduce the clocks. Raises NVML's errors."""
    try:
        return int(nvml.nvmlDeviceGetCurrentClocksEventReasons(device))
    except (
        nvml.NVMLError_FunctionNotFound,
        nvml.NVMLLibraryMismatchError,
    ):  # a driver before 535 has only the old name
        return int(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(device))


@dataclass(frozen=True, slots=True)
class Field:
    """A field value, of which one call reads many.

    Attributes
    ----------
    name
        Name of the library's constant, without ``NVML_FI_DEV_``.
    scope
        Number of the part, such as a link; None for the device.
    """

    column: str
    name: str
    factor: float = 1
    often: int = EACH
    scope: int | None = None


FIELDS: Final = (
    Field("energy_joules", "TOTAL_ENERGY_CONSUMPTION", _MILLI),
    Field("memory_temperature_celsius", "MEMORY_TEMP"),
    Field("power_violation_ns", "PERF_POLICY_POWER"),
    Field("thermal_violation_ns", "PERF_POLICY_THERMAL"),
    Field("sync_boost_violation_ns", "PERF_POLICY_SYNC_BOOST"),
    Field("board_limit_violation_ns", "PERF_POLICY_BOARD_LIMIT"),
    Field("low_utilization_violation_ns", "PERF_POLICY_LOW_UTILIZATION"),
    Field("reliability_violation_ns", "PERF_POLICY_RELIABILITY"),
    Field("nvlink_transmit_bytes", "NVLINK_THROUGHPUT_DATA_TX", _KIBI, scope=_ALL_LINKS),
    Field("nvlink_receive_bytes", "NVLINK_THROUGHPUT_DATA_RX", _KIBI, scope=_ALL_LINKS),
    Field("nvlink_crc_flit_error_count", "NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", often=SLOW),
    Field("nvlink_crc_data_error_count", "NVLINK_CRC_DATA_ERROR_COUNT_TOTAL", often=SLOW),
    Field("nvlink_replay_error_count", "NVLINK_REPLAY_ERROR_COUNT_TOTAL", often=SLOW),
    Field("nvlink_recovery_error_count", "NVLINK_RECOVERY_ERROR_COUNT_TOTAL", often=SLOW),
    Field("pcie_replay_count", "PCIE_REPLAY_COUNTER", often=SLOW),
    Field("ecc_corrected_volatile_count", "ECC_SBE_VOL_TOTAL", often=SLOW),
    Field("ecc_uncorrected_volatile_count", "ECC_DBE_VOL_TOTAL", often=SLOW),
    Field("ecc_corrected_aggregate_count", "ECC_SBE_AGG_TOTAL", often=SLOW),
    Field("ecc_uncorrected_aggregate_count", "ECC_DBE_AGG_TOTAL", often=SLOW),
    Field("retired_pages_single_bit_count", "RETIRED_SBE", often=SLOW),
    Field("retired_pages_double_bit_count", "RETIRED_DBE", often=SLOW),
)
_ALL_BITS: Final = ((1 << 32) - 1, (1 << 64) - 1)
_INTEGERS: Final = ("_count", "_ns", "_bytes")


def read_fields(nvml: Nvml, device: Handle, fields: Sequence[Field], reading: Reading) -> None:
    """Add the values of fields to a reading. Raises NVML's errors if none is available."""
    numbers = [_number_of(nvml, field) for field in fields]
    for field, answer in zip(fields, nvml.nvmlDeviceGetFieldValues(device, numbers), strict=True):
        if answer.nvmlReturn != nvml.NVML_SUCCESS:
            reading.unavailable[field.column] = error_text(nvml, answer.nvmlReturn)
            continue
        number = _value(nvml, answer)
        if number in _ALL_BITS:
            reading.unavailable[field.column] = f"the driver answers {number}"
            continue
        value = number * field.factor
        reading.columns[field.column] = int(value) if field.column.endswith(_INTEGERS) else value


def _number_of(nvml: Nvml, field: Field) -> int | tuple[int, int]:
    number = int(getattr(nvml, f"NVML_FI_DEV_{field.name}"))
    return number if field.scope is None else (number, field.scope)


def _value(nvml: Nvml, answer: Any) -> float:  # noqa: ANN401 - a structure of the library
    """Return the value from the union's member for the answer's type."""
    member = {
        nvml.NVML_VALUE_TYPE_DOUBLE: "dVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_INT: "uiVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG: "ulVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG: "ullVal",
        nvml.NVML_VALUE_TYPE_SIGNED_LONG_LONG: "sllVal",
        nvml.NVML_VALUE_TYPE_SIGNED_INT: "siVal",
        nvml.NVML_VALUE_TYPE_UNSIGNED_SHORT: "usVal",
    }[answer.valueType]
    value: float = getattr(answer.value, member)
    return value


GPM: Final = {
    "graphics_engine_active_ratio": ("GRAPHICS_UTIL", _PERCENT),
    "sm_active_ratio": ("SM_UTIL", _PERCENT),
    "sm_occupancy_ratio": ("SM_OCCUPANCY", _PERCENT),
    "tensor_active_ratio": ("ANY_TENSOR_UTIL", _PERCENT),
    "fp64_active_ratio": ("FP64_UTIL", _PERCENT),
    "fp32_active_ratio": ("FP32_UTIL", _PERCENT),
    "fp16_active_ratio": ("FP16_UTIL", _PERCENT),
    "integer_active_ratio": ("INTEGER_UTIL", _PERCENT),
    "dram_active_ratio": ("DRAM_BW_UTIL", _PERCENT),
    "pcie_transmit_bytes_per_s": ("PCIE_TX_PER_SEC", _MEBI),
    "pcie_receive_bytes_per_s": ("PCIE_RX_PER_SEC", _MEBI),
    "nvlink_transmit_bytes_per_s": ("NVLINK_TOTAL_TX_PER_SEC", _MEBI),
    "nvlink_receive_bytes_per_s": ("NVLINK_TOTAL_RX_PER_SEC", _MEBI),
}
"""By column: name of the library's constant without ``NVML_GPM_METRIC_``, and factor."""
