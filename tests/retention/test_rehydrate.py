"""Archived rows that come back: by approval, under today's names, as roles may see them, until a day."""

from datetime import date, timedelta

import pytest
from archiving import STEPS, archived, data_files
from governed import any_rows
from people import OLD, with_keys
from retaining import CONTRACTS, TODAY, bring_days, days_ago, with_period
from segments import step_rows

from ranklake.insight.ask import ask
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.migrations.applying import apply as migrate
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.query.roles import Role
from ranklake.retention.archive.place import ArchiveError
from ranklake.retention.archive.register import archives, examine
from ranklake.retention.archive.rehydrated import rehydrated_archives, remove_expired
from ranklake.retention.archive.rehydration import (
    RehydrationError,
    approve,
    end,
    propose,
    rehydrate,
    select_archives,
    write_down,
)
from ranklake.retention.erasure.apply import apply as erase
from ranklake.retention.erasure.apply import approve as approve_erasure
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.plan import make_plan
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.purge import expired_names
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.proposals import NotApprovedError, SameOperatorError

EMAIL = "ada@analytical.example"
UNTIL = TODAY + timedelta(days=7)
COUNT = "SELECT count(*) AS n FROM steps"


def asked_for(site, until=UNTIL, by="Ann Author"):
    """Propose to bring back all that is archived of steps."""
    some = select_archives(site.lake.tables, "steps", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, until, by, "an incident")
    propose(site.lake, made, by)
    return made


def rows_of(site, *, back=True, role=None, text=COUNT):
    """Return the rows of a query."""
    return ask(site.lake, text, rehydrated=back, role=role).rows.to_pylist()


@pytest.fixture
def cold(site, archiving):
    """Give the policies of a site whose rows of one date are archived, and those of another are not."""
    found = archiving(STEPS)
    bring_days(site, (40, 10))
    archived(site, found)
    return found


def test_rows_come_back_beside_their_table(site, cold):
    """Whoever asks for them sees them; the table, its books, and who does not ask, do not."""
    before = site.keys()
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    done = rehydrate(site.lake, made.name, "Otto", cold)
    assert (done.rows, done.until) == (10, UNTIL)
    assert rows_of(site) == [{"n": 20}]
    assert rows_of(site, back=False) == [{"n": 10}]
    text = "SELECT date, count(*) AS n, min(rank) AS low FROM steps GROUP BY date ORDER BY date"
    assert [row["date"] for row in rows_of(site, text=text)] == [days_ago(40).date(), days_ago(10).date()]
    assert site.keys() == before
    assert site.balances()["steps"].retired == 10
    assert removal_faults(site.lake) == []
    assert rehydrate(site.lake, made.name, "Otto", cold) == done


def test_without_approval_nothing_comes_back(site, cold):
    """Neither unapproved, nor approved by its author, are rows stored anywhere."""
    made = asked_for(site)
    with pytest.raises(NotApprovedError):
        rehydrate(site.lake, made.name, "Otto", cold)
    with pytest.raises(SameOperatorError):
        approve(site.lake, made.name, "Ann Author")
    assert rehydrated_archives(site.lake.store) == []
    assert not list((site.folder / "lake").rglob("rehydrated/**/*.parquet"))
    assert rows_of(site) == [{"n": 10}]


@pytest.mark.parametrize(
    ("later_days", "run", "shown"),
    [(0, "kept", f"by {EMAIL}"), (15, "kept", "by [redacted]"), (15, "held", f"by {EMAIL}")],
    ids=["not due yet", "due since", "due since, and held"],
)
def test_masks_that_came_due_while_rows_were_archived_hold(site, archiving, later_days, run, shown):
    """Rows come back masked as their table would show them by that day; what a legal hold keeps is not."""
    found = archiving(
        "cold: {where: {table: logs}, archive: {after_days: 5, to: TO}, reason: rarely read}",
        "shy: {where: {table: logs, column: message}, mask_after_days: 20, reason: names are not needed}",
    )
    site.bring(any_rows("logs", 1, run=run, start=days_ago(10), message=[f"by {EMAIL}"]), "logs")
    archived(site, found)
    if run == "held":
        set_hold(site.lake, ["run=held"], "a claim", date(2999, 1, 1), "Lee Legal")
    day = TODAY + timedelta(days=later_days)
    some = select_archives(site.lake.tables, "logs", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, day + timedelta(days=7), "Ann Author", "an incident")
    propose(site.lake, made, "Ann Author")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", found, today=day)
    assert rows_of(site, text="SELECT message FROM logs") == [{"message": shown}]
    raw = b"".join(path.read_bytes() for path in (site.folder / "lake/rehydrated").rglob("*.parquet"))
    assert (EMAIL.encode() in raw) == (EMAIL in shown)


