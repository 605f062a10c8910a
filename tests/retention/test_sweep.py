"""What retention leaves behind in the spool and in quarantine: it goes, too, and the books say why."""

import json
from datetime import timedelta
from pathlib import Path

import pytest
from packing import pack_up
from retaining import APPROVER, TODAY, agree, bring_days, carry_out, days_ago, plan, written_on
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit import trail as audit
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.store import Store
from ranklake.retention.holds.holds import set_hold
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.sweep import sweep


def applied(site, today=TODAY):
    made = plan(site, today)
    agree(site, made.name)
    return carry_out(site, made.name, today)[0]


def swept(site):
    return sweep(site.lake, Spool(str(site.spool)), APPROVER)


def segments(site):
    return sorted(path.name for path in (site.spool / "segments").rglob("*") if path.is_file())


def test_segments_go_whose_rows_are_all_gone(site):
    """One that reaches into a day that stays is kept, and so is one that nobody took in yet; the audit log says so."""
    bring_days(site, [0, 200])
    site.bring(step_rows(10, incarnation=8, start=days_ago(90) - timedelta(seconds=5)))
    put_segment(site.spool, step_rows(10, incarnation=9, start=days_ago(300)))
    before = segments(site)
    applied(site)
    done = swept(site)
    assert (done.files, done.segments, done.in_packs) == (1, 1, 0)
    assert len(segments(site)) == len(before) - 1
    assert site.balances()["steps"].in_flight == 10
    rows = [row for row in audit.trail(site.lake.tables) if row["action"] == "retention.sweep"]
    assert [json.loads(row["details"])["segments"] for row in rows] == [1]
    assert swept(site).files == 0
    assert len(audit.trail(site.lake.tables)) == 4


def test_a_run_leaves_the_spool_where_a_hold_keeps_another(site):
    """Segments go of which no row is left on a date that went but for what a hold keeps; those of the held run stay."""
    for place, name in enumerate(("held", "gone")):
        site.bring(step_rows(10, run=name, incarnation=8 + place, start=days_ago(200)))
    set_hold(site.lake, ["run=held"], "a suit", days_ago(-30).date(), "Lea Lawyer", TODAY)
    applied(site)
    assert {row["run"] for row in site.rows("steps")} == {"held"}
    assert swept(site).segments == 1
    assert ["~a" in name and name.startswith("held~") for name in segments(site) if "~" in name] == [True]
    assert site.balances()["steps"].retired == 10


def test_what_a_listing_lacks_is_not_gone(site):
    """While a table's log is not to be seen, a segment that reaches into a day that stays is kept."""
    bring_days(site, [0])
    site.bring(step_rows(10, incarnation=8, start=days_ago(90) - timedelta(seconds=5)))
    applied(site)
    before = segments(site)
    log = Path(site.lake.path("tables", "steps", "_delta_log"))
    log.rename(log.with_suffix(".away"))
    assert swept(site).files == 0
    assert segments(site) == before


def test_nothing_goes_without_an_applied_plan(site):
    """Neither what is planned nor what is approved sweeps anything."""
    bring_days(site, [200])
    made = plan(site)
    for _ in range(2):
        assert swept(site).files == 0
        agree(site, made.name)
    assert len(segments(site)) == 1


def test_a_pack_goes_when_all_in_it_is_gone(site):
    """A member that is wanted keeps the others, and they are counted."""
    for segment, age in enumerate((0, 200, 201)):
        put_segment(site.spool, step_rows(10, segment=segment, start=days_ago(age)), rows_before=10 * segment)
    pack_up(site.spool)
    for segment in range(2):
        put_segment(site.spool, step_rows(10, incarnation=8, segment=segment, start=days_ago(150)))
    pack_up(site.spool)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    applied(site)
    done = swept(site)
    assert (done.files, done.segments, done.in_packs) == (1, 2, 2)
    assert len(segments(site)) == 1


