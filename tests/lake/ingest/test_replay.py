"""Replay: what segments and inputs made once they make again, row for row; nothing that was taken out comes back."""

import json
from datetime import date, timedelta

import numpy as np
import pyarrow as pa
import pytest
from click.testing import CliRunner
from governed import Site, die_before, under
from packing import pack_up
from retaining import POLICIES, agree, bring_days, carry_out, days_ago, with_period, written_on
from retaining import plan as retain
from segments import DAY, put_segment, step_rows

from ranklake.commands.corrections import replay as command
from ranklake.lake.contracts.load import contract, load_contracts
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.replay.selection import MissingSegmentsError, ReplayError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans import action_plan
from ranklake.lake.plans.dask_workers import workers
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.plan import last_finished
from ranklake.lake.plans.workers import DaskSection, InProcess
from ranklake.lake.query.scan import MissingFileError
from ranklake.lake.query.sql import query
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.check import run_checks

MARCH = (date(2026, 3, 1), date(2026, 3, 3))
STRICT = """
extends: steps
checks:
  - {id: loss_small, kind: between, columns: [loss], max: 3.0, on_fail: quarantine}
"""


@pytest.fixture
def site(tmp_path):
    return Site(tmp_path)


def again(site, table="steps", days=MARCH, crew=None, **options):
    return replay(site.lake, Spool(str(site.spool)), crew or InProcess(), table, days, **options)


def whole(site, table="steps"):
    """Return a table's rows in the order of its grain."""
    target = contract(table)
    return read(site.lake.tables, target).sort_by([(name, "ascending") for name in target.grain]).combine_chunks()


def paths(site, table="steps"):
    return set(files(delta_table(site.lake.store, table))["path"].to_pylist())


def slots(site):
    return [slot for _, _, slot in sorted(Site.keys(site))]


def messy(site):
    """Bring in three days by six plans: repeats, reseals with other cuts, late rows, rows that are refused."""
    late = DAY + timedelta(hours=23, minutes=30)
    for count in (1000, 3000):  # one slot file, sealed before midnight and once more after it
        site.bring(step_rows(count, start=late, rank=1, incarnation=8))
    site.bring(step_rows(500, segment=0))
    bad = step_rows(100, segment=1)
    times = np.where(np.arange(100) % 10 == 0, -1.0, 0.5).astype(np.float32)
    bad = bad.set_column(bad.schema.get_field_index("step_time_s"), bad.schema.field("step_time_s"), pa.array(times))
    site.bring(bad, rows_before=500)
    longer = step_rows(130, segment=1)  # the same slot file, sealed with more rows: 90 were stored, 10 refused
    site.bring(longer, rows_before=500)
    site.bring(step_rows(50, segment=2, start=DAY - timedelta(minutes=1)), rows_before=630)
    return site


def test_rows_come_out_as_they_were(site):
    """Repeats, reseals, late rows and refused rows: the same rows with the same values, in new files; books add up."""
    messy(site)
    before, old = whole(site), paths(site)
    assert before.num_rows > 3600
    done = again(site, days=(date(2026, 2, 28), MARCH[1]))
    assert whole(site).equals(before)
    assert not paths(site) & old
    assert (done.rows, done.plan) == (before.num_rows, last_finished(site.lake.tables))
    assert done.partitions == ("2026-02-28", "2026-03-01", "2026-03-02")
    site.balances()
    assert query(site.lake, "SELECT count(*) AS n FROM steps", as_of=0).to_pylist() == [{"n": 0}]
    assert again(site, days=(date(2026, 2, 28), MARCH[1])).rows == before.num_rows
    assert whole(site).equals(before)
    assert ingest(site.lake, Spool(str(site.spool)), InProcess()).plans == []


def test_other_dates_stay_as_they_are(site):
    """Files of dates outside of the range are not touched, although segments reach over midnight."""
    messy(site)
    before, old = whole(site), paths(site)
    again(site, days=(date(2026, 3, 2), date(2026, 3, 2)))
    assert whole(site).equals(before)
    assert {path for path in old if "2026-03-02" not in path} == {
        path for path in paths(site) if "2026-03-02" not in path
    }
    root = site.folder / "lake" / "tables" / "steps"
    stray = {str(path.relative_to(root)) for path in root.glob("date=*/*.parquet")}
    assert stray == old | paths(site)  # nothing else was left behind


