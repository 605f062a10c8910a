"""Dense peak FLOP/s of devices, from `devices.csv` and `peaks.csv`, where every number has its source.

Names match whole (case, spaces, hyphens and underscores aside): no part of a name ever stands for a device, because
that is how an L40S comes to be taken for an L4. An unknown device or number format has no peak, and the reason is said.
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
"""Number formats under torch's names, each with other words for it."""


@dataclass(frozen=True, slots=True)
class Device:
    """One device as sold.

    Attributes
    ----------
    name, vendor, form_factor
        Our name for it; who makes it; SXM, PCIe, NVL, superchip, OAM or chip.
    peak_is_per
        What the peak counts, where vendors differ: GPU, GCD (one of two in an MI250X) or chip.
    names
        Every name that it goes by, drivers' first.
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
        Without structured sparsity. For float64 it is the rate of the matrix units, where there are any.
    engine
        ``tensor`` or ``matrix`` units, or ``vector``.
    as_published
        The number as its source prints it, which may count sparsity or several devices.
    """

    device: Device
    dtype: str
    flops_per_s: float
    engine: str
    as_published: str
    source: str


@dataclass(frozen=True, slots=True)
class NoPeak:
    """Why there is no peak."""

    reason: str


def name_key(name: str) -> str:
    """Return what two spellings of one name share. The SQL of the rollup `mfu` does the same to `runs.device_name`."""
    return re.sub(r"[-_ ]+", " ", name).strip().lower()


def dtype_of(word: str) -> str | None:
    """Return torch's name of a number format; None if the word is not known."""
    return _dtypes().get(name_key(word.removeprefix("torch.")))


def find_peak(device_name: str, dtype: str, form_factor: str | None = None) -> Peak | NoPeak:
    """Look a device's dense peak up.

    Parameters
    ----------
    device_name
        As NVML, ROCm or JAX report it, or a short name such as ``H100 SXM``. A family name (``H100``) serves where
        `form_factor` is given or where all its members have the same peak.
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
    """Return every (device name, number format) that has one peak, as rows for SQL.

    ``name_key``, ``dtype`` (every word for it), ``canonical_dtype``, ``flops_per_s``, ``source``.
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
    """Return every device, in the file's order."""
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
        for key in dict.fromkeys(name_key(name) for name in item.names):  # in their order: it goes into digests
            by_key[key].append(item)
    return {key: tuple(items) for key, items in by_key.items()}


@cache
def _dtypes() -> Mapping[str, str]:
    return {name_key(word): dtype for dtype, others in DTYPES.items() for word in (dtype, *others)}


def _csv(name: str) -> Iterator[dict[str, str]]:
    text = files(__package__).joinpath(name).read_text(encoding="utf-8")
    yield from csv.DictReader(text.splitlines())
