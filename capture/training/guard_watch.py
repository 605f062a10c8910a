"""Guard watch: a thread that detects stalls of a rank and overheating of its GPU."""

import sys
import threading
import time
from collections.abc import Callable
from typing import Any, Final

from ranklake.capture.samplers.gpu_device import devices
from ranklake.capture.samplers.gpu_parts import Nvml, call_nvml, event_reasons
from ranklake.capture.samplers.sample import UnavailableError
from ranklake.capture.steps.progress import Progress
from ranklake.capture.training.live_detectors import Finding

_THERMAL_BITS: Final = 0x20 | 0x40
"""NVML's clock event reasons: software and hardware thermal slowdown."""
_HOT_CHECKS: Final = 3
"""Consecutive checks of a hot GPU before it is a finding."""


class DeviceHeat:
    """Compares the temperature of one GPU with the temperature at which it slows down.

    Parameters
    ----------
    device_uuid
        UUID of the GPU in NVML.

    Raises `LookupError` if NVML has no such device, and NVML's errors.
    """

    def __init__(self, nvml: Nvml, device_uuid: str) -> None:
        self._nvml = nvml
        handle = next((item.handle for item in devices(nvml)[0] if item.uuid == device_uuid), None)
        if handle is None:
            raise LookupError(f"NVML has no device {device_uuid}")
        self._handle = handle

    def look(self) -> tuple[float, float] | None:
        """Return temperature and limit in degrees Celsius if the GPU is hot; None if it is cool or reports neither."""
        nvml, handle = self._nvml, self._handle
        try:
            temperature = call_nvml(nvml, lambda: nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU))
            slowdown = nvml.NVML_TEMPERATURE_THRESHOLD_SLOWDOWN
            limit = call_nvml(nvml, lambda: nvml.nvmlDeviceGetTemperatureThreshold(handle, slowdown))
            bits = call_nvml(nvml, lambda: event_reasons(nvml, handle))
        except UnavailableError:
            return None
        return (float(temperature), float(limit)) if temperature >= limit or bits & _THERMAL_BITS else None


class GuardWatch:
    """Checks for stalls and heat every few seconds until it is closed.

    Parameters
    ----------
    report
        Called with a stall, in this thread, because training does not proceed.
    stall_s
        Seconds without a new step or phase that count as a stall.
    heat
        The rank's GPU; None to watch none. `take` returns its findings.
    every_s
        Seconds between checks.
    """

    def __init__(
        self,
        progress: Progress,
        report: Callable[[Finding], object],
        *,
        stall_s: float,
        heat: DeviceHeat | None,
        every_s: float,
    ) -> None:
        self._progress, self._report, self._stall_s, self._heat = progress, report, stall_s, heat
        self._every_s = every_s
        self._closed = threading.Event()
        self._hot_checks = 0
        self._hot: Finding | None = None
        self._thread = threading.Thread(target=self._run, name="ranklake-guard", daemon=True)
        self._thread.start()

    def take(self) -> Finding | None:
        """Return the finding about the GPU since the last call; None without one."""
        finding, self._hot = self._hot, None
        return finding

    def close(self) -> None:
        """Stop the thread."""
        self._closed.set()
        if self._thread is not threading.current_thread():
            self._thread.join(5.0)

    def _run(self) -> None:
        begun, since, is_stalled = self._progress.begun(), time.monotonic(), False
        while not self._closed.wait(self._every_s):
            if self._progress.begun() != begun:
                begun, since, is_stalled = self._progress.begun(), time.monotonic(), False
            elif begun and not is_stalled and (quiet_s := time.monotonic() - since) >= self._stall_s:
                is_stalled = True
                step = self._progress.latest_step() or 0
                self._report(Finding("stall", step, step, f"no step or phase began for {quiet_s:.0f} s", quiet_s))
            self._look_at_heat()

    def _look_at_heat(self) -> None:
        hot = None if self._heat is None else self._heat.look()
        self._hot_checks = self._hot_checks + 1 if hot else 0
        if hot and self._hot_checks == _HOT_CHECKS:
            temperature, limit = hot
            step = self._progress.latest_step() or 0
            message = f"the GPU is at {temperature:.0f} °C; it slows down at {limit:.0f} °C"
            self._hot = Finding("heat", step, step, message, temperature, limit)


def own_device_uuid() -> str | None:
    """Return the UUID of the GPU that torch uses in this process; None if it uses no GPU."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_available() or not torch.cuda.is_initialized():
        return None
    uuid = str(torch.cuda.get_device_properties(torch.cuda.current_device()).uuid)
    return uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}"
