"""``volume``: a date has about as many rows as dates before it.

It is compared with the median of up to eight weeks: of its own weekday where four are known, else of all, of which
seven must be. It fails beyond `tolerance` (6) spreads (scaled median distance) and `max` (0.5) of the median. A date
that is not over is not judged.
"""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

from ranklake.lake.contracts.checks.kind import CheckKind, Finding, Surroundings, Watch, nothing
from ranklake.lake.contracts.model import Check

_SPREADS: Final = 6.0
_SHARE: Final = 0.5
_KNOWN: Final = 7
_SAME_WEEKDAY: Final = 4
_BACK: Final = timedelta(weeks=8)


def compared(check: Check, value: float, earlier: "dict[Any, float]", about: Surroundings) -> tuple[bool, str] | None:
    """Return whether a figure is off from those of earlier dates, and what is usual; None where too few are known."""
    from ranklake.lake.contracts.checks.series import figure, median_and_spread

    known = {day: one for day, one in earlier.items() if about.day - _BACK <= day < about.day}
    same = [one for day, one in known.items() if day.weekday() == about.day.weekday()]
    basis = same if len(same) >= _SAME_WEEKDAY else list(known.values())
    if len(basis) < (_SAME_WEEKDAY if basis is same else _KNOWN):
        return None
    usual, spread = median_and_spread(basis)
    share = _SHARE if check.max is None else float(check.max)
    room = max((check.tolerance or _SPREADS) * spread, share * abs(usual))
    days = "such weekdays" if basis is same else "dates"
    return abs(value - usual) > room, f"{figure(usual)} ± {figure(room)} by {len(basis)} {days} before"


def _judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    del parts
    if about.day >= datetime.fromtimestamp(about.now_us / 1e6, UTC).date():
        return Finding(unknown="the date is not over")
    found = compared(check, about.rows, {day: float(rows) for day, rows in about.volumes.items()}, about)
    if found is None:
        return Finding(unknown="too few earlier dates are known")
    off, usual = found
    return Finding(max(about.rows, 1), max(about.rows, 1) if off else 0, f"{about.rows:,} rows", f"{usual}")


KIND = CheckKind(
    name="volume",
    wrong=lambda _: "the number of rows is unlike that of earlier dates",
    level="watch",
    own_columns=True,
    dimension="coverage",
    watch=Watch(nothing, _judge),
)
