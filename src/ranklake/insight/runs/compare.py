"""Compares runs: what they were set to, what they ran on, how they did, and how far repeats of one lie apart."""

from dataclasses import dataclass
from typing import Final

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask
from ranklake.insight.runs.caveats import Caveats, caveats
from ranklake.insight.runs.differences import Difference, differences, settings, surroundings

MEASURES: Final = ("last_loss", "mean_step_time_s", "tokens_per_s", "mfu_ratio", "goodput_ratio")
"""Columns of ``summary.sql`` whose variance over runs ``variance.sql`` gives."""

_FEWEST_REPEATS: Final = 3
_MOST: Final = 50


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side; everything is in the order of `runs`.

    Attributes
    ----------
    summaries
        A row a run, as in `ranklake.insight.runs.facts.RunFacts.summary`.
    phases
        Means of a step and its phases, of each run.
    settings, surroundings
        What differs in configuration and labels; and in code, machine, software and environment.
    alike
        How many settings and surroundings all runs have in common.
    code
        What the differences were read from.
    variance
        Mean and deviation of `MEASURES` over the runs; no rows and a reason for fewer than three.
    caveats
        Checks that rows of them fail.
    """

    runs: tuple[str, ...]
    summaries: Answered
    phases: tuple[Answered, ...]
    settings: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    alike: int
    code: tuple[Answered, ...]
    variance: Answered
    caveats: Caveats


def compare(ask: Ask, runs: tuple[str, ...]) -> Comparison:
    """Compare runs by their whole names, each named once."""
    found = ask(statements.summaries(statements.among(runs)))
    by_run = {row["run"]: row for row in found.rows}
    code = tuple(ask(statements.of_run("code", run, most=_MOST)) for run in runs)
    last = [one.rows[-1] if one.rows else {} for one in code]
    of_settings, alike = differences(map(settings, last))
    of_surroundings, also_alike = differences(map(surroundings, last))
    sql = statements.variance(runs)
    few = len(runs) < _FEWEST_REPEATS
    return Comparison(
        runs=runs,
        summaries=Answered(found.sql, tuple(by_run.get(run, {}) for run in runs), found.reason),
        phases=tuple(ask(statements.of_run("phases", run)) for run in runs),
        settings=of_settings,
        surroundings=of_surroundings,
        alike=alike + also_alike,
        code=code,
        variance=Answered(sql, (), "fewer than three runs have no variance to tell") if few else ask(sql),
        caveats=caveats(ask, runs),
    )