def test_replay_wants_nothing_that_was_swept(site):
    """Dates that retention took stay as they are, and the rest is rebuilt without them."""
    bring_days(site, [0, 200, 120])
    site.bring(step_rows(10, incarnation=8, start=days_ago(200) - timedelta(seconds=5)))
    applied(site)
    swept(site)
    spool = Spool(str(site.spool))
    old = (days_ago(202).date(), days_ago(110).date())
    done = replay(site.lake, spool, InProcess(), "steps", old)
    assert (done.plan, len(done.kept)) == (None, 3)
    done = replay(site.lake, spool, InProcess(), "steps", (old[0], TODAY))
    assert (done.rows, len(done.kept)) == (10, 3)
    assert site.balances()["steps"].retired == 30


def test_rows_that_came_later_keep_their_segment(site):
    """A late segment of a date that retention took before it came is not swept."""
    bring_days(site, [200])
    applied(site)
    site.bring(step_rows(5, incarnation=9, start=days_ago(200)))
    assert swept(site).segments == 1
    assert len(segments(site)) == 1
    assert len(site.rows("steps")) == 5


def damage(site):
    """Bring a segment of steps that cannot be read; return the file in quarantine."""
    path = put_segment(site.spool, step_rows(10, start=days_ago(3)))
    raw = path.read_bytes()
    path.write_bytes(raw[:200] + bytes(50) + raw[250:])
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    (kept,) = (site.folder / "lake/quarantine").iterdir()
    return kept


LATER = TODAY + timedelta(days=93)
"""When raw bytes of today are due, and of tomorrow."""


def test_raw_bytes_go_by_the_class_of_their_table(site, capfd):
    """They are items of a plan like partitions, and go when it is approved; the books add up, and status is green."""
    kept = damage(site)
    today = written_on(site, "ingest_plans")
    assert plan(site, today + timedelta(days=90)) is None
    (item,) = plan(site, LATER).items
    assert (item.table, item.rows, item.files, item.partition_date) == ("quarantine/steps", 0, 1, today)
    assert (item.retention_class, item.bytes) == ("raw", kept.stat().st_size)
    applied(site, LATER)
    assert not kept.exists()
    assert site.balances()["steps"].quarantined == 10
    assert removal_faults(site.lake) == []
    assert run(["status", "--lake", site.lake.uri]) == 0
    assert capfd.readouterr().err == ""
    assert plan(site, LATER) is None


def test_raw_bytes_that_go_by_themselves_are_missed(site):
    """Without a plan that took them they are a fault of the books, as ever."""
    damage(site).unlink()
    with pytest.raises(AssertionError, match="quarantine folder"):
        site.balances()


def test_an_application_that_dies_while_deleting_raw_bytes_goes_on(site, monkeypatch):
    """Whoever comes next deletes the rest, once the plan that names them is held against the approval."""
    kept = damage(site)
    made = plan(site, LATER)
    agree(site, made.name)
    genuine = Store.path

    def dying(self, *parts):
        if parts[0] == "quarantine" and len(parts) > 1:
            raise SystemExit
        return genuine(self, *parts)

    monkeypatch.setattr(Store, "path", dying)
    with pytest.raises(SystemExit):
        carry_out(site, made.name, LATER)
    monkeypatch.undo()
    assert kept.exists()
    carry_out(site, made.name, LATER)
    assert not kept.exists()
    assert removal_faults(site.lake) == []


def test_the_commands_sweep(site, capfd, monkeypatch):
    """Applying sweeps the spool where one is known, and says where none is; sweeping can be done alone."""
    monkeypatch.chdir(site.folder)
    bring_days(site, [0, 200])
    made = plan(site)
    agree(site, made.name)
    place = ["--lake", site.lake.uri]
    assert run(["retain", "apply", made.name, "--by", "Otto", *place]) == 0
    assert "no spool is configured" in capfd.readouterr().err
    assert run(["retain", "apply", made.name, "--by", "Otto", "--spool", str(site.spool), *place]) == 0
    assert "swept 1 segment from the spool" in capfd.readouterr().out
    assert run(["retain", "sweep", "--by", "Otto", "--spool", str(site.spool), *place]) == 0
    assert "swept 0 segments" in capfd.readouterr().out
