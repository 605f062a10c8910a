"""Joins consecutive minutes in which a device or host has a fault into one detection.

`node_findings.sql` selects the minutes.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import numpy as np

from ranklake.detection.declaration import COOLDOWN, Detection, Series
from ranklake.printable import duration

SECOND: Final = 1_000_000
MIN_LENGTH: Final = "min_s"
MIN_TOTAL: Final = "min_total"
NEVER: Final = 0
"""End time of a fault that has not ended."""
_DAY_US: Final = 86_400 * SECOND
_LIVE_US: Final = 300 * SECOND
_NEAR_US: Final = 90 * SECOND
_SLACK: Final = 0.75
"""Share of the least length that is enough: a minute with a sample every ten seconds has 50 s between its samples."""


class Stretch(NamedTuple):
    """Consecutive minutes with a fault.

    Attributes
    ----------
    where
        The device or host, such as ``GPU 1 of node 2``.
    value, baseline
        Mean or sum of the minutes' values; the baseline of the most severe minute.
    details, amount
        Distinct words of the minutes; mean of the minutes' further numbers, NaN without any.
    seconds
        Time from the first to the last minute.
    """

    where: str
    value: float
    baseline: float
    details: tuple[str, ...]
    amount: float
    seconds: float

    @property
    def lasting(self) -> str:
        """Text of the duration, such as ``for 5 min``."""
        return f"for {duration(self.seconds, in_minutes=True)}"


def growing(stretch: Stretch) -> str:
    """Return a message for growing memory; the value is the growth in bytes/s, the amount the seconds until full."""
    rate = f"{stretch.value * 60 / 2**20:,.0f} MiB a minute"
    return f"memory of {stretch.where} grows by {rate}, and is used up in {duration(stretch.amount, in_minutes=True)}"


def sentence(text: str) -> str:
    """Return a text with a capital first letter."""
    return text[:1].upper() + text[1:]


def place(series: Series) -> str:
    """Return the subject of a series for messages: a GPU with index and node, or a node. It has no host name."""
    node, index = series["node"][0], series["device_index"][0]
    of_node = "" if np.isnan(node) else f"node {node:.0f}"
    if series.subject.get("device_uuid") is None:
        return of_node or ("the host" if series.subject.get("run") else "a host")
    gpu = "a GPU" if np.isnan(index) else f"GPU {index:.0f}"
    return f"{gpu} of {of_node}" if of_node else gpu


@dataclass(frozen=True)
class Stretches:
    """An algorithm that joins minutes close to each other, and reports those that last long enough.

    Attributes
    ----------
    says
        Returns the message. It must be a function of a module, since detectors are sent to workers.
    of_sum
        Whether the value is the sum of the minutes' values, for counts of errors; else it is their mean.
    below
        Whether a value below the baseline is a fault, instead of one above it.

    Notes
    -----
    The effect is the difference between value and baseline. A stretch has no end if it contains the newest sample of
    the day, unless the day is over.
    """

    says: Callable[[Stretch], str]
    of_sum: bool = False
    below: bool = False

    def __call__(self, series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
        """Yield a detection for each stretch of a series."""
        for first, last in _parts(series, thresholds[COOLDOWN]):
            part = {name: column[first:last] for name, column in series.columns.items()}
            start, end = int(part["first_ts"][0]), int(part["last_ts"].max())
            is_open = int(part["last_ts"].min()) == NEVER
            values = part["value"]
            value = float(values.sum() if self.of_sum else values.mean())
            too_short = not is_open and end - start < _SLACK * thresholds.get(MIN_LENGTH, 0) * SECOND
            if too_short or value < thresholds.get(MIN_TOTAL, -np.inf):
                continue
            baseline = float(part["baseline"].min() if self.below else part["baseline"].max())
            details = tuple(dict.fromkeys(word for text in part["detail"] if text for word in text.split(", ")))
            amounts = part["amount"][~np.isnan(part["amount"])]
            amount = float(amounts.mean()) if len(amounts) else float("nan")
            stretch = Stretch(place(series), value, baseline, details, amount, (end - start) / SECOND)
            newest = int(part["newest_ts"].max())
            is_live = is_open or (newest - end <= _NEAR_US and newest % _DAY_US < _DAY_US - _LIVE_US)
            yield Detection(
                start=start,
                end=None if is_live else end,
                message=sentence(self.says(stretch)),
                value=value,
                baseline=baseline,
                effect=baseline - value if self.below else value - baseline,
                evidence=_evidence(stretch, last - first),
            )


def _parts(series: Series, cooldown_s: float) -> Iterator[tuple[int, int]]:
    """Yield index ranges of minutes that are no further apart than the cool-down."""
    gap = max(_NEAR_US, int(cooldown_s * SECOND))
    cuts = np.flatnonzero(series["first_ts"][1:] - np.maximum.accumulate(series["last_ts"])[:-1] > gap) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(series)], strict=True)


def _evidence(stretch: Stretch, minutes: int) -> dict[str, Any]:
    extra = {"details": ", ".join(stretch.details), "amount": None if np.isnan(stretch.amount) else stretch.amount}
    return {"minutes": minutes, "seconds": stretch.seconds} | {name: value for name, value in extra.items() if value}
