"""Detectors of faults of devices, from ``gpu_minutes`` and events."""

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ranklake.detection.declaration import COOLDOWN, Detection, Detector, Series
from ranklake.lake.rollups.detectors.stretches import (
    MIN_LENGTH,
    MIN_TOTAL,
    SECOND,
    Stretch,
    Stretches,
    growing,
    place,
    sentence,
)
from ranklake.lake.rollups.hardware import UNKNOWN_XID, xid_meanings
from ranklake.printable import counted

_SAMPLES: Final = """SELECT ts, host, device_uuid, {columns}, holder_run, holder_rank FROM gpu_samples
WHERE device_uuid = {{device_uuid}} AND date BETWEEN {{date}} AND {{end_date}}
  AND ts BETWEEN {{start_ts}} AND {{end_ts}} ORDER BY ts"""
_EVENTS: Final = """SELECT ts, run, rank, event, attributes FROM events
WHERE event = '{event}' AND date BETWEEN {{date}} AND {{end_date}} AND ts BETWEEN {{start_ts}} AND {{end_ts}}
ORDER BY ts"""
_WEIGHTS: Final = ("info", "warning", "error", "critical")
_LINKS: Final = (
    "nvlink_active_count",
    "nvlink_crc_data_error_count",
    "nvlink_replay_error_count",
    "nvlink_recovery_error_count",
)


