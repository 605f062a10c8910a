"""Dense peak FLOP/s of devices, from `devices.csv` and `peaks.csv`, where every number has its source.

A device is found by its complete name, ignoring case, spaces, hyphens and underscores. Parts of names do not match,
since an L40S would be found as an L4. An unknown device or number format has no peak, but a reason.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Final

from ranklake.errors import did_you_mean

DTYPES: Final[Mapping[str, tuple[str, ...]]] = {
    "float64": ("fp64", "double"),
    "float32": ("fp32", "float", "single"),
    "tfloat32": ("tf32",),
    "float16": ("fp16", "half", "amp_fp16", "fp16-mixed", "16-mixed"),
    "bfloat16": ("bf16", "amp_bf16", "bf16-mixed"),
    "float8": ("fp8", "amp_fp8", "mxfp8", "float8_e4m3fn", "float8_e5m2"),
    "float6": ("fp6", "mxfp6"),
    "float4": ("fp4", "nvfp4", "mxfp4"),
    "int8": (),
}
"""Number formats by torch's names, each with its other names."""


@dataclass(frozen=True, slots=True)
class Device:
    """A device model.

    Attributes
    ----------
    name, vendor, form_factor
        Name in ranklake, manufacturer, and SXM, PCIe, NVL, superchip, OAM or chip.
    peak_is_per
        The unit of the peak: GPU, GCD (one of two in an MI250X) or chip.
    names
        All names of the device, those of drivers first.
    """

    name: str
    vendor: str
    form_factor: str
    peak_is_per: str
    names: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Peak:
    """The dense peak of one device in one number format.

    Attributes
    ----------
    flops_per_s
        Peak without structured sparsity; for float64, that of the matrix units, if there are any.
    engine
        ``tensor`` or ``matrix`` units, or ``vector``.
    as_published
        The number in its source, which may include sparsity or several devices.
    """

    device: Device
    dtype: str
    flops_per_s: float
    engine: str
    as_published: str
    source: str


@dataclass(frozen=True, slots=True)
class NoPeak:
    """The reason why a peak is unknown."""

    reason: str


def name_key(name: str) -> str:
    """Return a name in lower case with single spaces, as a lookup key. `mfu.sql` does the same with device names."""
    return re.sub(r"[-_ ]+", " ", name).strip().lower()


def dtype_of(word: str) -> str | None:
    """Return torch's name of a number format; None for an unknown format."""
    return _dtypes().get(name_key(word.removeprefix("torch.")))


def find_peak(device_name: str, dtype: str, form_factor: str | None = None) -> Peak | NoPeak:
    """Look up the dense peak of a device.

    Parameters
    ----------
    device_name
        Name from NVML, ROCm or JAX, or a short name such as ``H100 SXM``. A family name (``H100``) is accepted with a
        `form_factor`, or if all its devices have the same peak.
    dtype
        Number format of the matrix products: ``bfloat16``, ``bf16``, ``fp8``, …
    """
    format_ = dtype_of(dtype)
    if format_ is None:
        return NoPeak(f"unknown number format {dtype!r}; {did_you_mean(dtype, _dtypes())}")
    named = _by_name().get(name_key(device_name), ())
    if not named:
        return NoPeak(f"no peak is known of a device called {device_name!r}")
    members = [item for item in named if form_factor is None or name_key(item.form_factor) == name_key(form_factor)]
    if not members:
        forms = ", ".join(item.form_factor for item in named)
        return NoPeak(f"no {device_name} of form factor {form_factor!r} is known; there is {forms}")
    table = _peaks()
    peaks = [table[item.name, format_] for item in members if (item.name, format_) in table]
    if not peaks:
        return NoPeak(f"{members[0].name} has no published dense peak in {format_}")
    if len(peaks) < len(members) or len({peak.flops_per_s for peak in peaks}) > 1:
        return NoPeak(f"{device_name!r} could be {' or '.join(item.name for item in members)}; name the form factor")
    return peaks[0]


def peak_rows() -> list[dict[str, str | float]]:
    """Return the peaks of all names of devices and number formats, as rows for SQL.

    The columns are ``name_key``, ``dtype`` (any name of the format), ``canonical_dtype``, ``flops_per_s``, ``source``.
    """
    rows: list[dict[str, str | float]] = []
    for key in _by_name():
        for word, dtype in _dtypes().items():
            peak = find_peak(key, word)
            if isinstance(peak, Peak):
                facts = {"name_key": key, "dtype": word, "canonical_dtype": dtype, "source": peak.source}
                rows.append({**facts, "flops_per_s": peak.flops_per_s})
    return rows


@cache
def devices() -> tuple[Device, ...]:
    """Return all devices, in the file's order."""
    return tuple(
        Device(row["device"], row["vendor"], row["form_factor"], row["peak_is_per"], tuple(row["names"].split("|")))
        for row in _csv("devices.csv")
    )


@cache
def _peaks() -> Mapping[tuple[str, str], Peak]:
    by_name = {item.name: item for item in devices()}
    return {
        (row["device"], row["dtype"]): Peak(
            by_name[row["device"]],
            row["dtype"],
            float(row["dense_flops_per_s"]),
            row["engine"],
            row["as_published"],
            row["source"],
        )
        for row in _csv("peaks.csv")
    }


@cache
def _by_name() -> Mapping[str, tuple[Device, ...]]:
    by_key: dict[str, list[Device]] = defaultdict(list)
    for item in devices():
        for key in dict.fromkeys(name_key(name) for name in item.names):  # keeps the order, which enters digests
            by_key[key].append(item)
    return {key: tuple(items) for key, items in by_key.items()}


@cache
def _dtypes() -> Mapping[str, str]:
    return {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}


def _csv(name: str) -> Iterator[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
