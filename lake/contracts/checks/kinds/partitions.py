"""Check kinds that count the rows of a partition, or compare a date with earlier dates."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Watch,
    WatchContext,
    WatchResult,
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
_VOLUME_FEWEST_DATES: Final = 7
_VOLUME_FEWEST_WEEKDAYS: Final = 4
_VOLUME_HISTORY: Final = timedelta(weeks=8)


def compare_to_history(
    check: Check, value: float, earlier: "dict[Any, float]", context: WatchContext
) -> tuple[bool, str] | None:
    """Compare a value with those of earlier dates.

    Returns whether it lies outside the expected range, and that range as text. None if too few dates are known.
    """
    from ranklake.lake.contracts.checks.series import figure, median_and_spread

    recent = {day: past for day, past in earlier.items() if context.day - _VOLUME_HISTORY <= day < context.day}
    weekdays = [past for day, past in recent.items() if day.weekday() == context.day.weekday()]
    basis = weekdays if len(weekdays) >= _VOLUME_FEWEST_WEEKDAYS else list(recent.values())
    if len(basis) < (_VOLUME_FEWEST_WEEKDAYS if basis is weekdays else _VOLUME_FEWEST_DATES):
        return None
    usual, spread = median_and_spread(basis)
    share = _VOLUME_SHARE if check.max is None else float(check.max)
    limit = max((check.tolerance or _VOLUME_SPREADS) * spread, share * abs(usual))
    days = "such weekdays" if basis is weekdays else "dates"
    return abs(value - usual) > limit, f"{figure(usual)} ± {figure(limit)} by {len(basis)} {days} before"


def _evaluate_volume(check: Check, parts: Sequence[Any], context: WatchContext) -> WatchResult:
    del parts
    if context.day >= datetime.fromtimestamp(context.now_us / 1e6, UTC).date():
        return WatchResult(unknown="the date is not over")
    volumes = {day: float(rows) for day, rows in context.volumes.items()}
    comparison = compare_to_history(check, context.rows, volumes, context)
    if comparison is None:
        return WatchResult(unknown="too few earlier dates are known")
    is_unusual, usual = comparison
    rows = max(context.rows, 1)
    return WatchResult(rows, rows if is_unusual else 0, f"{context.rows:,} rows", usual)


VOLUME = CheckKind(
    name="volume",
    fault=lambda _: "the number of rows is unlike that of earlier dates",
    level="watch",
    own_columns=True,
    dimension="coverage",
    watch=Watch(empty_summary, _evaluate_volume),
)
"""``volume``: a date has about as many rows as earlier dates.

The number of rows is compared with the median of the last eight weeks: of the same weekday if four such dates are
known, else of all dates, of which at least seven must be known. The check fails if the difference exceeds both
`tolerance` (6) spreads (scaled median absolute deviation) and the share `max` (0.5) of the median. A date is not
checked before it is over.
"""


_SHIFT_FEWEST: Final = 30


def _summarize_shift(check: Check, batch: "Batch") -> tuple[int, float]:
    """Return the number of values and their median."""
    import numpy as np

    values = batch.values(check.columns[0]).astype(float)
    values = values[~np.isnan(values)]
    return (len(values), float(np.median(values))) if len(values) else (0, 0.0)


def _evaluate_shift(check: Check, parts: Sequence[tuple[int, float]], context: WatchContext) -> WatchResult:
    from ranklake.lake.contracts.checks.series import figure, weighted_median

    count = sum(part[0] for part in parts)
    if count < _SHIFT_FEWEST:
        return WatchResult(unknown=f"{count} values are too few")
    value = weighted_median(parts)
    measured = {"median": value, "values": float(count)}
    medians = {day: past["median"] for day, past in context.earlier.items() if "median" in past}
    comparison = compare_to_history(check, value, medians, context)
    if comparison is None:
        return WatchResult(measured=measured, unknown="too few earlier dates are known")
    is_unusual, usual = comparison
    return WatchResult(count, count if is_unusual else 0, f"median {figure(value)}", usual, measured)


SHIFT = CheckKind(
    name="shift",
    fault=lambda check: f"the values of {check.columns[0]} are unlike those of earlier dates",
    level="watch",
    types=NUMBERS - {"decimal"},
    dimension="consistency",
    watch=Watch(_summarize_shift, _evaluate_shift, uses_history=True),
)
"""``shift``: the median of a column is close to its medians on earlier dates, compared as in ``volume``."""


ROW_COUNT = CheckKind(
    name="row_count",
    fault=lambda check: f"row count outside {range_text(check)}",
    level="table",
    needs=(("min", "max"),),
    own_columns=True,
    promise=lambda check: f"number of rows outside {range_text(check)}",
    dimension="coverage",
)
"""``row_count``: a partition has from `min` to `max` rows, both included. Either bound may be omitted."""


def _unique_rule(check: Check) -> dict[str, object]:
    return {"metric": "duplicateValues", "mustBe": 0, "arguments": {"properties": list(check.columns)}}


UNIQUE = CheckKind(
    name="unique",
    fault=lambda check: f"rows repeat a key of {columns_text(check)}",
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
    fault=lambda check: f"more than {check.max or 0} of the rows repeat {columns_text(check)} of another",
    level="table",
    needs=(("columns",), ("max",)),
    own_columns=True,
    types=frozenset(TYPES) - {"int64_list"},
    dimension="uniqueness",
)
"""``duplicates``: at most the share `max` (0) of a partition's rows repeats another row in all of `columns`."""


FILL_RATIO = CheckKind(
    name="fill_ratio",
    fault=lambda check: f"{check.columns[0]} filled below {check.min}",
    level="share",
    needs=(("min",),),
    null_passes=False,
    promise=lambda check: f"share of rows with {columns_text(check)} below {'…' if check.min is None else check.min}",
    dimension="completeness",
    passes=NOT_NULL.passes,
    clears=NOT_NULL.clears,
)
"""``fill_ratio``: the share of a partition's rows in which a column has a value is at least `min`."""
