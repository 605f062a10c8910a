"""Explanations of failed checks, and backtests of checks, as lines of text."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from ranklake.printable import printable
from ranklake.quality.backtest import Backtest, Outcome
from ranklake.quality.why.explanation import Explanation, Told
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
    table = table_lines(_COLUMNS, map(_cells, done.outcomes)) if done.outcomes else ["no check fires, and none fired"]
    return [*table, *_summary(done)]


def _cells(one: Outcome) -> Sequence[str]:
    check = f"{one.check_id} (no longer there)" if one.is_gone else one.check_id
    errored = f" ({one.errored:,} not computed)" if one.errored else ""
    counts = (f"{one.partitions:,}", f"{one.fired:,}", f"{one.fires:,}{errored}")
    return (one.table, check, one.severity, *counts, _days(one.newly), _days(one.no_longer))


def _days(found: Sequence[date]) -> str:
    more = f" and {len(found) - _SHOWN:,} more" if len(found) > _SHOWN else ""
    return ", ".join(map(str, found[:_SHOWN])) + more


def _summary(done: Backtest) -> Iterator[str]:
    new = f"{counted(done.judged, 'partition')} judged by changed checks"
    yield f"since {done.since:%Y-%m-%d}: {new}, {done.unchanged:,} by checks that did not change; nothing was written"
    reasons: dict[str, int] = {}
    for *_, reason in done.unknown:
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        yield f"unknown of {counted(count, 'partition')}: {reason}"


def explanation_lines(one: Explanation) -> list[str]:
    """Return what there is to say of one failure: the check, what explains it, keys of rows."""
    about = f" ({one.column})" if one.column else ""
    lines = [f"{one.table} {one.partition_date}  {one.check_id}{about}  {one.severity}"]
    return [*lines, *(f"  {line}" for line in _explanation_facts(one)), ""]


def _explanation_facts(one: Explanation) -> Iterator[str]:
    if one.unknown:
        yield one.unknown
        if one.message:
            yield printable(one.message)
        if one.observed and one.observed not in (one.message or ""):
            yield f"observed: {printable(one.observed)}"
        return
    yield f"{one.failed:,} of {counted(one.rows, 'row')} fail"
    if one.best is not None:
        yield f"best explained by {_named(one.best)}: {_fail_counts(one.best)}"
        if one.alike:
            yield f"as many rows: {', '.join(_named(each) for each in one.alike)}"
    elif one.nearest is not None:
        held = f"{one.nearest.share:.0%} of the failing rows"
        yield f"nothing stands out; nearest is {_named(one.nearest)} with {held}: {_fail_counts(one.nearest)}"
    for sample in one.samples:
        yield "row " + " ".join(f"{name}={value}" for name, value in sample.items())


def _named(one: Told) -> str:
    return f"{one.facet} {one.value}"


def _fail_counts(one: Told) -> str:
    here = f"{one.failed:,} of its {counted(one.rows, 'row')} fail"
    if not one.rest_rows:
        return f"{here}; there are no others"
    times = "" if one.lift is None else f", {one.lift:,.1f} times as often"
    return f"{here}, {one.rest_failed:,} of the other {one.rest_rows:,}{times}"
