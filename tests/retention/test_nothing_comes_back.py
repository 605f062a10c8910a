"""Fifty ways of bringing rows back that retention or an erasure took: none stores a row, none brings a name back."""

import contextlib
import json
import shutil
from collections import Counter
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from archiving import STEPS, archived, policies_in
from deltalake.exceptions import DeltaError
from governed import Site, any_rows
from packing import pack_up
from retaining import POLICIES, TODAY, agree, carry_out, days_ago, keeping, plan, purge_after, with_period
from segments import put_segment, step_rows

from ranklake.capture.importers.imports import import_files
from ranklake.cli import run
from ranklake.lake.ingest.maintenance.compaction import merge_small
from ranklake.lake.ingest.maintenance.run import upkeep
from ranklake.lake.ingest.replay.run import replay
from ranklake.lake.ingest.replay.selection import ReplayError
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.tables.tables import delta_table
from ranklake.quality.release import NothingToReleaseError, plan_release
from ranklake.retention.archive.rehydration import RehydrationError, rehydrate, select_archives, write_down
from ranklake.retention.archive.rehydration import propose as propose_return
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.search import search
from ranklake.retention.erasure.subject import Reach, subject_of
from ranklake.retention.plans.cancel import cancel
from ranklake.retention.plans.removals import removal_faults
from ranklake.retention.proposals.kept import restorations
from ranklake.retention.proposals.proposals import NotApprovedError
from ranklake.retention.sweep import sweep

EMAIL = "ada@analytical.example"
DAY = days_ago(200)
CURVES = "curves: {where: {table: scalars}, downsample: {after_days: 30, interval: 1m}, reason: curves stay}"


@dataclass
class Taken:
    """A lake of which rows were taken: what was recorded, the segments that brought it, and a copy of the spool."""

    site: Site
    table: str
    rows: pa.Table
    paths: list[Path]
    copy: Path
    values: tuple[str, ...] = ()
    before: dict = field(default_factory=dict)

    @property
    def spool(self):
        """The spool as it is now."""
        return Spool(str(self.site.spool))

    def again(self):
        """Ingest what is there."""
        return ingest(self.site.lake, self.spool, InProcess())

    def send(self, rows, **more):
        """Send rows as another segment of the same slot file."""
        return put_segment(self.site.spool, rows, self.table, **more)

    def restore(self):
        """Send the very files again."""
        for path in self.copy.rglob("*.parquet"):
            target = self.site.spool / path.relative_to(self.copy)
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, target)


def recorded(tmp_path, table, rows):
    """Record rows, and some of another run that stay."""
    site = Site(tmp_path)
    site.bring(step_rows(5, run="other", incarnation=9, start=days_ago(0)))
    path = put_segment(site.spool, rows, table, day=str(DAY.date()))
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    shutil.copytree(site.spool, tmp_path / "copy")
    return Taken(site, table, rows, [path], tmp_path / "copy")


def by_retention(tmp_path):
    """Let a date go by its age."""
    taken = recorded(tmp_path, "steps", step_rows(20, start=DAY))
    made = plan(taken.site)
    agree(taken.site, made.name)
    carry_out(taken.site, made.name)
    sweep(taken.site.lake, taken.spool, "Otto")
    return taken


def in_grace(tmp_path):
    """Let a date go by its age, and keep its files."""
    taken = recorded(tmp_path, "steps", step_rows(20, start=DAY))
    made = plan(taken.site, TODAY, keeping())
    agree(taken.site, made.name)
    carry_out(taken.site, made.name, TODAY, keeping())
    taken.before = {"plan": made.name}
    sweep(taken.site.lake, taken.spool, "Otto")
    return taken


def purged(tmp_path):
    """Let a date go by its age, and its files when their grace is over."""
    taken = in_grace(tmp_path)
    assert purge_after(taken.site) == (taken.before["plan"],)
    sweep(taken.site.lake, taken.spool, "Otto")
    return taken