def test_a_lost_file_comes_back(site):
    """Where a data file is gone, queries fail; a replay of its date mends the table, and the books."""
    messy(site)
    before = whole(site)
    victim = next(path for path in sorted(paths(site)) if "2026-03-01" in path)
    (site.folder / "lake" / "tables" / "steps" / victim).unlink()
    with pytest.raises(MissingFileError):
        query(site.lake, "SELECT count(*) FROM steps")
    again(site)
    assert whole(site).equals(before)
    site.balances()


def test_files_that_a_mistake_dropped_come_back(site):
    """Rows that left the log by no plan come back as far as the ledger says that they should be there."""
    messy(site)
    before = whole(site)
    table = delta_table(site.lake.store, "steps")
    live = files(table)
    swap(table, number_of(table) + 1, remove=live.slice(0, 1))
    assert any(item.faults for item in balance(site.lake))
    # the mistake took the number of the next plan, so that plan finds the table done; one more plan goes through
    drive(site.lake, lambda number: action_plan.compose(number, "compaction"), InProcess())
    again(site, days=(date(2026, 2, 28), MARCH[1]))
    assert whole(site).equals(before)
    site.balances()


@pytest.mark.slow
@pytest.mark.leaky("distributed keeps threads of its own for a while")
def test_packs_on_a_real_cluster(site):
    """Members of packs are found, and tasks run on a Dask cluster."""
    put_segment(site.spool, step_rows(200, rank=0))
    put_segment(site.spool, step_rows(200, rank=1, incarnation=8))
    pack_up(site.spool)
    assert ingest(site.lake, Spool(str(site.spool)), InProcess()).rows_stored == 400
    before = whole(site)
    with workers(DaskSection(workers=2)) as crew:
        done = again(site, crew=crew)
    assert (done.segments, done.rows) == (2, 400)
    assert whole(site).equals(before)


@pytest.mark.slow
def test_quarantined_rows_stay_out(site):
    """What a check moved to rejects stays there: once in quarantine, not in the table."""
    site.bring(step_rows(40))
    run_checks(under(site.lake, site.overlay(steps=STRICT)))
    before, rejected = whole(site), len(site.rows("rejects"))
    assert 0 < rejected < 40
    again(site)
    assert whole(site).equals(before)
    assert len(site.rows("rejects")) == rejected
    assert site.balances()["steps"].quarantined == rejected


def test_what_retention_took_stays_away(site):
    """A partition that retention took stays empty; rows that came after are rebuilt without those that went."""
    bring_days(site, [400, 399, 2])
    name = retain(site).name
    agree(site, name)
    carry_out(site, name)
    before = whole(site)
    assert before.num_rows == 10
    span = (days_ago(401).date(), days_ago(0).date())
    done = again(site, days=span)
    assert whole(site).equals(before)
    assert done.kept == (days_ago(400).date().isoformat(), days_ago(399).date().isoformat())
    site.bring(step_rows(7, segment=9, start=days_ago(400)), rows_before=30)
    before = whole(site)
    assert before.num_rows == 17
    assert again(site, days=span).rows == 17
    assert whole(site).equals(before)
    site.balances()


@pytest.mark.slow
@pytest.mark.parametrize("cut", [(0, 20), (0, 25), (3, 25)], ids=["whole", "more", "late"])
def test_what_retention_took_comes_back_in_no_other_cut(site, cut):
    """A slot file that is cut anew after retention brings what was never there; a replay tells the cuts apart, too."""
    period = POLICIES.rule("raw").delete_after_days
    midnight = days_ago(period)  # rows before it are due, rows after it are not

    def cut_of(first, count):
        return step_rows(count - first, first_slot=first, start=midnight - timedelta(seconds=10))

    first, count = cut
    site.bring(cut_of(max(2, first), 20))
    name = retain(site).name
    agree(site, name)
    carry_out(site, name)
    assert slots(site) == list(range(10, 20))
    site.bring(cut_of(0, count), rows_before=0)
    early, new = list(range(max(2, first))), list(range(20, count))
    assert slots(site) == early + list(range(10, 20)) + new
    site.bring(cut_of(first, count + 1), rows_before=0)
    assert site.keys()[7, 0, count] == 1
    site.balances()
    before = whole(site)
    span = ((midnight - timedelta(days=1)).date(), midnight.date())
    assert again(site, days=span).rows == before.num_rows
    assert whole(site).equals(before)
    site.balances()


