"""Renumbering: a run that was recorded again under one name becomes attempts, and the lake is sound again."""

from datetime import timedelta

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from segments import DAY, step_rows

from ranklake import cli
from ranklake.lake.audit.proof import verify
from ranklake.lake.audit.trail import trail
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.query.sql import query
from ranklake.quality.check import run_checks
from ranklake.retention.corrections import NoRepeatError, OneLifeError, UnknownRunError, renumber

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
    assert [row["action"] for row in trail(site.lake.tables)] == ["renumber", "renumbered"]
    assert verify(site.lake) is None
    with pytest.raises(NoRepeatError):
        renumber(site.lake, "r1", "ann")


def test_lives_that_go_on_stay_together(site):
    """An elastic launch starts ranks anew and counts no restart: where no step repeats, nothing is to be done."""
    site.bring(step_rows(20, incarnation=10))
    site.bring(step_rows(20, incarnation=11, segment=1, start=LATER))
    with pytest.raises(NoRepeatError, match="recorded twice"):
        renumber(site.lake, "r1", "ann")


def anew(rows):
    """Return the rows of a life whose steps begin anew half-way, as where each epoch counts from 0."""
    at = rows.schema.get_field_index("step")
    half = pa.scalar(rows.num_rows // 2, pa.int64())
    numbers = pc.if_else(pc.greater_equal(rows["step"], half), pc.subtract(rows["step"], half), rows["step"])
    return rows.set_column(at, rows.schema.field(at), numbers)


def test_a_life_that_counts_anew_cannot_be_parted(site, run):
    """Steps of one life that repeat are told, with what to do; no plan and no audit row is written, again and again."""
    site.bring(anew(step_rows(20, incarnation=10)))
    before = last_finished(site.lake.tables)
    for _ in range(2):
        with pytest.raises(OneLifeError, match=r"one life recorded 10 steps of a rank twice; .* count steps on"):
            renumber(site.lake, "r1", "ann")
    assert (last_finished(site.lake.tables), trail(site.lake.tables)) == (before, [])
    code, said = run("check")
    assert (code, "renumber" in said) == (1, False)
    assert "twice within one life, whose numbers began anew: r1; no attempt can part them" in said
    assert run("renumber", "r1")[0] == 1


def test_what_can_be_parted_is_parted_once(site, run):
    """Where one life counts anew and another repeats it, the lives are parted; the rest is told, and left."""
    site.bring(anew(step_rows(20, incarnation=10)))
    site.bring(step_rows(5, incarnation=11, start=LATER))
    code, said = run("renumber", "r1")
    assert (code, said.splitlines()[0]) == (1, "plan 3: 5 rows of run r1 are attempt 1 now")
    assert said.splitlines()[1].startswith("10 steps are still there twice, each in one life")
    assert lives(site) == [(0, 0, 10, 20), (1, 0, 11, 5)]
    with pytest.raises(OneLifeError):
        renumber(site.lake, "r1", "ann")


def test_attempts_are_those_that_rows_have_now(site):
    """A life that was renumbered is of its new attempt: one recorded under that number later is parted from it."""
    site.bring(step_rows(20, incarnation=10))
    site.bring(step_rows(20, incarnation=11, start=LATER))
    renumber(site.lake, "r1", "ann")
    site.bring(step_rows(20, incarnation=12, start=LATER + timedelta(hours=1), attempt=1))
    assert dict(renumber(site.lake, "r1", "ann").attempts) == {12: 2}
    assert lives(site) == [(0, 0, 10, 20), (1, 0, 11, 20), (2, 0, 12, 20)]
    with pytest.raises(NoRepeatError, match="nothing to renumber"):
        renumber(site.lake, "r1", "ann")


def test_a_run_that_is_not_there_is_named(site):
    """Nobody takes a misspelt name for a run in which all is well."""
    site.bring(step_rows(3, run="mistral"))
    with pytest.raises(UnknownRunError, match="mistrl: there is no such run in the lake; did you mean 'mistral'"):
        renumber(site.lake, "mistrl", "ann")


@pytest.fixture
def run(site, capsys):
    """Call a command on the lake; gives its exit code and what it printed."""

    def called(*arguments):
        with pytest.raises(SystemExit) as ended:
            cli.main([*arguments, "--lake", site.lake.uri])
        return ended.value.code, capsys.readouterr().out

    return called


def test_the_command_says_what_it_did(site, run):
    """And the failing check names it."""
    site.bring(step_rows(20, incarnation=10))
    site.bring(step_rows(20, incarnation=11, start=LATER))
    code, said = run("check")
    assert (code, "ranklake renumber RUN" in said) == (1, True)
    assert run("renumber", "r1") == (0, "plan 3: 20 rows of run r1 are attempt 1 now\n")
    assert run("check")[0] == 0