def kept_raw(tmp_path, rule):
    """Return policies under which rows are old, and leave their table by a rule that does not delete them."""
    return with_period("raw", 900, policies_in(tmp_path, rule))


def by_archive(tmp_path):
    """Let a date go to an archive."""
    taken = recorded(tmp_path, "steps", step_rows(20, start=DAY))
    found = kept_raw(tmp_path, STEPS)
    assert archived(taken.site, found)
    taken.before = {"policies": found}
    sweep(taken.site.lake, taken.spool, "Otto")
    return taken


def by_downsampling(tmp_path):
    """Let rows of a date become aggregates."""
    values = {"metric": ["loss"] * 20, "value": [float(at) for at in range(20)], "kind": ["gauge"] * 20}
    taken = recorded(tmp_path, "scalars", any_rows("scalars", 20, run="exp-7", incarnation=7, start=DAY, **values))
    found = kept_raw(tmp_path, CURVES)
    assert archived(taken.site, found)
    taken.before = {"policies": found}
    sweep(taken.site.lake, taken.spool, "Otto")
    return taken


def erased(taken, *values):
    """Erase a person."""
    lake = taken.site.lake
    subject = subject_of(lake, values)
    made = make_plan(Reach(lake, taken.spool), subject)
    propose(lake, made, "Petra")
    approve(lake, made.name, "Anna")
    assert apply(Reach(lake, taken.spool), made.name, subject, "Otto").certificate.is_clean
    taken.values = values
    return taken


def a_run(tmp_path):
    """Erase a person whose name is that of the run."""
    return erased(recorded(tmp_path, "steps", step_rows(20, run="ada.lovelace-7", start=DAY)), "ada.lovelace")


def some_rows(tmp_path):
    """Erase a person whom some lines name."""
    lines = [f"by {EMAIL}" for _ in range(20)]
    rows = any_rows("logs", 20, run="shared", incarnation=7, start=DAY, message=lines)
    return erased(recorded(tmp_path, "logs", rows), EMAIL)


def replayed(taken):
    """Rebuild the date."""
    day = DAY.date()
    with contextlib.suppress(ReplayError):
        replay(taken.site.lake, taken.spool, InProcess(), taken.table, (day, day))


def released(taken):
    """Release what lies in quarantine."""
    with pytest.raises(NothingToReleaseError):
        plan_release(taken.site.lake, "Petra", "mended")


def unapproved(lake, table, policies):
    """Bring back what is archived of a table, and ask nobody."""
    made = write_down(
        lake, select_archives(lake.tables, table, DAY.date(), DAY.date()), TODAY + timedelta(days=7), "Petra"
    )
    propose_return(lake, made, "Petra")
    rehydrate(lake, made.name, "Otto", policies)


def rehydrated(taken):
    """Bring it back from archives without an approval, or from none."""
    with pytest.raises((RehydrationError, NotApprovedError)):
        unapproved(taken.site.lake, taken.table, taken.before.get("policies", POLICIES))
    assert not list((taken.site.folder / "lake").rglob("rehydrated/**/*.parquet"))


def downsampled_again(taken):
    """Send the file, and downsample what is due once more."""
    taken.restore()
    taken.again()
    assert plan(taken.site, TODAY, kept_raw(taken.site.folder, CURVES)) is None


def broken(taken):
    """Send the segment damaged, then whole."""
    taken.restore()
    (path,) = [path for path in taken.site.spool.rglob("*.parquet") if path.name == taken.paths[0].name]
    whole = path.read_bytes()
    path.write_bytes(whole[:-30])
    taken.again()
    path.write_bytes(whole)


def elsewhere(taken):
    """Send the file in the folder of another day."""
    taken.restore()
    target = taken.site.spool / "segments" / "2026-06-06" / taken.table / taken.paths[0].name
    (path,) = (path for path in taken.site.spool.rglob(target.name) if path != target)
    target.parent.mkdir(parents=True, exist_ok=True)
    path.replace(target)


def packed(taken):
    """Send the file in a pack."""
    taken.restore()
    pack_up(taken.site.spool)


