"""Compares runs: settings, environment and results side by side, and changes since an earlier attempt or run."""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ranklake.insight.ended_metrics import EndedMetric, EndedOfRuns, ended_of_runs
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import annotations_of_each
from ranklake.insight.runs.asking import Ask, QueriedFacts, Row
from ranklake.insight.runs.caveats import Caveats, caveats
from ranklake.insight.runs.find import flat
from ranklake.lake.contracts.json_text import facts_in

_SETTINGS: Final = ("config", "labels")
_SURROUNDINGS: Final = ("environment", "packages", "determinism")
_OF_THE_RUN: Final = frozenset({"attempt", "ts", "unavailable", "config_sha256", *_SETTINGS, *_SURROUNDINGS})


@dataclass(frozen=True, slots=True)
class Difference:
    """A difference between runs: its name, and the value of each run as text; None if a run has none."""

    name: str
    values: tuple[str | None, ...]


def settings(row: Row) -> Mapping[str, str]:
    """Return configuration and labels of a row of ``code.sql``, as text by name."""
    values = dict(_texts(facts_in(row.get("config"))))
    return values | {f"label {name}": value for name, value in _texts(facts_in(row.get("labels"))).items()}


def surroundings(row: Row) -> Mapping[str, str]:
    """Return code, machine, software and environment of a row of ``code.sql``, as text by name."""
    values = {name: _text(value) for name, value in row.items() if name not in _OF_THE_RUN and value is not None}
    for column, word in zip(_SURROUNDINGS, ("variable", "package", "determinism"), strict=True):
        values |= {f"{word} {name}": value for name, value in _texts(facts_in(row.get(column))).items()}
    return values


def _texts(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in flat(facts)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def differences(of_each: Iterable[Mapping[str, str]]) -> tuple[tuple[Difference, ...], int]:
    """Return the differences, by name, and the number of equal values."""
    every = list(of_each)
    names = sorted({name for one in every for name in one})
    all_values = [Difference(name, tuple(one.get(name) for one in every)) for name in names]
    differing = tuple(one for one in all_values if len(set(one.values)) > 1)
    return differing, len(all_values) - len(differing)


@dataclass(frozen=True, slots=True)
class Changes:
    """Changes since another attempt or run; each difference has the former and present values.

    Attributes
    ----------
    since
        The other attempt or run, in words.
    run
        Its run.
    settings, surroundings
        Differences in configuration and labels; and in code, machine, software and environment.
    code
        Their source: rows of ``code.sql`` of the other one.
    """

    since: str
    run: str
    settings: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    code: QueriedFacts


def changes(ask: Ask, run: str, code: QueriedFacts) -> tuple[Changes, ...]:
    """Return the changes since the previous attempt, and since the previous run of the same job.

    Parameters
    ----------
    code
        Rows of ``code.sql`` of the run.
    """
    if not code.rows:
        return ()
    last = code.rows[-1]
    changed = []
    earlier = [row for row in code.rows if row["attempt"] < last["attempt"]]
    if earlier:
        changed.append(_changes_since(f"attempt {earlier[-1]['attempt']}", run, earlier[-1], last, code))
    for row in ask(statements.previous_runs_sql(statements.run_condition((run,)))).rows:
        other = ask(statements.of_run("code", row["before"], most=_MOST_ATTEMPTS))
        if other.rows:
            changed.append(_changes_since(f"run {row['before']}", row["before"], other.rows[-1], last, other))
    return tuple(changed)


def _changes_since(since: str, run: str, before: Row, now: Row, code: QueriedFacts) -> Changes:
    rows = (before, now)
    return Changes(since, run, differences(map(settings, rows))[0], differences(map(surroundings, rows))[0], code)


MEASURES: Final = ("last_loss", "mean_step_time_s", "tokens_per_s", "mfu_ratio", "goodput_ratio")
"""Columns of ``summary.sql`` whose variance over runs is computed by ``variance.sql``."""

_FEWEST_REPEATS: Final = 3
_MOST_ATTEMPTS: Final = 50


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side; all values are in the order of `runs`.

    Attributes
    ----------
    summaries
        One row per run, as in `ranklake.insight.runs.facts.RunFacts.summary`.
    phases
        Mean times of a step and its phases, for each run.
    settings, surroundings
        What differs in configuration and labels; and in code, machine, software and environment.
    summary, summary_reason
        All summary values of the runs; or why they are unknown.
    alike
        Number of settings and facts of the environment that all runs share.
    code
        Source of the differences.
    variance
        Mean and deviation of `MEASURES` over the runs; for fewer than three, a reason.
    caveats
        Failed checks of their rows.
    ended_metrics
        Ended metrics that they recorded, by run.
    """

    runs: tuple[str, ...]
    summaries: QueriedFacts
    phases: tuple[QueriedFacts, ...]
    settings: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    alike: int
    code: tuple[QueriedFacts, ...]
    variance: QueriedFacts
    caveats: Caveats
    summary: tuple[Difference, ...]
    summary_reason: str
    ended_metrics: EndedOfRuns


def compare(ask: Ask, runs: tuple[str, ...], ended: Sequence[EndedMetric] = ()) -> Comparison:
    """Compare runs by their full names, each given once; `ended` are the lake's ended metrics."""
    summaries = ask(statements.summaries(statements.run_condition(runs)))
    by_run = {row["run"]: row for row in summaries.rows}
    code = tuple(ask(statements.of_run("code", run, most=_MOST_ATTEMPTS)) for run in runs)
    last = [one.rows[-1] if one.rows else {} for one in code]
    of_settings, alike = differences(map(settings, last))
    of_surroundings, also_alike = differences(map(surroundings, last))
    sql = statements.variance(runs)
    few = len(runs) < _FEWEST_REPEATS
    annotations, annotated = annotations_of_each(ask, runs)
    return Comparison(
        runs=runs,
        summaries=QueriedFacts(summaries.sql, tuple(by_run.get(run, {}) for run in runs), summaries.reason),
        phases=tuple(ask(statements.of_run("phases", run)) for run in runs),
        settings=of_settings,
        surroundings=of_surroundings,
        summary=_summary_values(annotations[run].summary for run in runs),
        summary_reason=annotated.reason,
        alike=alike + also_alike,
        code=code,
        variance=QueriedFacts(sql, (), "fewer than three runs have no variance to tell") if few else ask(sql),
        caveats=caveats(ask, runs),
        ended_metrics=ended_of_runs(ask, ended, runs),
    )


def _summary_values(of_each: Iterable[Mapping[str, float | str | None]]) -> tuple[Difference, ...]:
    """Return the summary values of runs by name; None for a run without the value."""
    every = [{name: _text(value) for name, value in each.items() if value is not None} for each in of_each]
    names = sorted({name for each in every for name in each})
    return tuple(Difference(name, tuple(each.get(name) for each in every)) for name in names)
