"""Detectors of faults of ranks and attempts: slow ranks, different versions, changed clocks, and failed attempts."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Final

import numpy as np

from ranklake.detection.baseline import episodes
from ranklake.detection.declaration import Detection, Detector, Series, Severity
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import counted, duration

Thresholds = Mapping[str, float]
_DAY_US: Final = 86_400_000_000
SKEWED: Final[Mapping[str, str]] = {
    "driver_version": "driver",
    "framework_version": "framework",
    "cuda_version": "CUDA",
    "cudnn_version": "cuDNN",
    "nccl_version": "NCCL",
    "python_version": "Python",
    "packages_sha256": "set of packages",
    "lockfile_sha256": "lock file",
    "container_image_digest": "container image",
    "device_name": "device",
}
"""Names, for messages, of the columns of ``ranks`` that must be equal on all ranks of an attempt."""


def straggler(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find stragglers in ``rank_health``. Consecutive days are one detection.

    Another process can make a rank slow for some seconds. So a rank with less than `min_s` of self time is reported
    only if it is severely slower, and then only as a warning.
    """
    is_slow = series["is_straggler"] == 1
    days = series["date"] // _DAY_US
    excess = np.nan_to_num(series["excess_ratio"])
    spent_s = series["steps_compared"] * series["self_time_median_s"]
    for first, last, length in episodes(is_slow):
        worst = float(excess[first : last + 1].max())
        is_severe, is_short = worst >= thresholds["severe"], spent_s[first : last + 1].sum() < thresholds["min_s"]
        if is_short and not is_severe:
            continue
        cause = series["cause"][first] or "compute"
        at_times = worst < thresholds["min_steady"]
        share = f"in {100 * series['slower_step_ratio'][first]:.0f} % of {int(series['steps_compared'][first]):,} steps"
        slower = f"{100 * worst:.0f} % slower than its peers, {share}, by {cause}"
        how = f"slow at times, by {cause}: {series['reason'][first]}" if at_times else slower
        yield Detection(
            int(days[first]) * _DAY_US,
            int(days[last] + 1) * _DAY_US,
            f"Rank {series.subject['rank']} is {how}",
            value=float(series["self_time_median_s"][first]),
            effect=None if at_times else worst,
            severity="error" if is_severe and not is_short else "",
            evidence={"days": length, "cause": cause, "p_value": float(series["p_value"][first])},
        )