def packed_cuts(taken):
    """Send two cuts in a pack."""
    pack_up(taken.site.spool, [taken.send(taken.rows.slice(0, 9)), taken.send(taken.rows.slice(9))])


def without_summary(taken):
    """Send the file when all that spares reading the register of segments is gone."""
    for name in ("known", "rounds"):
        shutil.rmtree(taken.site.folder / "lake" / name, ignore_errors=True)
    taken.restore()


def another_process(taken):
    """Send the file to a lake that another process opens."""
    taken.site.lake = Lake.open(taken.site.lake.uri)
    taken.restore()


def after_upkeep(taken):
    """Send the file when tables were merged, and logs tidied."""
    merge_small(taken.site.lake, InProcess(), ["segments", "erasures", "retention_plans"], thorough=True)
    upkeep(taken.site.lake, InProcess())
    taken.restore()


def with_checkpoint(taken):
    """Send the file when the register of segments is read from a checkpoint."""
    delta_table(taken.site.lake.store, "segments").create_checkpoint()
    taken.restore()


WAYS = {
    "the same file": lambda taken: taken.restore(),
    "the same file, twice": lambda taken: (taken.restore(), taken.again(), taken.restore()),
    "in another folder": elsewhere,
    "in a pack": packed,
    "cut in front": lambda taken: taken.send(taken.rows.slice(0, 7)),
    "cut behind": lambda taken: taken.send(taken.rows.slice(13)),
    "cut in the middle": lambda taken: taken.send(taken.rows.slice(5, 5)),
    "row by row": lambda taken: [taken.send(taken.rows.slice(at, 1)) for at in range(3)],
    "cuts that overlap": lambda taken: [taken.send(taken.rows.slice(at, 12)) for at in (0, 4, 8)],
    "cuts in a pack": packed_cuts,
    "damaged, then whole": broken,
    "without summaries": without_summary,
    "by another process": another_process,
    "after upkeep": after_upkeep,
    "with a checkpoint": with_checkpoint,
    "replayed from what was sent again": lambda taken: (taken.restore(), replayed(taken)),
    "released from quarantine": released,
    "rehydrated without approval": rehydrated,
    "downsampled once more": downsampled_again,
}
TAKEN = {
    "retention": by_retention,
    "a run": a_run,
    "some rows": some_rows,
    "an archive": by_archive,
    "downsampling": by_downsampling,
    "a grace": in_grace,
    "a purge": purged,
}


def test_there_are_fifty_ways():
    """As many as were promised."""
    assert len(WAYS) * len(TAKEN) >= 50


@pytest.mark.slow
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("how", TAKEN)
def test_nothing_comes_back(tmp_path, how, way):
    """Whatever was taken, and however it is brought again: no row, no name in a table; a sweep clears the spool."""
    taken = TAKEN[how](tmp_path)
    folded = taken.site.rows("downsampled")
    assert taken.site.rows(taken.table) == [row for row in taken.site.rows(taken.table) if row["run"] == "other"]
    WAYS[way](taken)
    taken.again()
    run_rollups(taken.site.lake)
    assert {row["run"] for row in taken.site.rows(taken.table)} <= {"other"}
    assert taken.site.rows("rejects") == []
    assert taken.site.rows("downsampled") == folded
    taken.site.balances()
    assert removal_faults(taken.site.lake) == []
    sweep(taken.site.lake, taken.spool, "Otto")
    if how == "a grace":  # what is kept comes back by its cancellation alone, and once
        for _ in range(2):
            cancel(taken.site.lake, taken.before["plan"], "Carla")
            assert Counter(row["run"] for row in taken.site.rows("steps")) == {"r1": 20, "other": 5}
            WAYS[way](taken)
            taken.again()
        taken.site.balances()
        assert removal_faults(taken.site.lake) == []
    if taken.values:
        assert search(taken.site.lake, taken.spool, taken.values).traces == ()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["retention", "a run", "an archive", "a purge"])
