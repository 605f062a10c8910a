"""Plan, approve, apply: exactly what is old goes, once, and only when somebody approved it."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pytest
from governed import Site, any_rows, die_before
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from retaining import (
    APPROVER,
    CONTRACTS,
    POLICIES,
    TODAY,
    agree,
    bring_days,
    carry_out,
    days_ago,
    plan,
    with_period,
    written_on,
)
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import verify
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.plan import last_finished, read_plan
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.limits import Limits
from ranklake.lake.tables.commit import replace_partitions
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.plans.plan import make_plan
from ranklake.retention.proposals.proposals import NotApprovedError, UnknownProposalError, VoidProposalError
from ranklake.retention.proposals.retention_plans import register
from ranklake.retention.report.facts import waiting


def ages(site):
    return sorted({(TODAY - row["date"]).days for row in site.rows("steps")})


def test_nothing_is_due(site):
    """A lake without old rows, and one without rows, has nothing to plan, and nothing is written."""
    assert plan(site) is None
    bring_days(site, [0, 90])
    assert plan(site) is None
    assert delta_table(site.lake.store, "retention_plans") is None


def test_a_plan_says_what_would_go_and_why(site):
    """Partitions older than the period are listed with rows, bytes, files, class and reason; younger are not."""
    bring_days(site, [0, 90, 91, 200, 200])
    made = plan(site)
    assert [(item.table, (TODAY - item.partition_date).days, item.rows, item.files) for item in made.items] == [
        ("steps", 200, 20, 2),
        ("steps", 91, 10, 1),
    ]
    (item, _) = made.items
    assert (item.retention_class, item.period_days, item.cutoff_date) == ("raw", 90, TODAY - timedelta(days=90))
    assert item.reason == POLICIES.rule("raw").reason
    assert item.bytes == sum(
        path.stat().st_size for path in (site.folder / f"lake/tables/steps/date={item.partition_date}").iterdir()
    )
    assert (made.state, made.rows, made.files) == ("planned", 30, 3)
    assert site.balances()["steps"].stored == 50, "a plan changes nothing"


def test_merging_leaves_a_plan_as_it_is(site):
    """A plan that was made and approved before files were merged still says what goes, and nothing of it is left."""
    bring_days(site, [0, 91, 91, 91])
    made = plan(site)
    agree(site, made.name)
    assert merge_small(site.lake, InProcess(), thorough=True).files_before >= 3
    old = site.folder / f"lake/tables/steps/date={made.items[0].partition_date}"
    assert len(list(old.iterdir())) == 4
    assert plan(site).name == made.name
    carry_out(site, made.name)
    assert list(old.iterdir()) == []
    assert ages(site) == [0]
    assert site.balances()["steps"].retired == 30


def test_equal_content_is_one_plan_written_once(site):
    """Planning again writes nothing; another day with the same items is the same plan; other items are another."""
    bring_days(site, [10, 200])
    first = plan(site)
    version = delta_table(site.lake.store, "retention_plans").version()
    assert plan(site) == first
    assert plan(site, TODAY + timedelta(days=1)).name == first.name
    assert delta_table(site.lake.store, "retention_plans").version() == version
    assert plan(site, TODAY + timedelta(days=81)).name != first.name
    bring_days(Site(site.folder / "other"), [10, 200])
    assert plan(Site(site.folder / "other")).name != first.name


def test_classes_have_their_own_periods(site):
    """Tables of other classes go by their own policies, derived and system tables among them; the books never go."""
    site.bring(any_rows("logs", 3, start=days_ago(31)), "logs")
    site.bring(any_rows("runs", 1, start=days_ago(31), incarnation=9), "runs")
    site.bring(step_rows(3, start=days_ago(31), incarnation=8))
    assert {item.table for item in plan(site).items} == {"logs"}
    far = plan(site, TODAY + timedelta(days=20_000))
    assert {item.table for item in far.items} == {"logs", "runs", "steps"}


def test_apply_removes_exactly_the_plan_bytes_and_all(site):
    """Planned partitions are gone from table and disk, the rest is as it was, and the books add up."""
    bring_days(site, [0, 90, 91, 200, 200])
    before = set((site.folder / "lake/tables/steps").rglob("*.parquet"))
    made = plan(site)
    agree(site, made.name)
    done, fresh = carry_out(site, made.name)
    assert (fresh, done.state, done.plan) == (True, "applied", last_finished(site.lake.tables))
    assert ages(site) == [0, 90]
    gone = before - set((site.folder / "lake/tables/steps").rglob("*.parquet"))
    assert {path.parent.name for path in gone} == {f"date={item.partition_date}" for item in made.items}
    assert len(gone) == 3
    balance = site.balances()["steps"]
    assert (balance.recorded, balance.stored, balance.retired) == (50, 20, 30)
    assert plan(site) is None


@pytest.mark.slow
@settings(max_examples=6, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    spread=st.lists(st.integers(0, 400), min_size=1, max_size=6),
    period=st.integers(1, 300),
    later=st.integers(0, 100),
)
def test_what_is_older_goes_and_nothing_else(tmp_path_factory, spread, period, later):
    """For any ages, period and day: after apply no row older than the period is left, and no younger one is missing."""
    site = Site(tmp_path_factory.mktemp("ages"))
    bring_days(site, spread, rows=2)
    day, policies = TODAY + timedelta(days=later), with_period("raw", period)
    made = plan(site, day, policies)
    old = {age for age in spread if age + later > period}
    assert {(TODAY - item.partition_date).days for item in made.items} == old if made else not old
    if made:
        agree(site, made.name)
        carry_out(site, made.name, day, policies)
    assert ages(site) == sorted(set(spread) - old)
    balance = site.balances()["steps"]
    assert (balance.stored, balance.retired) == tuple(
        2 * sum((age in old) is want for age in spread) for want in (False, True)
    )


def test_nothing_goes_without_approval(site):
    """A plan that nobody approved is refused, and nothing is changed, not even a plan's number taken."""
    bring_days(site, [200])
    made = plan(site)
    before = last_finished(site.lake.tables)
    with pytest.raises(NotApprovedError, match="ranklake retain approve"):
        carry_out(site, made.name)
    assert last_finished(site.lake.tables) == before
    assert read_plan(site.lake.store, before + 1) is None
    assert ages(site) == [200]
    assert audit.trail(site.lake.tables) == []