def test_what_the_policy_lets_go_freely_needs_no_approval(site, archiving):
    """Of such a rule a proposal is enough; a rule of today that asks for an approval is obeyed."""
    free = archiving(STEPS.replace("to: TO", "to: TO, rehydrate: free"))
    bring_days(site, (40,))
    archived(site, free)
    made = asked_for(site)
    with pytest.raises(NotApprovedError):
        rehydrate(site.lake, made.name, "Otto", archiving(STEPS))
    assert rehydrate(site.lake, made.name, "Otto", free).rows == 10


def test_they_go_on_their_day_and_before(site, cold):
    """On the day nothing is seen any more, and the next command deletes it; 'end' does so at once."""
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", cold)
    assert end(site.lake, made.name, "Otto") == 2
    assert rows_of(site) == [{"n": 10}]
    rehydrate(site.lake, made.name, "Otto", cold)
    assert remove_expired(site.lake.store, UNTIL) == [made.name]
    assert not list((site.folder / "lake").rglob("rehydrated/**/*.parquet"))
    with pytest.raises(RehydrationError, match="until"):
        rehydrate(site.lake, made.name, "Otto", cold, today=UNTIL)


@pytest.mark.parametrize("days", [0, 400])
def test_the_day_must_be_near(site, cold, days):
    """Today, and for years, nothing comes back."""
    with pytest.raises(RehydrationError, match="cannot come back"):
        asked_for(site, TODAY + timedelta(days=days))


def test_a_damaged_archive_brings_nothing_back(site, cold, tmp_path):
    """It is named, and nothing can be asked for."""
    (file,) = data_files(tmp_path / "archive")
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    with pytest.raises(ArchiveError, match="differ from the digest"):
        rehydrate(site.lake, made.name, "Otto", cold)
    assert rows_of(site) == [{"n": 10}]


def test_roles_see_what_they_see_of_the_table(site, cold):
    """A role's rows and columns are those of the table, whichever rows come back."""
    site.bring(step_rows(3, run="r2", incarnation=8, segment=0, start=days_ago(1)), run="r2", incarnation=8)
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", cold)
    classes = frozenset({"operational"})
    outsider = Role("outsider", classes, frozenset({"steps"}), where={"steps": "run = 'r2'"})
    assert rows_of(site, role=outsider) == [{"n": 3}]
    insider = Role("insider", classes, frozenset({"steps"}), where={"steps": "run = 'r1'"})
    assert rows_of(site, role=insider) == [{"n": 20}]


@pytest.mark.slow
def test_they_come_back_under_todays_names(site, cold, changed):
    """A column that was renamed after the archive was made has its name of today, and its values."""
    changed.earlier()
    text = "SELECT sum(tokens) AS total FROM steps"
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", cold)
    before = rows_of(site, text=text)
    changed.later()

    def rename(facts):
        next(one for one in facts["columns"] if one["name"] == "tokens")["name"] = "tokens_seen"

    changed.migrate("steps", rename)
    migrate(site.lake, InProcess(), "Mia Migrator")
    with pytest.raises(Exception, match="came back under version"):
        rows_of(site, text=text.replace("tokens", "tokens_seen"))
    rehydrate(site.lake, made.name, "Otto", cold)
    assert rows_of(site, text=text.replace("tokens", "tokens_seen")) == before
    assert [one.contract_version for one in archives(site.lake.tables)] == [CONTRACTS["steps"].version]


