"""``silence``: a column is not 0 or NULL in all rows of a whole date, where it was otherwise on most earlier dates.

A fleet that does nothing at all is hardly a fleet: more likely the recording was out. Dates of which the rows cover
less than `min` hours (20) are not judged, nor is one before three others are known.
"""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch
from ranklake.lake.contracts.model import NUMBERS, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch

_HOURS: Final = 20.0
_KNOWN: Final = 3
_MOSTLY: Final = 0.8


def _part(check: Check, batch: "Batch") -> list[float]:
    """Return rows, rows with another value than 0, first and last time."""
    import numpy as np

    found, when = batch.values(check.columns[0]), batch.values("ts")
    return [len(found), int(np.count_nonzero(np.nan_to_num(found.astype(float)))), int(when.min()), int(when.max())]


def _judge(check: Check, parts: Sequence[list[float]], about: Surroundings) -> Finding:
    rows, busy = (int(sum(part[at] for part in parts)) for at in (0, 1))
    hours = (max(part[3] for part in parts) - min(part[2] for part in parts)) / 3.6e9 if parts else 0.0
    measured = {"busy_rows": float(busy), "hours": hours}
    least = _HOURS if check.min is None else float(check.min)
    before = [one for one in about.earlier.values() if one.get("hours", 0) >= least]
    expected = f"{check.columns[0]} above 0 at some time"
    if busy or hours < least:
        return Finding(rows, 0, f"{busy:,} of {rows:,} rows", expected, measured)
    alive = sum(one["busy_rows"] > 0 for one in before)
    if len(before) < _KNOWN or alive < _MOSTLY * len(before):
        return Finding(measured=measured, unknown=f"{len(before)} earlier dates are known, {alive} of them busy")
    told = f"all {rows:,} rows of {hours:.1f} h are 0 or NULL; {alive} of {len(before)} dates before were not"
    return Finding(rows, rows, told, expected, measured)


KIND = CheckKind(
    name="silence",
    wrong=lambda check: f"{check.columns[0]} is 0 or NULL in all rows of the date: the recording may have been out",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="completeness",
    watch=Watch(_part, _judge, also=("ts",), remembers=True),
)
