"""Rows that come back, and roles of teams: whose a run was is told by rows of ``runs``, which may be in an archive."""

from datetime import timedelta

import pytest
from archiving import STEPS, archived
from governed import any_rows
from retaining import TODAY, days_ago
from segments import step_rows

from ranklake.insight.ask import ask
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.roles import Role
from ranklake.retention.archive.rehydration import approve, propose, rehydrate, select_archives, write_down

RUNS = "books: {where: {table: runs}, archive: {after_days: 30, to: TO}, reason: rarely read}"
COUNT = "SELECT run, count(*) AS n FROM steps GROUP BY run ORDER BY run"


def back(site, found, *tables):
    """Bring all archived rows of some tables back, by approval."""
    for table in tables:
        some = select_archives(site.lake.tables, table, days_ago(90).date(), TODAY)
        made = write_down(site.lake, some, TODAY + timedelta(days=7), "Ann", "an incident")
        propose(site.lake, made, "Ann")
        approve(site.lake, made.name, "Ada")
        rehydrate(site.lake, made.name, "Otto", found)


def of_run(site, run, team, age, incarnation):
    """Ingest a run of a team, and its steps."""
    site.bring(
        any_rows("runs", 1, run=run, incarnation=incarnation, team=[team], pid=[7], start=days_ago(age)),
        "runs",
        run=run,
    )
    site.bring(step_rows(5, run=run, incarnation=incarnation + 1, start=days_ago(age)), run=run)


def seen_by(site, *teams):
    """Return steps by run, as a role of some teams sees them with what came back."""
    role = Role("r", frozenset({"operational"}), frozenset({"steps"}), teams=frozenset(teams))
    return {row["run"]: row["n"] for row in ask(site.lake, COUNT, rehydrated=True, role=role).rows.to_pylist()}


def test_nobody_takes_a_run_whose_team_is_in_an_archive(site, archiving):
    """Who records the run anew as his own does not see what came back of it, as long as the rows that tell are away."""
    found = archiving(STEPS, RUNS)
    of_run(site, "r1", "vision", 40, 10)
    archived(site, found)
    back(site, found, "steps")
    of_run(site, "r1", "speech", 1, 20)
    for team in ("speech", "vision"):
        with pytest.raises(QueryError, match="told by rows of runs that are gone"):
            seen_by(site, team)
    back(site, found, "runs")
    assert seen_by(site, "speech") == {}
    assert seen_by(site, "vision", "speech") == {"r1": 10}


def test_a_team_sees_what_came_back_of_its_runs(site, archiving):
    """Rows of ``runs`` stay in the table, as they do by default."""
    found = archiving(STEPS)
    of_run(site, "r1", "vision", 40, 10)
    of_run(site, "r2", "speech", 40, 30)
    archived(site, found)
    back(site, found, "steps")
    assert seen_by(site, "vision") == {"r1": 5}
    assert seen_by(site, "speech") == {"r2": 5}