@pytest.mark.slow
def test_a_person_is_erased_from_archives_and_what_came_back(site, archiving):
    """In no byte of an archive, of rows that came back, of the lake; other rows are archived as they were."""
    found = archiving("cold: {where: {table: logs}, archive: {after_days: 10, to: TO}, reason: old}")
    texts = ["by Ada Lovelace", "by nobody", "mail ada@example.org", "by Grace Hopper"]
    site.bring(any_rows("logs", 4, start=days_ago(20), message=texts), "logs")
    archived(site, found)
    some = select_archives(site.lake.tables, "logs", days_ago(30).date(), TODAY)
    made = write_down(site.lake, some, UNTIL, "Ann Author")
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", found)
    places = {one.place for one in search(site.lake, None, ["ada@example.org"]).traces}
    assert {"archives", "rows that came back from archives"} <= places
    subject = subject_of(site.lake, ["Ada Lovelace", "ada@example.org"])
    reach = Reach(site.lake, Spool(str(site.spool)))
    erasure = make_plan(reach, subject)
    approve_erasure(site.lake, erasure.name, "Ada Approver", "as asked")
    done = erase(reach, erasure.name, subject, "Otto Operator")
    assert done.certificate.is_clean
    for path in site.folder.rglob("*"):
        assert not path.is_file() or b"ada@example.org" not in path.read_bytes()
    (one,) = archives(site.lake.tables)
    assert one.rows == 2
    assert [looked.faults for looked in examine(site.lake.store, [one])] == [()]
    rehydrate(site.lake, made.name, "Otto", found)
    text = "SELECT message FROM logs ORDER BY message"
    assert [row["message"] for row in rows_of(site, text=text)] == ["by Grace Hopper", "by nobody"]


def test_copies_go_with_an_archive_that_ends(site, cold):
    """Rows that no rule keeps any longer are not seen until the day for which they were brought back."""
    made = asked_for(site)
    approve(site.lake, made.name, "Ada Approver")
    rehydrate(site.lake, made.name, "Otto", cold)
    assert rows_of(site) == [{"n": 20}]
    archived(site, with_period("raw", 35, cold))
    assert expired_names(site.lake.tables, dry_run=True) == [made.name]
    assert rows_of(site) == [{"n": 20}]
    assert expired_names(site.lake.tables) == [made.name]
    assert rows_of(site) == [{"n": 10}]
    assert rehydrated_archives(site.lake.store) == []


def test_a_masked_column_without_values_stops_nobody(site, archiving, tmp_path):
    """A file of rows that have none lacks the column; they come back, and the others are masked."""
    with_keys(site, tmp_path, OLD)
    cold = "cold: {where: {table: runs}, archive: {after_days: 20, to: TO}, reason: rarely read}"
    site.bring(any_rows("runs", 3, start=days_ago(40), user=["ada"] * 3), "runs")
    archived(site, archiving(cold))
    rule = "people: {where: {table: runs, column: [user, git_patch]}, mask_after_days: 30, reason: enough}"
    some = select_archives(site.lake.tables, "runs", days_ago(90).date(), TODAY)
    made = write_down(site.lake, some, UNTIL, "Ann Author")
    approve(site.lake, made.name, "Ada Approver")
    assert rehydrate(site.lake, made.name, "Otto", archiving(cold, rule)).rows == 3
    shown = rows_of(site, text='SELECT DISTINCT "user", git_patch FROM runs')
    assert [(row["user"][:2], row["git_patch"]) for row in shown] == [("p-", None)]


def test_a_hold_over_archived_rows_keeps_a_person(site, archiving):
    """Evidence in an archive is evidence: nothing of the person goes."""
    found = archiving("cold: {where: {table: logs}, archive: {after_days: 10, to: TO}, reason: old}")
    site.bring(any_rows("logs", 1, start=days_ago(20), message=["mail ada@example.org"]), "logs")
    archived(site, found)
    set_hold(site.lake, ["run=r1"], "a case", TODAY + timedelta(days=99), "Lee Gal")
    with pytest.raises(HeldError):
        make_plan(Reach(site.lake, Spool(str(site.spool))), subject_of(site.lake, ["ada@example.org"]))