def test_rejects_that_retention_took_come_back_in_no_other_cut(site):
    """A row that was refused stays refused, whether or not its copy in ``rejects`` is still kept."""
    rows = step_rows(10, start=days_ago(1))
    at = rows.schema.get_field_index("step_time_s")
    bad = rows.set_column(at, "step_time_s", pa.array([-1.0] * 3 + [1.0] * 7, pa.float32()))
    site.bring(bad)
    policies = with_period("quarantine", 1)
    soon = written_on(site, "rejects") + timedelta(days=2)
    name = retain(site, soon, policies).name
    agree(site, name)
    carry_out(site, name, soon, policies)
    assert site.rows("rejects") == []
    site.bring(rows)  # the same slots, now with sound values
    assert slots(site) == list(range(3, 10))
    assert site.rows("rejects") == []
    site.balances()
    before = whole(site)
    again(site, days=(days_ago(1).date(),) * 2)
    assert whole(site).equals(before)


def test_segments_that_are_gone_are_named(site):
    """Where the spool no longer has what a date was made of, nothing is changed; other dates can be replayed."""
    site.bring(step_rows(20, segment=0))
    site.bring(step_rows(20, segment=1, start=DAY + timedelta(days=1)), rows_before=20)
    before, old = whole(site), paths(site)
    (gone,) = (site.spool / "segments").rglob("*~000000~*")
    raw = gone.read_bytes()
    gone.unlink()
    for options in ({}, {"dry_run": True}):
        with pytest.raises(
            MissingSegmentsError, match="1 segments are no longer in the spool, for 2026-03-01"
        ) as caught:
            again(site, **options)
        assert (caught.value.segments, caught.value.days) == (1, (date(2026, 3, 1),))
    assert paths(site) == old
    again(site, days=(date(2026, 3, 2), date(2026, 3, 2)))
    moved = site.spool / "segments" / "2026-04-01" / "steps" / gone.name  # a copy elsewhere in the spool will do
    moved.parent.mkdir(parents=True)
    moved.write_bytes(raw)
    again(site)
    assert whole(site).equals(before)


def test_a_damaged_segment_changes_nothing(site):
    """A segment that no longer has its digest is no source; files that were written for the others are taken away."""
    site.bring(step_rows(20, segment=0))
    site.bring(step_rows(20, segment=1, start=DAY + timedelta(days=1)), rows_before=20)
    old = paths(site)
    (bad,) = (site.spool / "segments").rglob("*~000001~*")
    bad.write_bytes(bad.read_bytes()[:-9] + b"something")
    with pytest.raises(ReplayError, match="1 segments cannot be read any more"):
        again(site)
    assert paths(site) == old
    assert len(list((site.folder / "lake" / "tables" / "steps").rglob("*.parquet"))) == len(old)


def test_rows_of_nobody_are_not_lost(site):
    """Where a partition holds rows that no segment brought, a replay would lose them, and is refused."""
    site.bring(step_rows(20))
    table = delta_table(site.lake.store, "steps")
    extra = read(site.lake.tables, contract("steps")).slice(0, 3)
    extra = extra.set_column(5, extra.schema.field("slot"), pa.array([70, 71, 72], pa.int32()))
    new = action_plan.append_files(site.lake.store, contract("steps"), extra, 2)
    drive(site.lake, lambda number: action_plan.compose(number, "compaction", add=new), InProcess())
    assert files(table).num_rows == 1
    with pytest.raises(ReplayError, match="give 20 rows for 2026-03-01, the log has 23 and the ledger 20"):
        again(site)
    assert whole(site).num_rows == 23


