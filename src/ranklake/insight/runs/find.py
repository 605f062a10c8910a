"""Finds runs: by job, status, team, labels, settings and time, in an order that puts first what one looks for."""

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
"""Orders by name: of time the newest first, of loss and pace the best, of ratios, step time and failures the worst."""

STATUSES: Final = ("failed", "abandoned", "preempted", "interrupted", "running", "imported", "finished")
_MOST_NAMES: Final = 5
_MOST_KNOWN: Final = 10_000


class NoSuchRunError(RanklakeError):
    """No run has the name, or several begin with it.

    Attributes
    ----------
    is_ambiguous
        Whether several do.
    """

    is_ambiguous = False


@dataclass(frozen=True, slots=True)
class RunConditions:
    """Which runs to find: those that meet every condition.

    Attributes
    ----------
    run
        What the name begins with, or the name for people.
    job, status, team, user
        Equal to that of the run's last attempt, or for team and user to that of any; empty for all.
    labels, settings
        Labels, and values of the configuration (``optimizer.lr`` for one within another), as text by name.
    tags
        Tags that it has, each with its value; an empty value stands for any.
    since, until
        The run began then or later; earlier.
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
    """Return a row a run, in an order of `SORTS`; each row has the columns of ``summary.sql``.

    Raises `UnseenError` where the role sees neither summaries nor what the conditions are about.
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
    """Return the one run with a name, or whose name begins so. Raises `NoSuchRunError`."""
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
        where.append(
            f"date >= DATE '{wanted.since.date()}'"
        )  # the day on which the run began: files are left out by it
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
    """Return the runs whose labels and settings are as wanted: JSON is read here, after SQL left out most of it."""
    asked = [("labels", name) for name in wanted.labels] + [("config", name.split(".")[-1]) for name in wanted.settings]
    # What JSON writes as it is can be looked for in it; of other names all is read.
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
    """Return a value by its name, else by the names that lead to it; None where there is none."""
    if name in facts:
        return facts[name]
    head, dot, rest = name.partition(".")
    inner = facts.get(head)
    return value_of(inner, rest) if dot and isinstance(inner, dict) else None


def said_equal(value: object, text: str) -> bool:
    """Whether a value is what somebody typed: text by its letters, numbers by what they are worth."""
    if isinstance(value, bool) or value is None:
        return str(value).lower() == text.lower() and value is not None
    if isinstance(value, (int, float)):
        try:
            return float(text) == float(value)
        except (ValueError, OverflowError):
            return False
    return isinstance(value, str) and value == text


def flat(facts: Mapping[str, object], above: str = "") -> Iterable[tuple[str, object]]:
    """Yield names and values of an object, those of objects within it under ``outer.inner``."""
    for name, value in facts.items():
        if isinstance(value, dict) and value:
            yield from flat(value, f"{above}{name}.")
        else:
            yield f"{above}{name}", value
