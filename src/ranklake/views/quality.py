"""Explanations of failed checks, and backtests of checks, as lines of text."""

from collections.abc import Iterator, Sequence
from datetime import date
from typing import Final

from ranklake.printable import counted, printable
from ranklake.quality.backtest import Backtest, Outcome
from ranklake.quality.why.explanation import Explanation, ShownCause
from ranklake.views.table import TextColumn, numbers, table_lines

_COLUMNS: Final = (
    *map(TextColumn, ("table", "check", "severity")),
    *numbers(("judged on", "fired", "would fire")),
    *map(TextColumn, ("newly on", "no longer on")),
)
_SHOWN: Final = 5


def backtest_lines(done: Backtest) -> list[str]:
    """Return the lines of a backtest: checks that fire or fired, then partitions that could not be checked."""
    table = table_lines(_COLUMNS, map(_cells, done.outcomes)) if done.outcomes else ["no check fires, and none fired"]
    return [*table, *_summary(done)]


def _cells(outcome: Outcome) -> Sequence[str]:
    check = f"{outcome.check_id} (no longer there)" if outcome.is_gone else outcome.check_id
    errored = f" ({outcome.errored:,} not computed)" if outcome.errored else ""
    counts = (f"{outcome.partitions:,}", f"{outcome.fired:,}", f"{outcome.fires:,}{errored}")
    return (outcome.table, check, outcome.severity, *counts, _days(outcome.newly), _days(outcome.no_longer))


def _days(days: Sequence[date]) -> str:
    more = f" and {len(days) - _SHOWN:,} more" if len(days) > _SHOWN else ""
    return ", ".join(map(str, days[:_SHOWN])) + more


def _summary(done: Backtest) -> Iterator[str]:
    new = f"{counted(done.judged, 'partition')} judged by changed checks"
    yield f"since {done.since:%Y-%m-%d}: {new}, {done.unchanged:,} by checks that did not change; nothing was written"
    reasons: dict[str, int] = {}
    for *_, reason in done.unknown:
        reasons[reason] = reasons.get(reason, 0) + 1
    for reason, count in reasons.items():
        yield f"unknown of {counted(count, 'partition')}: {reason}"


def explanation_lines(explanation: Explanation) -> list[str]:
    """Return the lines of one failure: the check, its explanation, keys of rows."""
    about = f" ({explanation.column})" if explanation.column else ""
    lines = [f"{explanation.table} {explanation.partition_date}  {explanation.check_id}{about}  {explanation.severity}"]
    return [*lines, *(f"  {line}" for line in _explanation_facts(explanation)), ""]


def _explanation_facts(explanation: Explanation) -> Iterator[str]:
    if explanation.unknown:
        yield explanation.unknown
        if explanation.message:
            yield printable(explanation.message)
        if explanation.observed and explanation.observed not in (explanation.message or ""):
            yield f"observed: {printable(explanation.observed)}"
        return
    yield f"{explanation.failed:,} of {counted(explanation.rows, 'row')} fail"
    if explanation.best is not None:
        yield f"best explained by {_named(explanation.best)}: {_fail_counts(explanation.best)}"
        if explanation.alike:
            yield f"as many rows: {', '.join(_named(each) for each in explanation.alike)}"
    elif explanation.nearest is not None:
        nearest = explanation.nearest
        held = f"{nearest.share:.0%} of the failing rows"
        yield f"nothing stands out; nearest is {_named(nearest)} with {held}: {_fail_counts(nearest)}"
    for sample in explanation.samples:
        yield "row " + " ".join(f"{name}={value}" for name, value in sample.items())


def _named(cause: ShownCause) -> str:
    return f"{cause.facet} {cause.value}"


def _fail_counts(cause: ShownCause) -> str:
    here = f"{cause.failed:,} of its {counted(cause.rows, 'row')} fail"
    if not cause.rest_rows:
        return f"{here}; there are no others"
    times = "" if cause.lift is None else f", {cause.lift:,.1f} times as often"
    return f"{here}, {cause.rest_failed:,} of the other {cause.rest_rows:,}{times}"