def test_a_restore_of_the_table_brings_nothing_back(tmp_path, how):
    """Of another program that knows nothing of plans: the files of the versions that had the rows are gone."""
    taken = TAKEN[how](tmp_path)
    handle = delta_table(taken.site.lake.store, taken.table)
    for version in range(handle.version() - 1, -1, -1):
        with contextlib.suppress(DeltaError):
            handle.restore(version)
        assert {row["run"] for row in taken.site.rows(taken.table)} <= {"other"}


@pytest.mark.slow
def test_a_restore_within_the_grace_shows(tmp_path, capsys):
    """Files are kept then, so it brings the rows back; the books say so, and so does who verifies the audit log."""
    taken = in_grace(tmp_path)
    verify = ["audit", "verify", "--lake", taken.site.lake.uri]
    assert run(verify) == 0
    handle = delta_table(taken.site.lake.store, "steps")
    before = handle.version()
    handle.restore(before - 1)
    assert len(taken.site.rows("steps")) == 25
    faults = [fault for one in balance(taken.site.lake, taken.spool.listing()) for fault in one.faults]
    assert "the table holds 25 rows, the plans say 5" in faults
    (line,) = restorations(taken.site.lake.tables)
    assert line.startswith(f"steps has 20 rows again that {taken.before['plan']} took or masked, and nobody cancelled")
    capsys.readouterr()
    assert run(verify) == 1
    out, err = capsys.readouterr()
    assert "the audit log is whole" in out
    assert err == f"{line}\n"
    assert run([*verify, "--json"]) == 1
    told = json.loads(capsys.readouterr().out)
    assert (told["whole"], told["restored"]) == (True, [line])
    assert run([*verify, "--since", "0"]) == 1
    assert run([*verify, "--since", "1", "--json"]) == 0
    assert '"restored": null' in capsys.readouterr().out
    handle.update_incremental()
    handle.restore(before)
    assert run(verify) == 0
    cancel(taken.site.lake, taken.before["plan"], "Carla")
    assert run(verify) == 0


MAPPING = "table: pools\ntime: {column: when}\ncolumns: {pool: name, gpu_total: total}\n"


@pytest.mark.slow
@pytest.mark.parametrize("forgotten", [False, True], ids=["remembered", "nobody remembers"])
@pytest.mark.parametrize("way", ["the same file", "a copy of it"])
@pytest.mark.parametrize("how", ["retention", "a person"])
def test_what_is_imported_again_does_not_come_back(tmp_path, how, way, forgotten):
    """Rows of another tool's file have its content for their identity, whoever imports it, and wherever it lies."""
    site = Site(tmp_path)
    file, mapping = tmp_path / "vc.csv", tmp_path / "mapping.yaml"
    mapping.write_text(MAPPING)
    file.write_text(f"when,name,total\n{DAY:%Y-%m-%d},{EMAIL},8\n{DAY:%Y-%m-%d},{EMAIL},9\n")

    def bring_in(path):
        done = import_files("table", [str(path)], str(site.spool), mapping=str(mapping), run="imported")
        ingest(site.lake, Spool(str(site.spool)), InProcess())
        return done.again

    assert bring_in(file) == 0
    assert len(site.rows("pools")) == 2
    if how == "retention":
        found = policies_in(tmp_path, "pools: {where: {table: pools}, delete_after_days: 30, reason: old}")
        made = plan(site, TODAY, found)
        agree(site, made.name)
        carry_out(site, made.name, TODAY, found)
        sweep(site.lake, Spool(str(site.spool)), "Otto")
    else:
        erased(Taken(site, "pools", site.rows("pools"), [], tmp_path), EMAIL)
    assert site.rows("pools") == []
    if forgotten:
        shutil.rmtree(site.spool / "imports", ignore_errors=True)
    again = bring_in(file if way == "the same file" else file.rename(tmp_path / "copy.csv"))
    assert again == (0 if forgotten or way != "the same file" else 1)
    assert site.rows("pools") == []
    site.balances()
    assert removal_faults(site.lake) == []