def test_an_unknown_plan_is_refused(site):
    """With the nearest name; or with how to make one."""
    with pytest.raises(UnknownProposalError, match="ranklake retain plan"):
        carry_out(site, "rp-0")
    bring_days(site, [200])
    made = plan(site)
    for call in (carry_out, agree):
        with pytest.raises(UnknownProposalError, match=f"did you mean '{made.name}'"):
            call(site, made.name[:-1])


def test_a_partition_that_changed_makes_the_plan_void(site):
    """Late rows in a planned partition: refused, nothing removed, plan again."""
    bring_days(site, [100, 200])
    made = plan(site)
    agree(site, made.name)
    site.bring(step_rows(5, segment=9, incarnation=9, start=days_ago(100)))
    with pytest.raises(VoidProposalError, match="has other files than planned; plan again"):
        carry_out(site, made.name)
    assert ages(site) == [100, 200]
    assert [row["action"] for row in audit.trail(site.lake.tables)] == ["retention.approve"]
    assert plan(site).name != made.name


def test_a_plan_for_a_day_to_come_waits_for_it(site):
    """It can be approved, and is refused until its partitions are due; a longer period voids it likewise."""
    bring_days(site, [50])
    tomorrow = TODAY + timedelta(days=41)
    made = plan(site, tomorrow)
    agree(site, made.name)
    with pytest.raises(VoidProposalError, match="is not due under the policies of today"):
        carry_out(site, made.name)
    with pytest.raises(VoidProposalError, match="is not due"):
        carry_out(site, made.name, tomorrow, with_period("raw", 365))
    assert ages(site) == [50]
    assert carry_out(site, made.name, tomorrow)[1]


def test_applying_again_does_nothing(site):
    """A plan that was applied says so; no commit, no audit row."""
    bring_days(site, [200])
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    rows = len(audit.trail(site.lake.tables))
    done, fresh = carry_out(site, made.name)
    assert (fresh, done.state) == (False, "applied")
    assert len(audit.trail(site.lake.tables)) == rows
    assert agree(site, made.name)[1] is False


def test_the_trail_says_who_approved_and_applied(site):
    """Approval, begin and end stand in the audit log with their actors, once; the register has the times."""
    bring_days(site, [200])
    made = plan(site)
    assert agree(site, made.name)[1] is True
    assert agree(site, made.name)[1] is False
    carry_out(site, made.name)
    found = [(row["action"], row["actor"], row["subject"], row["reason"]) for row in audit.trail(site.lake.tables)]
    assert found == [
        ("retention.approve", APPROVER, made.name, "as agreed"),
        ("retention.apply", "Otto Operator", made.name, None),
        ("retention.applied", "Otto Operator", made.name, None),
    ]
    assert verify(site.lake) is None
    one = register(site.lake.tables)[made.name]
    assert one.proposed < one.approved < one.applied
    kinds = [row["row_kind"] for row in site.rows("retention_plans")]
    assert sorted(kinds) == ["application", "approval", "item", "plan"]


