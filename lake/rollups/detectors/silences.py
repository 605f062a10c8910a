"""Detector of silent ranks: ranks that record no steps any more while other ranks continue."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from ranklake.detection.baseline import episodes
from ranklake.detection.declaration import Detection, Detector, Series
from ranklake.lake.rollups.detectors.steps import SHARED, at_steps, attempts
from ranklake.printable import ranks_text

Thresholds = Mapping[str, float]
_SHOWN: Final = 100


def lost_ranks(series: Series, thresholds: Thresholds) -> Iterator[Detection]:
    """Find steps from which on some ranks of an attempt record nothing while others continue."""
    for begin, end in attempts(series):
        ranks = series["ranks"][begin:end]
        known = np.maximum.accumulate(ranks)
        for first, last, length in episodes(ranks < known):
            if length < thresholds["min_steps"]:
                continue
            all_ranks, left = int(known[first]), int(np.median(ranks[first : last + 1]))
            lasts = begin + last == len(series) - 1
            silent = _silent_ranks(series, begin, begin + first, begin + last + 1, left)
            say = "says" if all_ranks - left == 1 else "say"
            which = f"{ranks_text(silent, capital=True)} of {all_ranks}" if silent else (
                f"{all_ranks - left} of {all_ranks} ranks")  # fmt: skip
            detection = at_steps(
                series,
                begin + first,
                None if lasts else begin + last,
                f"{which} {say} nothing from step {series['step'][begin + first]} on, for {length:,} steps",
                value=float(left),
                baseline=float(all_ranks),
                effect=float(all_ranks - left),
                ranks=silent[:_SHOWN],
            )
            subject = {"rank": silent[0]} if len(silent) == 1 else {}
            yield replace(detection, subject={**detection.subject, **subject})


def _silent_ranks(series: Series, begin: int, first: int, end: int, left: int) -> list[int]:
    """Return the ranks that recorded the last complete step before `first`, and not the next step with `left` ranks.

    The ranks are computed from the sum and the sum of squares of each step's ranks. One rank and two ranks are always
    determined by these. Several consecutive ranks are, too: they have the smallest sum of squares for their sum. Empty
    if the sums are unknown or the ranks are not determined.
    """
    before = begin + int(np.flatnonzero(series["ranks"][begin:first] == series["ranks"][begin:first].max())[-1])
    after = first + np.flatnonzero(series["ranks"][first:end] == left)[:1]
    count = int(series["ranks"][before]) - left
    sums = [series[name][before] - series[name][after] for name in ("sum_rank", "sum_squared_rank")]
    if not after.size or not np.isfinite(sums).all():
        return []
    total, squares = (int(each[0]) for each in sums)
    if count == 2:  # noqa: PLR2004 - any two
        apart = math.isqrt(max(0, 2 * squares - total * total))
        silent = [(total - apart) // 2, (total + apart) // 2]
    else:
        lowest = (total - count * (count - 1) // 2) // count
        silent = list(range(lowest, lowest + count))
    is_known = sum(silent) == total and sum(rank * rank for rank in silent) == squares and silent[0] >= 0
    return silent if is_known else []


DETECTORS: Final = (
    Detector(
        name="rank_silence",
        watches="ranks that recorded each step",
        finds="ranks say nothing for many steps, while others go on",
        columns=("ts", "ranks", "sum_rank", "sum_squared_rank"),
        find=lost_ranks,
        effect="ranks",
        severity="error",
        runbook="silence",
        evidence_sql="""SELECT rank, max(step) AS last_step, max(ts) AS last_ts FROM steps
WHERE run = {run} AND attempt = {attempt} AND date BETWEEN {date} AND {end_date}
GROUP BY rank ORDER BY last_step, rank LIMIT 100""",
        min_effect=1,
        cooldown_s=300,
        parameters={"min_steps": 20},
        **SHARED,
    ),
)
