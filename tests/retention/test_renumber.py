"""Renumbering: a run that was recorded again under one name becomes attempts, and the lake is sound again."""

from datetime import timedelta

import pytest
from segments import DAY, step_rows

from ranklake import cli
from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import trail
from ranklake.lake.query.sql import query
from ranklake.lake.spool.spool import Spool
from ranklake.lake.status.reconciliation import balance
from ranklake.quality.check import run_checks
from ranklake.retention.renumber import NoRepeatError, renumber

LATER = DAY + timedelta(hours=1)


def lives(site):
    """Return who has how many steps in which attempt."""
    asked = (
        "SELECT attempt, rank, incarnation, count(*) AS n FROM steps WHERE run = 'r1' GROUP BY 1, 2, 3 ORDER BY 1, 2"
    )
    return [tuple(row.values()) for row in query(site.lake, asked).to_pylist()]


def test_lives_that_repeat_become_attempts(site):
    """Ranks of a life stay together, one that joined late, too; other runs are left alone; check and books hold."""
    for rank in (0, 1):
        site.bring(step_rows(20, rank=rank, incarnation=10 + rank))
    for rank in (0, 1, 2):  # the third was not there before
        start = LATER + timedelta(seconds=5 * rank)
        site.bring(step_rows(20, rank=rank, incarnation=20 + rank, start=start))
    site.bring(step_rows(5, run="other", incarnation=30))
    assert not run_checks(site.lake, ["steps"]).passed
    done = renumber(site.lake, "r1", "ann")
    assert (done.rows, dict(done.attempts)) == (60, {20: 1, 21: 1, 22: 1})
    assert lives(site) == [(0, 0, 10, 20), (0, 1, 11, 20), (1, 0, 20, 20), (1, 1, 21, 20), (1, 2, 22, 20)]
    assert run_checks(site.lake, ["steps"]).passed
    assert all(item.adds_up for item in balance(site.lake, Spool(str(site.spool)).listing()))
    assert [row["action"] for row in trail(site.lake)] == ["renumber", "renumbered"]
    assert verify(site.lake) is None
    with pytest.raises(NoRepeatError):
        renumber(site.lake, "r1", "ann")


def test_lives_that_go_on_stay_together(site):
    """An elastic launch starts ranks anew and counts no restart: where no step repeats, nothing is to be done."""
    site.bring(step_rows(20, incarnation=10))
    site.bring(step_rows(20, incarnation=11, segment=1, start=LATER))
    with pytest.raises(NoRepeatError, match="recorded twice"):
        renumber(site.lake, "r1", "ann")


def test_the_command_says_what_it_did(site, capsys):
    """And the failing check names it."""
    site.bring(step_rows(20, incarnation=10))
    site.bring(step_rows(20, incarnation=11, start=LATER))

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--lake", site.lake.uri])
        return ended.value.code, capsys.readouterr().out

    code, said = run("check")
    assert (code, "ranklake renumber RUN" in said) == (1, True)
    assert run("renumber", "r1") == (0, "plan 3: 20 rows of run r1 are attempt 1 now\n")
    assert run("check")[0] == 0