def test_names_of_people_stay_in_their_column(site):
    """Approver and operator are in the Parquet data of the two governed tables, and nowhere else in the lake."""
    bring_days(site, [200])
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    for needle in (APPROVER, "Otto Operator"):
        places = {path.relative_to(site.folder / "lake").parts[:2] for path in site.places_of(needle)}
        assert places == {("tables", "audit"), ("tables", "retention_plans")}
        assert all(path.suffix == ".parquet" for path in site.places_of(needle))


@pytest.mark.parametrize("dies_before", ["steps", "retention_plans", "logs", "ingest_plans", "audit"])
def test_death_before_any_commit_converges(site, monkeypatch, dies_before):
    """Whichever commit an application dies before, applying again ends in the same lake, with one of each row."""
    bring_days(site, [0, 200])
    site.bring(any_rows("logs", 3, start=days_ago(31), incarnation=9), "logs")
    made = plan(site)
    agree(site, made.name)
    die_before(monkeypatch, dies_before)
    with pytest.raises(SystemExit):
        carry_out(site, made.name)
    monkeypatch.undo()
    assert register(site.lake.tables)[made.name].state == "approved"
    done, _ = carry_out(site, made.name)
    assert done.state == "applied"
    ended(site, made)


def ended(site, made):
    """Check that a plan over one old day of steps and one of logs ended as it should."""
    assert (ages(site), site.rows("logs")) == ([0], [])
    kinds = [row["row_kind"] for row in site.rows("retention_plans")]
    assert sorted(kinds) == ["application", "approval", "item", "item", "plan"]
    actions = [row["action"] for row in audit.trail(site.lake.tables)]
    assert actions == ["retention.approve", "retention.apply", "retention.applied"]
    assert verify(site.lake) is None
    (row,) = [row for row in site.rows("ingest_plans") if row["kind"] == "retention"]
    assert (row["rows_stored"], row["rows_rejected"]) == (-13, 0)
    assert {item.table: item.retired for item in site.balances().values()} == {"logs": 3, "steps": 10}
    left = [
        path
        for item in made.items
        for path in (site.folder / "lake/tables" / item.table).glob(f"*{item.partition_date}/*")
    ]
    assert left == []


@pytest.mark.parametrize("when", ["before the plan", "while purging", "before the last row"])
def test_death_between_commits_converges(site, monkeypatch, when):
    """Likewise before the plan is written, between two deletions of bytes, and after the plan is finished."""
    bring_days(site, [0, 200])
    site.bring(any_rows("logs", 3, start=days_ago(31), incarnation=9), "logs")
    made = plan(site)
    agree(site, made.name)

    def die(*args, **kwargs):
        raise SystemExit

    if when == "before the plan":
        monkeypatch.setattr(action_plan, "compose", die)
    elif when == "while purging":
        genuine = type(site.lake.fs).rm_file

        def first_only(self, path):
            genuine(self, path)
            raise SystemExit

        monkeypatch.setattr(type(site.lake.fs), "rm_file", first_only)
    else:
        genuine_record = audit.record

        def until_the_last(lake, actor, action, *args, **kwargs):
            if action == "retention.applied":
                raise SystemExit
            return genuine_record(lake, actor, action, *args, **kwargs)

        monkeypatch.setattr(audit, "record", until_the_last)
    with pytest.raises(SystemExit):
        carry_out(site, made.name)
    monkeypatch.undo()
    carry_out(site, made.name)
    ended(site, made)


def test_planning_finishes_what_died_first(site, monkeypatch):
    """Half an application is no state to plan from: planning again finishes it, and finds nothing due."""
    bring_days(site, [200])
    site.bring(any_rows("logs", 3, start=days_ago(31), incarnation=9), "logs")
    made = plan(site)
    agree(site, made.name)
    die_before(monkeypatch, "steps")
    with pytest.raises(SystemExit):
        carry_out(site, made.name)
    monkeypatch.undo()
    assert plan(site) is None
    assert register(site.lake.tables)[made.name].state == "applied"
    carry_out(site, made.name)
    assert audit.trail(site.lake.tables)[-1]["action"] == "retention.applied"


