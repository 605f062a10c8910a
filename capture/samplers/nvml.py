"""Nvml: wraps the driver's library for the sampler: its errors as reasons, its bits by name.

The library's module, ``pynvml`` of nvidia-ml-py, is handed around as an argument, so that a recording can stand for it.
"""

import importlib
from collections.abc import Callable
from typing import Any, Final

from ranklake.capture.samplers.reading import UnavailableError

Nvml = Any
"""The module ``pynvml``, or what stands for it."""

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
"""What fails so on a device does so for good; it is not asked for again."""

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
"""By bit, from the lowest: ``nvmlClocksEventReason…`` and, for the last two, ``nvmlClocksThrottleReason…``."""


def load_nvml() -> Nvml:
    """Import the module. Raises `ImportError`. Not before a sampler starts: it takes memory that few need."""
    return importlib.import_module("pynvml")


def error_text(nvml: Nvml, code: int) -> str:
    """Return an error's code as a reason."""
    for name, text in _REASONS.items():
        if getattr(nvml, name) == code:
            return text
    return f"NVML error {code}"


def call_nvml(nvml: Nvml, call: Callable[[], Any]) -> Any:  # noqa: ANN401 - whatever the call returns
    """Return what a call answers. Raises `UnavailableError` in place of NVML's own errors, and of the module's."""
    try:
        return call()
    except nvml.NVMLError as error:
        raise UnavailableError(error_text(nvml, error.value)) from error
    except nvml.NVMLLibraryMismatchError as error:  # which is no NVMLError
        raise UnavailableError(UNKNOWN_TO_DRIVER) from error
    except AttributeError as error:
        raise UnavailableError(UNKNOWN_TO_MODULE) from error


def text(raw: object) -> str:
    """Return a text that older versions of the module give as bytes."""
    return raw.decode("utf-8", "replace") if isinstance(raw, bytes) else str(raw)


def clock_reasons(bits: int) -> str:
    """Return what holds the clocks down, by name; a bit of a later driver by its number."""
    names = [name for at, name in enumerate(_CLOCK_REASONS) if bits >> at & 1]
    rest = bits >> len(_CLOCK_REASONS)
    names += [f"bit_{len(_CLOCK_REASONS) + at}" for at in range(rest.bit_length()) if rest >> at & 1]
    return ",".join(sorted(names))
