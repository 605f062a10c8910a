"""GPM: shares of cycles in which parts of a GPU were active, between two counter samples. Hopper and later."""

from typing import Any

from ranklake.capture.samplers.gpu_parts import GPM
from ranklake.capture.samplers.nvml import NOT_SUPPORTED, Nvml, why
from ranklake.capture.samplers.reading import Reading, UnavailableError


class GpuPerformance:
    """The samples of one device, or of one GPU instance of a partitioned one.

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
        """Why there are no such figures, once that is known."""

    def read(self, reading: Reading) -> None:
        """Add the figures since the last call; on the first one there are none yet. Raises NVML's errors."""
        nvml = self._nvml
        if self._before is None:
            if not nvml.nvmlGpmQueryDeviceSupport(self._device).isSupportedDevice:
                raise UnavailableError(NOT_SUPPORTED)
            # Memory of the library's, which nobody frees: a sample that is refused is asked for again with the same.
            if self._samples is None:
                self._samples = nvml.nvmlGpmSampleAlloc(), nvml.nvmlGpmSampleAlloc()
            first, self._spare = self._samples
            self._before = self._take(first)
            return
        now = self._take(self._spare)
        wanted = nvml.c_nvmlGpmMetricsGet_t()
        wanted.version, wanted.numMetrics = nvml.NVML_GPM_METRICS_GET_VERSION, len(GPM)
        wanted.sample1, wanted.sample2 = self._before, now
        for at, (name, _) in enumerate(GPM.values()):
            wanted.metrics[at].metricId = getattr(nvml, f"NVML_GPM_METRIC_{name}")
        self._before, self._spare = now, self._before
        nvml.nvmlGpmMetricsGet(wanted)
        for at, (column, (_, factor)) in enumerate(GPM.items()):
            found = wanted.metrics[at]
            if found.nvmlReturn == nvml.NVML_SUCCESS:
                value = found.value * factor
                # Counters are read one after the other, so that a share may pass 1 by a little.
                reading.columns[column] = min(1.0, value) if column.endswith("_ratio") else value
            else:
                reading.unavailable[column] = why(nvml, found.nvmlReturn)

    def _take(self, sample: Any) -> Any:  # noqa: ANN401 - the library's
        if self._instance is None:
            return self._nvml.nvmlGpmSampleGet(self._device, sample)
        return self._nvml.nvmlGpmMigSampleGet(self._device, self._instance, sample)
