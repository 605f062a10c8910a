"""``stuck``: a sensor that moves does not stand still at the very same value for `min` samples (30) or more.

Standing still is wrong where the rest of the series moves at most samples, or where the whole series stands still and
those of most other devices move.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_SAMPLES: Final = 30
_MOVES: Final = 0.5
_PEERS: Final = 2


def _part(check: Check, batch: "Batch") -> dict[tuple[Any, ...], list[float]]:
    """Return for each series: values, how often they change, the longest stretch of one value, and that value."""
    import numpy as np

    found = {}
    for key, _, (values,) in batch.series(check.by, "ts", check.columns[0]):
        there = values[~np.isnan(values)] if values.dtype.kind == "f" else values
        if not len(there):
            continue
        changes = np.flatnonzero(np.diff(there) != 0)
        ends = np.r_[changes, len(there) - 1]
        lengths = np.diff(np.r_[-1, ends])
        longest = int(lengths.argmax())
        found[key] = [len(there), len(changes), int(lengths[longest]), float(there[ends[longest]])]
    return found


def _judge(check: Check, parts: Sequence[dict[tuple[Any, ...], list[float]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import figure, listed, told

    del about
    least = _SAMPLES if check.min is None else int(check.min)
    series: dict[tuple[Any, ...], list[float]] = {}
    for part in parts:
        for key, (count, changes, longest, value) in part.items():
            known = series.get(key, [0, 0, 0, 0.0])
            stretch = (longest, value) if longest > known[2] else (known[2], known[3])
            same = known[0] and known[2] == known[0] and longest == count and value == known[3]
            stretch = (longest + known[2], value) if same else stretch
            series[key] = [known[0] + count, known[1] + changes, *stretch]
    moving = {key for key, (count, changes, longest, _) in series.items() if changes > _MOVES * max(1, count - longest)}
    rows = still = 0
    lines = []
    for key, (count, _, longest, value) in series.items():
        rows += int(count)
        peers = len(moving - {key})
        if longest < least or value == 0:
            continue
        alone = longest == count and peers >= max(_PEERS, (len(series) - 1) * _MOVES)
        if alone or (longest < count and key in moving):
            still += int(longest)
            lines.append(f"{told(check.by, key)}: {figure(value)} in {longest:,.0f} samples of {count:,.0f}")
    return Finding(rows, still, listed(lines), f"no value {least:,} times in a row of a sensor that moves")


KIND = CheckKind(
    name="stuck",
    wrong=lambda check: f"a sensor of {check.columns[0]} stands still",
    level="watch",
    needs=(("columns",), ("by",)),
    own_columns=True,
    types=NUMBERS - {"decimal"},
    dimension="accuracy",
    watch=Watch(_part, _judge, also=("ts",)),
)