def test_an_approval_that_died_half_way_is_made_again(site, monkeypatch):
    """The audit log comes first, so that it has all that is approved; approving again adds what is missing."""
    bring_days(site, [200])
    made = plan(site)
    die_before(monkeypatch, "retention_plans")
    with pytest.raises(SystemExit):
        agree(site, made.name)
    monkeypatch.undo()
    assert register(site.lake.tables)[made.name].state == "planned"
    assert agree(site, made.name)[1] is True
    assert [row["action"] for row in audit.trail(site.lake.tables)] == ["retention.approve"]


def test_tables_that_count_their_own_commits_lose_rows_too(site):
    """A derived table, whose commits are ahead of the plans' numbers, loses its old partition, once."""
    derived = CONTRACTS["step_rollup"]
    filler = {"string": "x", "int32": 1, "int64": 1, "float32": 0.5, "float64": 0.5, "bool": True}
    day = TODAY - timedelta(days=2000)
    row = {one.name: filler.get(one.type, days_ago(0)) for one in derived.columns} | {"date": day}
    rows = pa.Table.from_pylist([row], schema=arrow_schema(derived))
    for _ in range(5):
        replace_partitions(site.lake.tables, derived, rows, [day])
    made = plan(site)
    agree(site, made.name)
    carry_out(site, made.name)
    assert delta_table(site.lake.store, "step_rollup").count() == 0
    replace_partitions(site.lake.tables, derived, rows, [day])
    assert delta_table(site.lake.store, "step_rollup").count() == 1
    again = plan(site)
    assert again.name != made.name
    agree(site, again.name)
    carry_out(site, again.name)
    assert delta_table(site.lake.store, "step_rollup").count() == 0


def test_rows_in_quarantine_have_a_period(site):
    """Rejected rows go by their own class, and the books still add up."""
    rows = step_rows(10)
    bad = pa.array([-1.0] * 3 + [1.0] * 7, pa.float32())
    site.bring(rows.set_column(rows.schema.get_field_index("step_time_s"), "step_time_s", bad))
    day = written_on(site, "rejects") + timedelta(days=POLICIES.rule("quarantine").delete_after_days + 1)
    made = plan(site, day)
    assert "rejects" in {item.table for item in made.items}
    agree(site, made.name)
    carry_out(site, made.name, day)
    assert site.rows("rejects") == []
    assert site.balances()["steps"].quarantined == 3
    assert contract("rejects").retention == "quarantine"


def test_who_dates_rows_in_the_future_does_not_keep_them_for_ever(site):
    """Rows that an older lake holds of a date to come go by when they were written: as old as they say, or are."""
    ahead = datetime.now(UTC) + timedelta(days=3000)
    put_segment(site.spool, step_rows(5, start=ahead))
    any_time = site.lake.configured(ingest=Limits(future_hours=10**6))
    assert ingest(any_time, Spool(str(site.spool)), InProcess()).rows_stored == 5
    today = written_on(site, "ingest_plans")
    assert make_plan(site.lake, CONTRACTS, POLICIES, today + timedelta(days=90)) is None
    made = make_plan(site.lake, CONTRACTS, POLICIES, today + timedelta(days=91))
    assert [(item.table, item.partition_date, item.rows) for item in made.items] == [("steps", ahead.date(), 5)]


def test_a_plan_whose_rows_went_by_another_is_overtaken(site, capsys):
    """The list says by which; it waits for nobody any more, and applying it says that it is void."""
    bring_days(site, [0, 91])
    old = plan(site)
    site.bring(step_rows(5, segment=7, incarnation=44, start=days_ago(120)), incarnation=44)
    new = plan(site)
    assert {one.state for one in register(site.lake.tables).values()} == {"planned"}
    agree(site, old.name)
    agree(site, new.name)
    carry_out(site, new.name)
    found = register(site.lake.tables)[old.name]
    assert (found.state, found.overtaken_by, register(site.lake.tables)[new.name].overtaken_by) == (
        "overtaken",
        new.name,
        "",
    )
    assert waiting(site.lake) == []
    assert run(["retain", "list", "--lake", site.lake.uri]) == 0
    assert f"{new.name} took of the same dates since" in capsys.readouterr().out
    with pytest.raises(VoidProposalError):
        carry_out(site, old.name)
    rows = site.rows("audit")
    assert run(["retain", "approve", old.name, "--by", "Anton", "--lake", site.lake.uri]) != 0
    said = capsys.readouterr().err
    assert f"{old.name}: {new.name} took of the same dates since; plan again with 'ranklake retain plan" in said
    assert site.rows("audit") == rows
