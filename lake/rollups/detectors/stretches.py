"""Minutes in a row in which a rule holds of a device or host, as one detection; `node_findings.sql` has the rules."""

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
"""The end of what has none."""
_DAY_US: Final = 86_400 * SECOND
_LIVE_US: Final = 300 * SECOND
_NEAR_US: Final = 90 * SECOND
_SLACK: Final = 0.75
"""A minute that was sampled each ten seconds is 50 s from its first sample to its last."""


class Stretch(NamedTuple):
    """Minutes in a row.

    Attributes
    ----------
    where
        Its subject, such as ``GPU 1 of node 2``.
    value, baseline
        Mean of the minutes' values, or their sum; the baseline of the worst.
    details, amount
        Words of the minutes, each once; the mean of their further numbers, NaN without any.
    seconds
        How long.
    """

    where: str
    value: float
    baseline: float
    details: tuple[str, ...]
    amount: float
    seconds: float

    @property
    def lasting(self) -> str:
        """Return for how long, such as ``for 5 min``."""
        return f"for {duration(self.seconds, in_minutes=True)}"


def growing(stretch: Stretch) -> str:
    """Return by how much memory grows, and when it is used up; the value is in bytes per s, the amount in s."""
    rate = f"{stretch.value * 60 / 2**20:,.0f} MiB a minute"
    return f"memory of {stretch.where} grows by {rate}, and is used up in {duration(stretch.amount, in_minutes=True)}"


def sentence(text: str) -> str:
    """Return a text that begins with a capital."""
    return text[:1].upper() + text[1:]


def place(series: Series) -> str:
    """Return what a series is about: a GPU by its number and node, or a node; no name of a host."""
    node, index = series["node"][0], series["device_index"][0]
    of_node = "" if np.isnan(node) else f"node {node:.0f}"
    if series.subject.get("device_uuid") is None:
        return of_node or ("the host" if series.subject.get("run") else "a host")
    gpu = "a GPU" if np.isnan(index) else f"GPU {index:.0f}"
    return f"{gpu} of {of_node}" if of_node else gpu


@dataclass(frozen=True)
class Stretches:
    """An algorithm that joins minutes that are near each other, and reports those that last.

    Attributes
    ----------
    says
        Makes the sentence; a function of a module, since detectors are sent to workers.
    of_sum
        Whether the value is the sum of the minutes' values, as of errors; else it is their mean.
    below
        Whether the value is bad below the baseline.

    Notes
    -----
    The effect is how far the value is from the baseline. A stretch has no end while the newest sample of the day is in
    it, unless the day is over.
    """

    says: Callable[[Stretch], str]
    of_sum: bool = False
    below: bool = False

    def __call__(self, series: Series, thresholds: Mapping[str, float]) -> Iterator[Detection]:
        """Yield the stretches of a series."""
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
    """Yield places of minutes no further apart than the cool-down: the first, and the one behind the last."""
    gap = max(_NEAR_US, int(cooldown_s * SECOND))
    cuts = np.flatnonzero(series["first_ts"][1:] - np.maximum.accumulate(series["last_ts"])[:-1] > gap) + 1
    yield from zip([0, *cuts.tolist()], [*cuts.tolist(), len(series)], strict=True)


def _evidence(stretch: Stretch, minutes: int) -> dict[str, Any]:
    known = {"details": ", ".join(stretch.details), "amount": None if np.isnan(stretch.amount) else stretch.amount}
    return {"minutes": minutes, "seconds": stretch.seconds} | {name: value for name, value in known.items() if value}
