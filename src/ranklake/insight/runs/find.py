"""Finds runs by job, status, team, labels, settings and time, in a useful order."""

import json
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import ARCHIVED, runs_named, runs_with_tags
from ranklake.insight.runs.asking import Ask, QueriedFacts, UnseenError
from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.query.literal import literal

SORTS: Final[Mapping[str, str]] = MappingProxyType(
    {
        "newest": "ts DESC",
        "oldest": "ts ASC",
        "status": "CASE status WHEN 'failed' THEN 0 WHEN 'abandoned' THEN 1 WHEN 'preempted' THEN 2 "
        "WHEN 'interrupted' THEN 3 WHEN 'running' THEN 4 WHEN 'imported' THEN 5 ELSE 6 END ASC",
        "loss": "last_loss_flag IS NOT NULL ASC, last_loss ASC",
        "tokens-per-s": "tokens_per_s DESC",
        "step-time": "mean_step_time_s DESC",
        "mfu": "mfu_ratio ASC",
        "goodput": "goodput_ratio ASC",
        "wall-time": "wall_ns DESC",
        "restarts": "restarts DESC",
    }
)
"""Orders by name: newest first for time, best first for loss and pace, worst first for ratios, step time and
failures."""

STATUSES: Final = ("failed", "abandoned", "preempted", "interrupted", "running", "imported", "finished")
_MOST_NAMES: Final = 5
_MOST_KNOWN: Final = 10_000