def version_skew(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find ranks of an attempt whose versions, packages or devices differ from those of most ranks."""
    del thresholds
    for column, name in SKEWED.items():
        values = series[column]
        present = [value for value in values if value]
        usual, count = Counter(present).most_common(1)[0] if present else ("", 0)
        others = [place for place, value in enumerate(values) if value and value != usual]
        if not others:
            continue
        first = others[0]
        moment = int(series["ts"][first])
        is_digest = column.endswith(("sha256", "digest"))
        which = "differs" if is_digest else f"is {values[first]}, {usual} on {counted(count, 'other')}"
        ranks = [int(series["rank"][place]) for place in others]
        shown = ", ".join(map(str, ranks[:5])) + (", …" if len(ranks) > 5 else "")  # noqa: PLR2004 - enough to look at
        yield Detection(
            moment,
            moment,
            f"The {name} of rank {shown} {which}",
            effect=float(len(others)),
            subject={"rank": ranks[0]},
            evidence={"column": column, "ranks": ranks[:100], "of": len(present)},
        )


def clock_skew(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find ranks whose clock was changed during recording."""
    del thresholds
    for place, moment in enumerate(series["ts"].tolist()):
        seconds = _seconds(facts_in(series["attributes"][place]).get("step_s"))
        by = "" if seconds is None else f" {'ahead' if seconds > 0 else 'back'} by {duration(abs(seconds))}"
        yield Detection(moment, moment, f"The clock of rank {int(series['rank'][place])} was set{by}", effect=seconds,
                        subject={"rank": int(series["rank"][place])})  # fmt: skip


def _seconds(value: object) -> float | None:
    """Return a value of an event as seconds; None if it is no finite number."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None  # type: ignore[arg-type]


def run_failed(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find attempts that failed, ended without an end event, or were preempted."""
    del thresholds
    severities: Mapping[str, Severity] = {"failed": "error", "abandoned": "warning", "preempted": "info"}
    words = {"failed": "failed", "abandoned": "stopped without an end", "preempted": "was preempted"}
    for place, status in enumerate(series["status"]):
        moment = int(series["end_ts"][place])
        lost = float(np.nan_to_num(series["lost_work_ns"][place])) / 1e9
        more = f", {duration(lost)} of work were lost" if lost else ""
        yield Detection(
            moment,
            moment,
            f"Attempt {int(series['attempt'][place])} {words[status]}{more}",
            value=lost,
            subject={"attempt": int(series["attempt"][place])},
            severity=severities[status],
            evidence={"status": status, "lost_s": lost},
        )


DETECTORS: Final = (
    Detector(
        name="straggler",
        watches="self time of each rank against its peers",
        finds="a rank is steadily or at times slower than its peers, by more than chance",
        table="rank_health",
        columns=(
            "is_straggler",
            "excess_ratio",
            "slower_step_ratio",
            "steps_compared",
            "self_time_median_s",
            "p_value",
            "cause",
            "reason",
        ),
        grain=("run", "attempt", "rank"),
        order=("date",),
        find=straggler,
        effect="self time over the peers', less 1",
        severity="warning",
        runbook="straggler",
        evidence_sql="""SELECT date, attempt, rank, excess_ratio, slower_step_ratio, p_value, cause, reason
FROM rank_health WHERE run = {run} AND attempt = {attempt} AND rank = {rank} ORDER BY date""",
        min_effect=0.0,
        cooldown_s=0,
        parameters={"severe": 0.5, "min_steady": 0.1, "min_s": 40},
    ),
    Detector(
        name="version_skew",
        watches="versions, packages, image and device of each rank",
        finds="ranks of one attempt differ",
        table="ranks",
        columns=("ts", "rank", *SKEWED),
        grain=("run", "attempt"),
        order=("rank", "ts"),
        find=version_skew,
        effect="ranks that differ",
        severity="warning",
        runbook="version-skew",
        evidence_sql=f"SELECT rank, {', '.join(SKEWED)} FROM ranks "  # noqa: S608 - our own names
        "WHERE run = {run} AND attempt = {attempt} AND date BETWEEN {date} - INTERVAL '1' DAY AND {end_date} "
        "ORDER BY rank",
        min_effect=1,
        cooldown_s=0,
        false_positive_target=0,
    ),
    Detector(
        name="clock_skew",
        watches="events that a clock was set",
        finds="a rank's clock was set while it recorded",
        table="events",
        columns=("ts", "rank", "attributes"),
        grain=("run", "attempt"),
        order=("ts",),
        where="event = 'clock_step'",
        find=clock_skew,
        effect="seconds",
        severity="warning",
        runbook="clock-skew",
        evidence_sql="""SELECT ts, rank, attributes FROM events WHERE run = {run} AND attempt = {attempt}
  AND event = 'clock_step' AND date BETWEEN {date} AND {end_date} ORDER BY ts""",
        min_effect=0,
        cooldown_s=3600,
    ),
    Detector(
        name="run_failed",
        watches="how each attempt ended",
        finds="an attempt failed, was left, or was preempted",
        table="goodput",
        columns=("status", "end_ts", "lost_work_ns"),
        grain=("run",),
        order=("attempt",),
        where="status IN ('failed', 'abandoned', 'preempted')",
        find=run_failed,
        effect="seconds of work that were lost",
        severity="error",
        runbook="crash",
        evidence_sql="""SELECT ts, rank, event, severity, step FROM events WHERE run = {run} AND attempt = {attempt}
  AND event NOT IN ('heartbeat', 'checkpoint') ORDER BY ts DESC LIMIT 50""",
        min_effect=0,
        cooldown_s=0,
        false_positive_target=0,
    ),
)
