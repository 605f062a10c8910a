"""Facts of the report about runs: a list of all, a page for each of the latest, and digests of pages."""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from importlib.resources import files
from typing import TYPE_CHECKING, Final

from ranklake.insight.ended_metrics import EndedMetric, ended_metrics
from ranklake.insight.runs import statements
from ranklake.insight.runs.annotations import Annotations, annotations_of_each
from ranklake.insight.runs.asking import Ask, QueriedFacts, asking
from ranklake.insight.runs.caveats import Caveats, caveats
from ranklake.insight.runs.compare import Changes, changes
from ranklake.insight.runs.curves import Curves, curves
from ranklake.insight.runs.facts import RunFacts, gather
from ranklake.insight.runs.find import RunConditions, find, find_run
from ranklake.insight.runs.media import Media, media
from ranklake.insight.runs.slowdown import Cause, slowdown_cause
from ranklake.lake.rollups.life.series import continuous

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

MOST_LISTED: Final = 500
MOST_PAGES: Final = 50
"""Number of the latest runs that have their own page."""


MOST_LINES: Final = 300
MOST_CHARACTERS: Final = 500
"""Most log lines of a page, and characters of a message: together less than a third of a megabyte."""
NO_LINES: Final = "messages hold what people wrote, so only pages for a role that sees them have them"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunQuestions:
    """Common inputs of the pages of runs.

    Attributes
    ----------
    units
        Units of metrics by name.
    scalars
        Replacement for that table, in which renamed metrics continue under one name.
    is_for_role
        Whether the pages are for a role, or no roles exist; then they show log lines, as the role sees them.
    ended
        Ended metrics of the lake.
    ask, why
        Functions for queries of pages: SQL; and causes of a run's slowness.
    """

    units: Mapping[str, str]
    scalars: str
    is_for_role: bool
    ended: tuple[EndedMetric, ...]
    ask: Ask = field(repr=False)
    why: Callable[[str], Cause] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunsState(RunQuestions):
    """Runs of a lake, and the common inputs of their pages.

    Attributes
    ----------
    lake
        Last part of its location.
    totals
        Counts of all runs, in one row.
    listed
        The latest runs, one row each; at most `MOST_LISTED`.
    caveats
        Caveats of their numbers.
    annotations, teams
        Their names and tags; the team that each is charged to.
    marks
        Runs that have a page, each with a digest of the page's facts.
    """

    lake: str
    totals: QueriedFacts
    listed: QueriedFacts
    caveats: Caveats
    annotations: Mapping[str, Annotations]
    teams: Mapping[str, str]
    marks: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class RunState:
    """One run.

    Attributes
    ----------
    facts, curves
        Its facts, and its curves by step.
    changes
        Changes since its previous attempt, and since the previous run of its job.
    lines
        Its log lines, errors first, at most `MOST_LINES`; only for a role, since they are free text.
    media
        Its media: for a role as it sees them, else without personal data.
    """

    facts: RunFacts
    curves: Curves
    changes: tuple[Changes, ...]
    lines: QueriedFacts
    media: Media


def run_questions(lake: "Lake", role: "Role | None" = None, *, has_roles: bool = True) -> RunQuestions:
    """Return the common inputs of pages of runs, for a role.

    If no roles are defined (`has_roles`), pages show everything. For a role, metrics keep their recorded names, since
    replacements may come from runs of others.
    """
    ask = asking(lake, role) if role is None else cache(asking(lake, role))
    return RunQuestions(
        units={name: metric.unit for name, metric in lake.catalog.metrics().items()},
        scalars=continuous(lake) if role is None else "scalars",
        is_for_role=role is not None or not has_roles,
        ended=ended_metrics(lake, role),
        ask=ask,
        why=partial(slowdown_cause, lake, ask, role=role),
    )