class NoSuchRunError(RanklakeError):
    """No run has the name, or several begin with it.

    Attributes
    ----------
    is_ambiguous
        Whether several runs begin with it.
    """

    is_ambiguous = False


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Conditions on runs, all of which must hold.

    Attributes
    ----------
    run
        Beginning of the name, or of the display name.
    job, status, team, user
        Equal to the last attempt's value, or for team and user to any attempt's; empty for all.
    labels, settings
        Labels and configuration values (``optimizer.lr`` for nested ones), as text by name.
    tags
        Tags with values; an empty value matches any.
    since, until
        Bounds of the run's start: inclusive; exclusive.
    among
        Names of the runs to look among; None for all.
    hides_archived
        Leaves archived runs out, unless `tags` ask for them.
    """

    run: str = ""
    job: str = ""
    status: str = ""
    team: str = ""
    user: str = ""
    labels: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, str] = field(default_factory=dict)
    tags: Mapping[str, str] = field(default_factory=dict)
    since: datetime | None = None
    until: datetime | None = None
    among: tuple[str, ...] | None = None
    hides_archived: bool = False


def find(ask: Ask, wanted: RunConditions, sort: str = "newest", limit: int | None = None) -> QueriedFacts:
    """Return one row per run, in an order of `SORTS`, with the columns of ``summary.sql``.

    Raises `UnseenError` if the role does not see summaries or columns of the conditions.
    """
    where, having = _conditions(wanted)
    if wanted.run:
        called = statements.run_condition(tuple(runs_named(ask, wanted.run)))
        where.append(f"(starts_with(run, {literal(wanted.run)}) OR {called})")
    if wanted.labels or wanted.settings:
        where.append(statements.run_condition(_runs_with(ask, wanted)))
    if wanted.tags:
        where.append(statements.run_condition(runs_with_tags(ask, wanted.tags)))
    if wanted.hides_archived and ARCHIVED not in wanted.tags and (hidden := runs_with_tags(ask, {ARCHIVED: ""})):
        where.append(f"NOT ({statements.run_condition(hidden)})")
    if wanted.among is not None:
        where.append(statements.run_condition(wanted.among))
    inner = statements.summaries(" AND ".join(where) or "TRUE", " AND ".join(having) or "TRUE")
    ending = f"ORDER BY {SORTS[sort]} NULLS LAST, ts DESC, run" + ("" if limit is None else f"\nLIMIT {limit}")
    return _check_visible(ask(f"SELECT *\nFROM ({inner}) AS runs\n{ending}\n"))


def find_run(ask: Ask, text: str) -> str:
    """Return the run of a name, or of a unique beginning of it. Raises `NoSuchRunError`."""
    begins = f"run = {literal(text)} OR starts_with(run, {literal(text)})"
    sql = f"SELECT DISTINCT run FROM run_summary WHERE {begins} ORDER BY run LIMIT {_MOST_KNOWN}"  # noqa: S608 - likewise
    answer = _check_visible(ask(sql))
    names = [str(row["run"]) for row in answer.rows] if text else []
    if text in names or len(names) == 1:
        return text if text in names else names[0]
    if not names and (called := runs_named(ask, text)):
        names = called
        if len(names) == 1:
            return names[0]
    if names:
        shown = ", ".join(names[:_MOST_NAMES]) + (", …" if len(names) > _MOST_NAMES else "")
        error = NoSuchRunError(
            f"{len(names)} runs begin with {text!r}, or are called so", hint=f"write more of the name: {shown}"
        )
        error.is_ambiguous = True
        raise error
    if text and ask(f"SELECT run FROM run_summary WHERE job = {literal(text)} LIMIT 1").rows:  # noqa: S608 - likewise
        raise NoSuchRunError(f"no run {text!r}", hint=f"it is a job: ranklake runs --job {shlex.quote(text)}")
    known = ask(f"SELECT run, max(ts) AS ts FROM run_summary GROUP BY run ORDER BY ts DESC LIMIT {_MOST_KNOWN}")  # noqa: S608 - likewise
    if not known.rows:
        raise NoSuchRunError(f"no run {text!r}: the lake tells of no run", hint="run 'ranklake pipeline' first")
    raise NoSuchRunError(f"no run {text!r}", hint=did_you_mean(text, [str(row["run"]) for row in known.rows]))


def _check_visible(answer: QueriedFacts) -> QueriedFacts:
    if answer.reason:
        raise UnseenError(answer.reason, hint="ask whoever keeps the roles for run_summary")
    return answer


def _conditions(wanted: RunConditions) -> tuple[list[str], list[str]]:
    """Return conditions on rows of run_summary, and on runs."""
    where, having = [], []
    if wanted.team:
        where.append(f"run IN (SELECT run FROM attempt_facts WHERE team = {literal(wanted.team)})")  # noqa: S608 - quoted
    if wanted.user:
        where.append(f'run IN (SELECT run FROM attempt_facts WHERE "user" = {literal(wanted.user)})')  # noqa: S608 - quoted
    if wanted.since is not None:
        where.append(f"date >= DATE '{wanted.since.date()}'")  # the day on which the run began, for pruning of files
        having.append(f"min(ts) >= {literal(wanted.since)}")
    if wanted.until is not None:
        where.append(f"date <= DATE '{wanted.until.date()}'")
        having.append(f"min(ts) < {literal(wanted.until)}")
    having += [
        f"last_value({name} ORDER BY attempt) = {literal(value)}"
        for name, value in (("job", wanted.job), ("status", wanted.status))
        if value
    ]
    return where, having


def _runs_with(ask: Ask, wanted: RunConditions) -> tuple[str, ...]:
    """Return the runs whose labels and settings match. JSON is parsed here, after SQL excluded most rows."""
    asked = [("labels", name) for name in wanted.labels] + [("config", name.split(".")[-1]) for name in wanted.settings]
    # Names that JSON does not escape can be searched in its text; for others all rows are parsed.
    holds = [f"strpos({column}, {literal(name)}) > 0" for column, name in asked if json.dumps(name) == f'"{name}"']
    answer = ask(f"SELECT DISTINCT run, labels, config FROM runs WHERE {' AND '.join(holds) or 'TRUE'}")  # noqa: S608 - quoted
    if answer.reason:
        raise UnseenError(answer.reason, hint="ask whoever keeps the roles for runs")
    return tuple(
        sorted(
            {
                row["run"]
                for row in answer.rows
                if _matches_facts(facts_in(row["labels"]), wanted.labels)
                and _matches_facts(facts_in(row["config"]), wanted.settings)
            }
        )
    )


def _matches_facts(facts: Mapping[str, object], wanted: Mapping[str, str]) -> bool:
    return all(said_equal(value_of(facts, name), value) for name, value in wanted.items())


def value_of(facts: Mapping[str, object], name: str) -> object:
    """Return a value by its name, else by a path of nested names; None if there is none."""
    if name in facts:
        return facts[name]
    head, dot, rest = name.partition(".")
    inner = facts.get(head)
    return value_of(inner, rest) if dot and isinstance(inner, dict) else None


def said_equal(value: object, text: str) -> bool:
    """Whether a value equals typed text: texts by characters, numbers by value."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() == text.lower() and value is not None
    if isinstance(value, (int, float)):
        try:
            return float(text) == float(value)
        except (ValueError, OverflowError):
            return False
    return isinstance(value, str) and value == text


def flat(facts: Mapping[str, object], above: str = "") -> Iterable[tuple[str, object]]:
    """Yield names and values of an object, nested ones as ``outer.inner``."""
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
