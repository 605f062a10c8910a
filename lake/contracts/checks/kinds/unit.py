"""``unit``: a column is in its unit, by magnitude: not percent in a ratio, MiB for bytes or ms for s.

Three witnesses, of which each is enough. The median of a series lies from `min` to `max`. No series is off from the
median of the others by a factor between units. Lengths of time in `values: [ts]` are together no more than 20 times
what the clock says between their starts.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_FACTORS: Final = (
    (1e2, "percent and ratio"),
    (1e3, "a factor of 1,000, as of ms and s"),
    (1024.0, "a factor of 1,024, as of KiB and bytes"),
    (1e6, "a factor of 1,000,000, as of us and s"),
    (1024.0**2, "a factor of 1,048,576, as of MiB and bytes"),
    (1e9, "a factor of 1,000,000,000, as of ns and s"),
    (1024.0**3, "a factor of 1,073,741,824, as of GiB and bytes"),
)
_NEAR: Final = 0.2
_PEERS: Final = 2
_ALIKE: Final = 3.0
_CLOCK: Final = 20.0
_FEWEST: Final = 5


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[float]]:
    """Return for each series: values above 0, their median, their sum without the last, time between first and last."""
    import numpy as np

    found = {}
    for key, when, (values,) in batch.series(check.by, "ts", check.columns[0]):
        there = values[values > 0].astype(float)
        if len(there):
            summed = float(np.nansum(values[:-1].astype(float)))
            found[key] = [len(there), float(np.median(there)), summed, float(when[-1] - when[0]) / 1e6]
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[float]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import figure, listed, quartiles_of_others, told

    del about
    series: dict[tuple[Any, ...], list[float]] = {}
    for part in parts:
        for key, facts in part.items():
            known = series.get(key, [0, facts[1], 0.0, 0.0])
            middle = facts[1] if facts[0] >= known[0] else known[1]
            series[key] = [known[0] + facts[0], middle, known[2] + facts[2], known[3] + facts[3]]
    low = None if check.min is None else float(check.min)
    high = None if check.max is None else float(check.max)
    judged = [key for key, facts in series.items() if facts[0] >= _FEWEST]
    others = quartiles_of_others([series[key][1] for key in judged]) if len(judged) > _PEERS else ()
    of_others = dict(zip(judged, others, strict=False))
    rows = wrong = 0
    lines = []
    for key, (count, middle, summed, passed) in series.items():
        rows += int(count)
        why = ""
        if (low is not None and middle < low) or (high is not None and middle > high):
            why = _other_units(check.columns[0])
        elif "ts" in check.values and count >= _FEWEST and passed > 0 and summed > _CLOCK * passed:
            why = f"{figure(summed)} in {figure(passed)} s of the clock"
        elif key in of_others:
            low_quarter, usual, high_quarter = of_others[key]
            if high_quarter <= _ALIKE * low_quarter:
                why = _factor_between(middle, float(usual))
        if why:
            wrong += int(count)
            lines.append(f"{told(check.by, key)}: median {figure(middle)}, {why}")
    if not rows:
        return Finding(unknown="there was no value to judge")
    range_ = "" if low is None and high is None else f"medians {_end(low)} to {_end(high)}, "
    return Finding(rows, wrong, listed(lines), f"{range_}alike in all series")


def _end(value: float | None) -> str:
    return "…" if value is None else f"{value:.4g}"


def _other_units(column: str) -> str:
    """Return in words which other units a magnitude may come from."""
    families = {"_ratio": "as of percent", "_bytes": "as of KiB, MiB or GiB", "_s": "as of ms, us or ns"}
    return next((words for end, words in families.items() if column.endswith(end)), "as of another unit")


def _factor_between(value: float, usual: float) -> str:
    ratio = max(value, usual) / min(value, usual)
    near = [(abs(ratio / factor - 1), words) for factor, words in _FACTORS]
    off, words = min(near)
    return f"others {usual:.4g}: {words}" if off < _NEAR else ""


KIND = CheckKind(
    name="unit",
    wrong=lambda check: f"{check.columns[0]} seems to be in another unit",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=NUMBERS - {"decimal"},
    dimension="conformity",
    watch=Watch(_part, _judge, also=("ts",)),
)