def runs_state(
    lake: "Lake", run: str = "", role: "Role | None" = None, *, has_roles: bool = True, is_served: bool = False
) -> RunsState:
    """Return the state of a lake's runs; `run`, a name or the beginning of one, has a page in any case.

    `role` and `has_roles` as for `run_questions`. If pages are served (`is_served`), every listed run has one, and
    digests are empty, since pages are not stored.

    Raises `ranklake.insight.runs.find.NoSuchRunError`, `ranklake.insight.runs.asking.UnseenError` for a role that does
    not see summaries of runs, and what queries raise.
    """
    questions = run_questions(lake, role, has_roles=has_roles)
    ask = questions.ask
    listed = find(ask, RunConditions(hides_archived=True), "newest", MOST_LISTED)
    latest = [str(row["run"]) for row in listed.rows[:MOST_PAGES]]
    chosen = tuple(dict.fromkeys([*latest, *([find_run(ask, run)] if run else [])]))
    all_runs = tuple(dict.fromkeys([*(str(row["run"]) for row in listed.rows), *chosen]))
    return RunsState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        totals=ask(statements.totals()).seen(),
        listed=listed,
        caveats=caveats(ask, [str(row["run"]) for row in listed.rows]),
        annotations=annotations_of_each(ask, all_runs)[0],
        teams={
            str(row["run"]): str(row["team"]) for row in ask(statements.teams(statements.run_condition(all_runs))).rows
        },
        marks=dict.fromkeys(all_runs, "") if is_served else _marks_of(questions, chosen, role, has_roles=has_roles),
        units=questions.units,
        scalars=questions.scalars,
        is_for_role=questions.is_for_role,
        ended=questions.ended,
        ask=ask,
        why=questions.why,
    )


def run_state(ask: Ask, run: str, scalars: str = "scalars", *, is_for_role: bool = False) -> RunState:
    """Return all facts about a run; `scalars` and `is_for_role` as for `RunsState`."""
    facts = gather(ask, run)
    lines = statements.of_run("lines", run, most=MOST_LINES, characters=MOST_CHARACTERS)
    return RunState(
        facts=facts,
        curves=curves(ask, run, facts.summary.first_row.get("rank_steps") or 0, scalars),
        changes=changes(ask, run, facts.code),
        lines=ask(lines) if is_for_role else QueriedFacts(lines, (), NO_LINES),
        media=media(ask, run, is_for_role=is_for_role),
    )


def _marks_of(
    questions: RunQuestions, runs: tuple[str, ...], role: "Role | None", *, has_roles: bool
) -> dict[str, str]:
    if role is None:
        return _marks(questions.ask, runs, f"{questions.scalars} {questions.ended!r} {has_roles}")
    return {run: _seen_mark(questions, run) for run in runs}


def _marks(ask: Ask, runs: tuple[str, ...], scalars: str) -> dict[str, str]:
    """Return a digest of the inputs of each run's page.

    New rows of a run show in its segments, and new rollups in its summaries or device samples. Plans that change stored
    rows are rare, and change all digests.
    """
    condition = statements.run_condition(runs)
    parts_of: dict[str, list[str]] = {run: [] for run in runs}
    for sql in (
        statements.marks(condition),
        statements.samples_sql(runs),
        statements.summaries(condition),
        statements.run_ends_sql(condition),
        statements.previous_runs_sql(condition),
        statements.incident_marks(condition),
    ):
        for row in ask(sql).rows:
            parts_of[row["run"]].append(repr(sorted(row.items())))
    for run, failed in caveats(ask, runs).failed.items():
        parts_of[run].append(repr(failed))
    changes = [ask(sql).rows for sql in (statements.rewrites(), statements.verifications_sql())]
    prefix = f"{_questions_digest()} {scalars} {changes!r}"
    return {run: hashlib.sha256("\n".join([prefix, *parts]).encode()).hexdigest() for run, parts in parts_of.items()}


def _seen_mark(questions: RunQuestions, run: str) -> str:
    """Return a digest of the role's view of a page: a digest of hidden data would let the role guess it."""
    facts = (run_state(questions.ask, run, is_for_role=True), questions.why(run), questions.ended)
    return hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()


def _questions_digest() -> str:
    """Return a digest of all queries and of the code that uses their answers."""
    texts = sorted(
        one.read_bytes() for one in files("ranklake.insight.runs").iterdir() if one.name.endswith((".sql", ".py"))
    )
    return hashlib.sha256(b"".join(texts)).hexdigest()
