"""A backtest as lines of text."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from ranklake.quality.backtest import Backtest, Outcome
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import counted

_COLUMNS: Final = (
    *map(TextColumn, ("table", "check", "severity")),
    *numbers(("judged on", "fired", "would fire")),
    *map(TextColumn, ("newly on", "no longer on")),
)
_SHOWN: Final = 5


def backtest_lines(done: Backtest) -> list[str]:
    """Return what a backtest found: checks that fire or fired, then what could not be looked at."""
    table = table_lines(_COLUMNS, map(_line, done.outcomes)) if done.outcomes else ["no check fires, and none fired"]
    return [*table, *_told(done)]


def _line(one: Outcome) -> Sequence[str]:
    check = f"{one.check_id} (no longer there)" if one.is_gone else one.check_id
    errored = f" ({one.errored:,} not computed)" if one.errored else ""
    counts = (f"{one.partitions:,}", f"{one.fired:,}", f"{one.fires:,}{errored}")
    return (one.table, check, one.severity, *counts, _days(one.newly), _days(one.no_longer))


def _days(found: Sequence[date]) -> str:
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


def _told(done: Backtest) -> Iterator[str]:
    new = f"{counted(done.judged, 'partition')} judged by changed checks"
    yield f"since {done.since:%Y-%m-%d}: {new}, {done.unchanged:,} by checks that did not change; nothing was written"
    reasons: dict[str, int] = {}
    for *_, reason in done.unknown:
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        yield f"unknown of {counted(count, 'partition')}: {reason}"
