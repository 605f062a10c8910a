"""``shift``: the median of a column is about that of earlier dates, compared as by `volume`."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.checks.kinds.volume import compared
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_FEWEST: Final = 30


def _part(check: Check, batch: "Batch") -> tuple[int, float]:
    """Return values and their median."""
    import numpy as np

    values = batch.values(check.columns[0]).astype(float)
    values = values[~np.isnan(values)]
    return (len(values), float(np.median(values))) if len(values) else (0, 0.0)


def _judge(check: Check, parts: Sequence[tuple[int, float]], about: Surroundings) -> Finding:
    import numpy as np

    from ranklake.lake.contracts.checks.series import figure

    count = sum(part[0] for part in parts)
    if count < _FEWEST:
        return Finding(unknown=f"{count} values are too few")
    medians = np.array([part[1] for part in parts])
    order = np.argsort(medians)
    weights = np.cumsum(np.array([part[0] for part in parts])[order])
    value = float(medians[order][np.searchsorted(weights, count / 2)])
    measured = {"median": value, "values": float(count)}
    found = compared(check, value, {day: one["median"] for day, one in about.earlier.items() if "median" in one}, about)
    if found is None:
        return Finding(measured=measured, unknown="too few earlier dates are known")
    off, usual = found
    return Finding(count, count if off else 0, f"median {figure(value)}", usual, measured)


KIND = CheckKind(
    name="shift",
    wrong=lambda check: f"the values of {check.columns[0]} are unlike those of earlier dates",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_part, _judge, remembers=True),
)
