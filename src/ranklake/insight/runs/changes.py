"""Changes: in what an attempt of a run differs from the one before, and the run from the one before it of its job."""

from dataclasses import dataclass
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask, Row
from ranklake.insight.runs.differences import Difference, differences, settings, surroundings

_MOST: Final = 50


@dataclass(frozen=True, slots=True)
class Changes:
    """What changed since another attempt or run; of each difference the values before and now.

    Attributes
    ----------
    since
        The other one, in words.
    run
        Its run.
    settings, surroundings
        What differs in configuration and labels; and in code, machine, software and environment.
    code
        What it was read from: rows of ``code.sql`` of the other one.
    """

    since: str
    run: str
    settings: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    code: Answered


def changes(ask: Ask, run: str, code: Answered) -> tuple[Changes, ...]:
    """Return what changed since the attempt before, and since the run before of the same job.

    Parameters
    ----------
    code
        Rows of ``code.sql`` of the run.
    """
    if not code.rows:
        return ()
    last = code.rows[-1]
    told = []
    earlier = [row for row in code.rows if row["attempt"] < last["attempt"]]
    if earlier:
        told.append(_since(f"attempt {earlier[-1]['attempt']}", run, earlier[-1], last, code))
    for row in ask(statements.previous(statements.among((run,)))).rows:
        other = ask(statements.of_run("code", row["before"], most=_MOST))
        if other.rows:
            told.append(_since(f"run {row['before']}", row["before"], other.rows[-1], last, other))
    return tuple(told)


def _since(what: str, run: str, before: Row, now: Row, code: Answered) -> Changes:
    rows = (before, now)
    return Changes(what, run, differences(map(settings, rows))[0], differences(map(surroundings, rows))[0], code)
