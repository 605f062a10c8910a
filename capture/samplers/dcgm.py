"""DCGM: convert pages of dcgm-exporter to rows of ``gpu_samples``, by the table ``dcgm.csv``.

Sources: NVIDIA's dcgm_fields.h for fields and units, and dcgm_structs.h for blank values. Times of violations are in
ns, contrary to the help text of the exporter.
"""

import csv
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Final

from ranklake.capture.samplers.exposition import ExposedSample
from ranklake.capture.samplers.gpu_parts import clock_reasons
from ranklake.capture.samplers.sample import OUT_OF_RANGE, Reading

_BLANKS: Final = (0x7FFFFFF0, 0x7FFFFFFFFFFFFFF0, 140737488355328.0)
_WHY_BLANK: Final = ("no value", "not found", "not supported", "not permitted")
_INTEGERS: Final = ("_count", "_ns", "_bytes", "_generation", "_width", "_state", "xid_last")

LABELS: Final = {
    "gpu": "device_index",
    "UUID": "device_uuid",
    "modelName": "device_name",
    "Hostname": "host",
    "pci_bus_id": "pci_bus_id",
    "GPU_I_ID": "mig_gpu_instance",
    "GPU_I_PROFILE": "mig_profile",
    "DCGM_FI_DRIVER_VERSION": "driver_version",
    "DCGM_FI_NVML_VERSION": "nvml_version",
    "DCGM_FI_DEV_SERIAL": "serial_number",
    "DCGM_FI_DEV_VBIOS_VERSION": "vbios_version",
}
"""Columns by the label that contains their value."""
_NUMBERS: Final = frozenset({"device_index", "mig_gpu_instance"})


@dataclass(frozen=True, slots=True)
class MetricMapping:
    """Mapping of a metric: column, factor and unit of its values, and kind (gauge or counter, as in DCGM)."""

    column: str
    factor: float
    unit: str
    kind: str

    def value(self, raw: float) -> Any:  # noqa: ANN401 - of the column's type
        """Return a value converted to the column's unit and type."""
        if self.unit == "bits":
            return clock_reasons(int(raw))
        if self.unit == "truth":
            return bool(raw)
        scaled = raw * self.factor
        return int(scaled) if self.column.endswith(_INTEGERS) else scaled


def load_table() -> dict[str, MetricMapping]:
    """Return the table by metric. Names are stripped, because the exporter's lists have names with trailing spaces."""
    text = files("ranklake.capture.samplers").joinpath("dcgm.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["metric"].strip(): MetricMapping(row["column"], float(row["factor"]), row["unit"], row["kind"])
        for row in rows
    }


def readings(samples: list[ExposedSample], table: Mapping[str, MetricMapping]) -> Iterator[tuple[str, Reading]]:
    """Yield the key and the values of each device, or MIG instance, of a page."""
    by_device: dict[str, Reading] = {}
    for sample in samples:
        mapped = table.get(sample.name)
        if mapped is None or not (sample.labels.get("UUID") or sample.labels.get("gpu")):
            continue
        key = "\0".join(sample.labels.get(name, "") for name in ("Hostname", "UUID", "gpu", "GPU_I_ID"))
        reading = by_device.get(key)
        if reading is None:
            reading = by_device[key] = Reading(source="dcgm", **_identity(sample.labels))
        problem = blank_reason(sample.value)
        if not problem and mapped.unit == "bits" and not 0 <= sample.value < 1 << 64:
            problem = OUT_OF_RANGE
        if problem:
            reading.unavailable[mapped.column] = problem
        else:
            reading.columns[mapped.column] = mapped.value(sample.value)
    yield from by_device.items()


def blank_reason(value: float) -> str:
    """Return the reason that a blank value encodes; empty for a real value."""
    if not math.isfinite(value):
        return "not a number"
    for base in _BLANKS:
        # A float cannot represent the last bits of the largest blanks, which encode the reason.
        if value == float(base) or (base < 1 << 53 and 0 < value - base < len(_WHY_BLANK)):
            return _WHY_BLANK[max(0, int(value - float(base)))]
    return ""


def _identity(labels: Mapping[str, str]) -> dict[str, Any]:
    columns: dict[str, Any] = {}
    for label, column in LABELS.items():
        value = labels.get(label, "")
        if value and column in _NUMBERS:
            columns[column] = int(value) if value.isdecimal() else None
        elif value:
            columns[column] = value
    return columns