def test_plans_that_cannot_be_redone_are_respected(site):
    """Rows that a renumbering rewrote do not come back as they were recorded."""
    site.bring(step_rows(20))
    live = action_plan.live_files(site.lake, "steps", [DAY.date()])

    def renumber(number):
        masked = read(site.lake.tables, contract("steps"))
        masked = masked.set_column(
            masked.schema.get_field_index("loss"), masked.schema.field("loss"), pa.nulls(20, pa.float32())
        )
        new = action_plan.append_files(site.lake.store, contract("steps"), masked, number)
        return action_plan.compose(number, "renumber", add=new, remove={"steps": live})

    drive(site.lake, renumber, InProcess())
    with pytest.raises(ReplayError, match=r"plan 2 \(renumber\) changed rows here"):
        again(site)
    assert whole(site)["loss"].null_count == 20


@pytest.mark.slow
@pytest.mark.parametrize("table", ["steps", "ingest_plans"])
def test_a_replay_that_dies_is_finished(site, monkeypatch, table):
    """Whoever comes next finishes a plan whose driver died before a commit; no row is doubled or lost."""
    messy(site)
    before = whole(site)
    with monkeypatch.context() as patch:
        die_before(patch, table)
        with pytest.raises(SystemExit):
            again(site)
    assert ingest(site.lake, Spool(str(site.spool)), InProcess()).plans == []
    assert whole(site).equals(before)
    (row,) = (row for row in site.rows("ingest_plans") if row["kind"] == "replay")
    assert json.loads(row["tables"]) == {"steps": 0}
    site.balances()


@pytest.mark.slow
def test_rollups_come_out_as_they_were(site):
    """Partitions of derived tables are computed anew, of whole runs too, even where a file of theirs is lost."""
    for day in range(3):
        for rank in range(2):
            rows = step_rows(120, segment=day, rank=rank, incarnation=7 + rank, start=DAY + timedelta(days=day))
            put_segment(site.spool, rows, rows_before=120 * day)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    run_rollups(site.lake, ["run_summary"])
    for table in ("step_rollup", "rank_health", "goodput", "run_summary"):
        before, old = whole(site, table), paths(site, table)
        assert before.num_rows
        done = again(site, table)
        assert set(done.partitions) == {f"{row['date']}" for row in before.select(["date"]).to_pylist()}
        assert whole(site, table).equals(before)
        assert not paths(site, table) & old
    lost = next(path for path in paths(site, "step_rollup") if "2026-03-02" in path)
    before = whole(site, "step_rollup")
    (site.folder / "lake" / "tables" / "step_rollup" / lost).unlink()
    assert again(site, "step_rollup", days=(date(2026, 3, 2), date(2026, 3, 2))).partitions == ("2026-03-02",)
    assert whole(site, "step_rollup").equals(before)
    run_rollups(site.lake, ["run_summary"])
    assert whole(site, "step_rollup").equals(before)


def test_on_the_command_line(site):
    """A dry run says what would be done and does nothing; JSON for machines; what cannot be replayed is said to be."""
    site.bring(step_rows(20))
    old = paths(site)

    def ask(*arguments):
        options = ["--from", "2026-03-01", "--to", "2026-03-02", "--lake", site.lake.uri, "--spool", str(site.spool)]
        return CliRunner().invoke(command, [*options, *arguments])

    dry = ask("--table", "steps", "--dry-run")
    assert dry.output == "steps: 2026-03-01 would be rebuilt from 1 segments: 20 rows, 1 files before\n"
    assert paths(site) == old
    done = json.loads(ask("--table", "steps", "--json").stdout)
    assert (done["plan"], done["rows"], done["partitions"], done["dry_run"]) == (2, 20, ["2026-03-01"], False)
    assert "nothing to rebuild" in ask("--table", "spans").output
    assert "did you mean 'steps'" in str(ask("--table", "stpes").exception)
    assert "neither of segments nor by a rollup" in str(ask("--table", "audit").exception)
    assert "is after" in str(ask("--table", "steps", "--from", "2026-03-05").exception)
    assert set(load_contracts()) > {"steps"}
