"""Checks of the rows of a partition as a whole, by counting, and of a date against dates before it."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Finding,
    Surroundings,
    Watch,
    columns_text,
    empty_summary,
    range_text,
)
from ranklake.lake.contracts.checks.kinds.values import NOT_NULL
from ranklake.lake.contracts.model import NUMBERS, TYPES, Check

if TYPE_CHECKING:
    from ranklake.lake.contracts.checks.series import Batch


_VOLUME_SPREADS: Final = 6.0
_VOLUME_SHARE: Final = 0.5
_VOLUME_KNOWN: Final = 7
_VOLUME_SAME_WEEKDAY: Final = 4
_VOLUME_BACK: Final = timedelta(weeks=8)


def compare_to_history(
    check: Check, value: float, earlier: "dict[Any, float]", about: Surroundings
) -> tuple[bool, str] | None:
    """Return whether a figure is off from those of earlier dates, and what is usual; None where too few are known."""
    from ranklake.lake.contracts.checks.series import figure, median_and_spread

    known = {day: one for day, one in earlier.items() if about.day - _VOLUME_BACK <= day < about.day}
    same = [one for day, one in known.items() if day.weekday() == about.day.weekday()]
    basis = same if len(same) >= _VOLUME_SAME_WEEKDAY else list(known.values())
    if len(basis) < (_VOLUME_SAME_WEEKDAY if basis is same else _VOLUME_KNOWN):
        return None
    usual, spread = median_and_spread(basis)
    share = _VOLUME_SHARE if check.max is None else float(check.max)
    room = max((check.tolerance or _VOLUME_SPREADS) * spread, share * abs(usual))
    days = "such weekdays" if basis is same else "dates"
    return abs(value - usual) > room, f"{figure(usual)} ± {figure(room)} by {len(basis)} {days} before"


def _volume_judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    del parts
    if about.day >= datetime.fromtimestamp(about.now_us / 1e6, UTC).date():
        return Finding(unknown="the date is not over")
    finding = compare_to_history(check, about.rows, {day: float(rows) for day, rows in about.volumes.items()}, about)
    if finding is None:
        return Finding(unknown="too few earlier dates are known")
    off, usual = finding
    return Finding(max(about.rows, 1), max(about.rows, 1) if off else 0, f"{about.rows:,} rows", f"{usual}")


VOLUME = CheckKind(
    name="volume",
    wrong=lambda _: "the number of rows is unlike that of earlier dates",
    level="watch",
    own_columns=True,
    dimension="coverage",
    watch=Watch(empty_summary, _volume_judge),
)
"""``volume``: a date has about as many rows as dates before it.

It is compared with the median of up to eight weeks: of its own weekday where four are known, else of all, of which
seven must be. It fails beyond `tolerance` (6) spreads (scaled median distance) and `max` (0.5) of the median. A date
that is not over is not judged.
"""


_SHIFT_FEWEST: Final = 30


def _shift_part(check: Check, batch: "Batch") -> tuple[int, float]:
    """Return values and their median."""
    import numpy as np

    values = batch.values(check.columns[0]).astype(float)
    values = values[~np.isnan(values)]
    return (len(values), float(np.median(values))) if len(values) else (0, 0.0)


def _shift_judge(check: Check, parts: Sequence[tuple[int, float]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import figure, weighted_median

    count = sum(part[0] for part in parts)
    if count < _SHIFT_FEWEST:
        return Finding(unknown=f"{count} values are too few")
    value = weighted_median(parts)
    measured = {"median": value, "values": float(count)}
    finding = compare_to_history(
        check, value, {day: one["median"] for day, one in about.earlier.items() if "median" in one}, about
    )
    if finding is None:
        return Finding(measured=measured, unknown="too few earlier dates are known")
    off, usual = finding
    return Finding(count, count if off else 0, f"median {figure(value)}", usual, measured)


SHIFT = CheckKind(
    name="shift",
    wrong=lambda check: f"the values of {check.columns[0]} are unlike those of earlier dates",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_shift_part, _shift_judge, remembers=True),
)
"""``shift``: the median of a column is about that of earlier dates, compared as by `volume`."""


ROW_COUNT = CheckKind(
    name="row_count",
    wrong=lambda check: f"row count outside {range_text(check)}",
    level="table",
    needs=(("min", "max"),),
    own_columns=True,
    promise=lambda check: f"number of rows outside {range_text(check)}",
    dimension="coverage",
)
"""``row_count``: a partition has from `min` to `max` rows, both included; either end may be open."""


def _unique_rule(check: Check) -> dict[str, object]:
    return {"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": list(check.columns)}}


UNIQUE = CheckKind(
    name="unique",
    wrong=lambda check: f"rows repeat a key of {columns_text(check)}",
    level="table",
    needs=(("columns",),),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    promise=lambda check: f"two rows with the same {columns_text(check)}",
    dimension="uniqueness",
    rule=_unique_rule,
)
"""``unique``: no two rows of a partition have the same values in all of `columns`."""


DUPLICATES = CheckKind(
    name="duplicates",
    wrong=lambda check: f"more than {check.max or 0} of the rows repeat {columns_text(check)} of another",
    level="table",
    needs=(("columns",), ("max",)),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    dimension="uniqueness",
)
"""``duplicates``: no more than `max` (0) of a partition's rows repeat another one in all of `columns`."""


FILL_RATIO = CheckKind(
    name="fill_ratio",
    wrong=lambda check: f"{check.columns[0]} filled below {check.min}",
    level="share",
    needs=(("min",),),
    null_passes=False,
    promise=lambda check: f"share of rows with {columns_text(check)} below {'…' if check.min is None else check.min}",
    dimension="completeness",
    passes=NOT_NULL.passes,
    cleared=NOT_NULL.cleared,
)
"""``fill_ratio``: the share of a partition's rows in which a column has a value is at least `min`."""
