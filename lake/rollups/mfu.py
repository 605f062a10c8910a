"""MFU and HFU from one set of inputs."""

from dataclasses import dataclass

from ranklake.lake.rollups.flops import TokenFlops
from ranklake.lake.rollups.peaks import Peak, find_peak


@dataclass(frozen=True, slots=True)
class Utilization:
    """The result, with all that it hangs on.

    Attributes
    ----------
    mfu_ratio, hfu_ratio
        Model and hardware FLOP/s over peak; None where unknown, and `reasons` says why.
    model_flops_per_s, hardware_flops_per_s
        Per device.
    peak_flops_per_s, peak_source
        Per device, dense; where it is from.
    flops
        FLOPs of one token, and under which convention.
    """

    mfu_ratio: float | None
    hfu_ratio: float | None
    model_flops_per_s: float
    hardware_flops_per_s: float | None
    peak_flops_per_s: float | None
    peak_source: str
    flops: TokenFlops
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class GivenPeak:
    """A peak that the user states."""

    flops_per_s: float
    source: str = "given"


def named_peak(device: str, dtype: str, form_factor: str | None = None) -> GivenPeak | str:
    """Return the table's peak of a device and number format, or the reason why there is none."""
    found = find_peak(device, dtype, form_factor)
    if isinstance(found, Peak):
        return GivenPeak(found.flops_per_s, f"table: {found.source}")
    return found.reason


def utilization(flops: TokenFlops, tokens_per_s: float, n_devices: int, peak: GivenPeak | str) -> Utilization:
    """Divide what was done by what could have been.

    Parameters
    ----------
    tokens_per_s
        Of all devices together, measured over whole steps.
    peak
        Of one device; a text is the reason why it is unknown.
    """
    rate = tokens_per_s / n_devices
    done = flops.model * rate
    spent = None if flops.hardware is None else flops.hardware * rate
    reasons = tuple(reason for reason in (peak if isinstance(peak, str) else "", flops.reason) if reason)
    if isinstance(peak, str):
        return Utilization(None, None, done, spent, None, "", flops, reasons)
    hfu = None if spent is None else spent / peak.flops_per_s
    mfu = done / peak.flops_per_s
    if max(mfu, hfu or 0) > 1:
        reasons = (*reasons, "more than the peak was done: it is of another device or number format")
    return Utilization(mfu, hfu, done, spent, peak.flops_per_s, peak.source, flops, reasons)