def xids(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Report XIDs of a device. XIDs within the cool-down are one detection, led by the most severe one."""
    times = series["first_ts"]
    cuts = (np.flatnonzero(np.diff(times) > thresholds[COOLDOWN] * SECOND) + 1).tolist()
    for first, last in zip([0, *cuts], [*cuts, len(series)], strict=True):
        counts = Counter(int(code) for code in series["value"][first:last])
        meanings = {code: xid_meanings().get(code, UNKNOWN_XID) for code in counts}
        worst = max(counts, key=lambda code: _WEIGHTS.index(meanings[code].severity))
        meaning = meanings[worst]
        others = [str(code) for code in counts if code != worst]
        also = f", with {', '.join(others)}" if others else ""
        yield Detection(
            start=int(times[first]),
            end=int(times[last - 1]),
            message=f"XID {worst}{also} on {place(series)}: {meaning.description}; {meaning.action_text}",
            value=float(worst),
            effect=float(sum(counts.values())),
            severity=meaning.severity,
            evidence={"xids": json.dumps(counts), "class": meaning.kind, "action": meaning.action},
        )


def lost(series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
    """Report a device that the driver has lost."""
    del thresholds
    for at, reason in zip(series["first_ts"], series["detail"], strict=True):
        why = f": {reason}" if reason else ""
        yield Detection(int(at), int(at), sentence(f"{place(series)} is lost{why}"), effect=1.0)


def _low_sm(s: Stretch) -> str:
    busy = f"{100 * s.value:.0f} % of the time while the run steps, below {100 * s.baseline:.0f} %"
    return f"SMs of {s.where} are busy {busy}, {s.lasting}"


def _hot(s: Stretch) -> str:
    return f"{s.where} is at {s.value:.0f} °C, {s.baseline:.0f} °C or more {s.lasting}"


def _throttling(s: Stretch) -> str:
    clock = "" if np.isnan(s.amount) else f", its SMs at {s.amount:,.0f} MHz"
    return f"{s.where} throttles, {', '.join(s.details)}, {100 * s.value:.0f} % of the time{clock}, {s.lasting}"


def _ecc(s: Stretch) -> str:
    return f"{s.where} had {counted(s.value, 'uncorrected memory error')}"


def _remaps(s: Stretch) -> str:
    if "failed" in s.details:
        return f"{s.where} could not remap a bad memory row: replace it"
    if not s.value:
        return f"{s.where} waits for a reset to remap a bad memory row"
    pending = "; a reset is pending" if "pending" in s.details else ""
    return f"{s.where} remapped {counted(s.value, 'memory row')} after uncorrected errors{pending}"


def _nvlink_errors(s: Stretch) -> str:
    return f"NVLinks of {s.where} had {s.value:,.0f} CRC errors and replays"


def _recoveries(s: Stretch) -> str:
    return f"NVLinks of {s.where} recovered {counted(s.value, 'time')}"


def _nvlinks(s: Stretch) -> str:
    return f"{s.value:.0f} of {s.baseline:.0f} NVLinks of {s.where} are up, {s.lasting}"


def _replays(s: Stretch) -> str:
    return f"PCIe of {s.where} repeated {s.value:,.0f} transfers"


def _lanes(s: Stretch) -> str:
    return f"PCIe of {s.where} runs on {s.value:.0f} of {s.baseline:.0f} lanes, {s.lasting}"


def _generation(s: Stretch) -> str:
    return f"PCIe of {s.where} runs as generation {s.value:.0f} of {s.baseline:.0f} while its run steps, {s.lasting}"


def _samples(*columns: str) -> str:
    return _SAMPLES.format(columns=", ".join(columns))


_SM: Final = Detector(
    name="low_sm",
    watches="SM activity of devices whose run steps",
    finds="SMs are busy less than the least share for a minute or more",
    table="gpu_samples",
    columns=("sm_active_ratio", "gpu_utilization_ratio"),
    grain=("host", "device_uuid", "run", "attempt", "rank"),
    order=("ts",),
    find=Stretches(_low_sm, below=True),
    effect="share below the least one",
    severity="warning",
    runbook="idle-device",
    evidence_sql=_samples("sm_active_ratio", "gpu_utilization_ratio"),
    min_effect=0,
    cooldown_s=300,
    parameters={"min_ratio": 0.6, "busy_ratio": 0.5, MIN_LENGTH: 60},
)
_ECC: Final = replace(
    _SM,
    name="ecc",
    watches="uncorrected memory errors of devices",
    finds="their counter grows",
    columns=("ecc_uncorrected_volatile_count",),
    find=Stretches(_ecc, of_sum=True),
    effect="errors",
    severity="error",
    runbook="gpu-hardware",
    evidence_sql=_samples("ecc_uncorrected_volatile_count", "ecc_corrected_volatile_count"),
    min_effect=1,
    cooldown_s=3600,
    parameters={},
    false_positive_target=0,
)
DETECTORS: Final = (
    _SM,
    replace(
        _SM,
        name="gpu_temperature",
        watches="core temperature of devices",
        finds="it is at its model's threshold for a minute; of an unknown one, near its own slowdown, or at 85 °C",
        columns=("temperature_celsius", "slowdown_temperature_celsius", "device_name"),
        find=Stretches(_hot),
        effect="°C above the threshold",
        runbook="gpu-heat",
        evidence_sql=_samples("temperature_celsius", "memory_temperature_celsius", "fan_speed_ratio", "power_watts"),
        parameters={"celsius": 85, "margin_celsius": 7, MIN_LENGTH: 60},
    ),
    replace(
        _SM,
        name="gpu_throttling",
        watches="why clocks of devices are held down",
        finds="heat, a hardware slowdown or a power brake holds them down for a minute; a power cap is no fault",
        columns=("clock_event_reasons", "sm_clock_hz"),
        find=Stretches(_throttling),
        effect="share of the time",
        runbook="gpu-heat",
        evidence_sql=_samples("clock_event_reasons", "sm_clock_hz", "temperature_celsius", "power_watts"),
        parameters={"min_ratio": 0.5, MIN_LENGTH: 60},
    ),
    _ECC,
    replace(
        _ECC,
        name="row_remap",
        watches="memory rows of devices that are remapped after uncorrected errors",
        finds="one is remapped, waits for a reset, or could not be",
        columns=("remapped_rows_uncorrected_count", "row_remap_pending", "row_remap_failure"),
        find=Stretches(_remaps, of_sum=True),
        effect="rows",
        evidence_sql=_samples("remapped_rows_uncorrected_count", "row_remap_pending", "row_remap_failure"),
        min_effect=0,
        cooldown_s=86_400,
    ),
    replace(
        _ECC,
        name="xid",
        watches="XID errors that the driver reports",
        finds="there is one; severity and advice are NVIDIA's",
        table="events",
        columns=("event", "attributes"),
        find=xids,
        effect="XIDs",
        evidence_sql=_EVENTS.format(event="xid"),
        cooldown_s=600,
    ),
    replace(
        _ECC,
        name="gpu_lost",
        watches="devices that the driver does not reach any more",
        finds="one is lost",
        table="events",
        columns=("event", "attributes"),
        find=lost,
        effect="times",
        severity="critical",
        evidence_sql=_EVENTS.format(event="gpu_lost"),
        cooldown_s=600,
    ),
    replace(
        _ECC,
        name="nvlink_errors",
        watches="CRC errors and replays of NVLinks",
        finds="there are many within a day",
        columns=_LINKS,
        find=Stretches(_nvlink_errors, of_sum=True),
        severity="warning",
        evidence_sql=_samples(*_LINKS),
        cooldown_s=86_400,
        parameters={MIN_TOTAL: 100},
    ),
    replace(
        _ECC,
        name="nvlink_recovery",
        watches="recoveries of NVLinks",
        finds="a link had to recover",
        columns=_LINKS,
        find=Stretches(_recoveries, of_sum=True),
        effect="recoveries",
        evidence_sql=_samples(*_LINKS),
    ),
    replace(
        _ECC,
        name="nvlink_down",
        watches="how many NVLinks of a device are up",
        finds="fewer are up than before, or than the model has",
        columns=_LINKS,
        find=Stretches(_nvlinks, below=True),
        effect="links",
        evidence_sql=_samples(*_LINKS),
        cooldown_s=300,
    ),
    replace(
        _ECC,
        name="pcie_replays",
        watches="PCIe transfers that were repeated",
        finds="there are many within a day",
        columns=("pcie_replay_count",),
        find=Stretches(_replays, of_sum=True),
        effect="transfers",
        severity="warning",
        evidence_sql=_samples("pcie_replay_count", "pcie_link_width", "pcie_link_generation"),
        cooldown_s=86_400,
        parameters={MIN_TOTAL: 100},
    ),
    replace(
        _ECC,
        name="pcie_width",
        watches="PCIe lanes of devices",
        finds="a link runs on fewer than before, or than the model has",
        columns=("pcie_link_width", "device_name"),
        find=Stretches(_lanes, below=True),
        effect="lanes",
        severity="warning",
        evidence_sql=_samples("pcie_link_width", "pcie_link_generation"),
        cooldown_s=300,
        parameters={MIN_LENGTH: 60},
    ),
    replace(
        _ECC,
        name="pcie_generation",
        watches="PCIe generation of devices whose run steps",
        finds="a link runs as a lower generation than before, or than the board has",
        columns=("pcie_link_generation", "device_name"),
        find=Stretches(_generation, below=True),
        effect="generations",
        severity="warning",
        evidence_sql=_samples("pcie_link_generation", "pcie_link_width", "sm_active_ratio"),
        cooldown_s=300,
        parameters={MIN_LENGTH: 60},
    ),
    replace(
        _SM,
        name="gpu_memory_growth",
        watches="memory in use on devices that a run holds",
        finds="it grows for twenty minutes, by a share of all there is, and would be used up within the horizon",
        columns=("memory_used_bytes", "memory_total_bytes"),
        find=Stretches(growing),
        effect="bytes per second",
        runbook="memory-growth",
        evidence_sql=_samples("memory_used_bytes", "memory_total_bytes"),
        parameters={"min_ratio": 0.02, "horizon_s": 6 * 3600},
    ),
)
