"""Compares runs: what they were set to, what they ran on, how they did, and how far repeats of one lie apart."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.runs import statements
from ranklake.lake.runs.asking import Answered, Ask, Row
from ranklake.lake.runs.find import flat

MEASURES: Final = ("last_loss", "mean_step_time_s", "tokens_per_s", "mfu_ratio", "goodput_ratio")
"""Columns of ``summary.sql`` whose variance over runs ``variance.sql`` gives."""

_FEWEST_REPEATS: Final = 3
_MOST: Final = 50
_SETTINGS: Final = ("config", "labels")
_SURROUNDINGS: Final = ("environment", "packages", "determinism")
_OF_THE_RUN: Final = frozenset({"attempt", "ts", "unavailable", "config_sha256", *_SETTINGS, *_SURROUNDINGS})


@dataclass(frozen=True, slots=True)
class Difference:
    """One thing in which runs differ: its name, and the value of each run as text; None where a run has none."""

    name: str
    values: tuple[str | None, ...]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Runs side by side; everything is in the order of `runs`.

    Attributes
    ----------
    summaries
        A row a run, as in `ranklake.lake.runs.facts.RunFacts.summary`.
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
    """

    runs: tuple[str, ...]
    summaries: Answered
    phases: tuple[Answered, ...]
    settings: tuple[Difference, ...]
    surroundings: tuple[Difference, ...]
    alike: int
    code: tuple[Answered, ...]
    variance: Answered


def compare(ask: Ask, runs: tuple[str, ...]) -> Comparison:
    """Compare runs by their whole names, each named once."""
    found = ask(statements.summaries(statements.among(runs)))
    by_run = {row["run"]: row for row in found.rows}
    code = tuple(ask(statements.of_run("code", run, most=_MOST)) for run in runs)
    last = [one.rows[-1] if one.rows else {} for one in code]
    settings, alike = _differences([_settings(row) for row in last])
    surroundings, also_alike = _differences([_surroundings(row) for row in last])
    sql = statements.variance(runs)
    few = len(runs) < _FEWEST_REPEATS
    return Comparison(
        runs=runs,
        summaries=Answered(found.sql, tuple(by_run.get(run, {}) for run in runs), found.reason),
        phases=tuple(ask(statements.of_run("phases", run)) for run in runs),
        settings=settings,
        surroundings=surroundings,
        alike=alike + also_alike,
        code=code,
        variance=Answered(sql, (), "fewer than three runs have no variance to tell") if few else ask(sql),
    )


def _settings(row: Row) -> Mapping[str, str]:
    found = dict(_texts(facts_in(row.get("config"))))
    return found | {f"label {name}": value for name, value in _texts(facts_in(row.get("labels"))).items()}


def _surroundings(row: Row) -> Mapping[str, str]:
    found = {name: _text(value) for name, value in row.items() if name not in _OF_THE_RUN and value is not None}
    for column, word in zip(_SURROUNDINGS, ("variable", "package", "determinism"), strict=True):
        found |= {f"{word} {name}": value for name, value in _texts(facts_in(row.get(column))).items()}
    return found


def _texts(facts: Mapping[str, object]) -> dict[str, str]:
    return {name: _text(value) for name, value in flat(facts)}


def _text(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


def _differences(every: list[Mapping[str, str]]) -> tuple[tuple[Difference, ...], int]:
    """Return what is not the same everywhere, by name, and how much is."""
    names = sorted({name for one in every for name in one})
    told = [Difference(name, tuple(one.get(name) for one in every)) for name in names]
    differing = tuple(one for one in told if len(set(one.values)) > 1)
    return differing, len(told) - len(differing)
