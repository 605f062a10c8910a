"""Backups: what comes back is what was there, byte for byte, and what was removed for good does not come back."""

import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
from datetime import datetime, timedelta
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from governed import Site, any_rows, die_before
from retaining import agree, bring_days, carry_out, days_ago, plan, with_period
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit.chain import RESUME
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import BrokenTrailError, record, resume, trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import AuditSection, BackupSection, LakeConfig
from ranklake.lake.store.store import Store
from ranklake.lake.tables.read import read
from ranklake.retention.backup import backup as module
from ranklake.retention.backup import restore as restore_module
from ranklake.retention.backup.backup import backup
from ranklake.retention.backup.history import drill
from ranklake.retention.backup.place import BackupError, numbers_of, object_name, unlock
from ranklake.retention.backup.restore import ACTION, choose, restore
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of

EMAIL = "ada@analytical.example"


@pytest.fixture
def site(tmp_path):
    """Give a lake with two days of steps and a row of the audit log."""
    site = Site(tmp_path)
    bring_days(site, (3, 2))
    record(site.lake, "Ann", "test", "first")
    return site


@pytest.fixture
def uri(tmp_path):
    """Give the place of its backups."""
    return str(tmp_path / "backups")


def digests(folder):
    """Return the digest of every file below a folder, by its path there."""
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.rglob("*")
        if path.is_file()
    }


def copied(files):
    """Leave out the audit log, to which a restore adds a row, and the table of backups, to which each backup does."""
    written = ("tables/audit/", "audit/", "tables/backups/")
    return {path: value for path, value in files.items() if not path.startswith(written)}


def bring_back(site, uri, name="restored", number=None, tables=(), keep_days=0):
    """Restore a backup beside the lake, and return the lake."""
    place = Store.at(uri)
    target = Store.at(str(site.folder / name))
    restore(place, choose(place, number, keep_days=keep_days), target, tables)
    return Lake.open(target.uri)


def erase(site, *values, run_name=None):
    """Erase a person, or a run, from lake and spool."""
    reach = Reach(site.lake, Spool(str(site.spool)))
    subject = subject_of(site.lake, values, run_name)
    made = make_plan(reach, subject)
    propose(site.lake, made, "Petra")
    approve(site.lake, made.name, "Anna")
    assert apply(reach, made.name, subject, "Otto").certificate.is_clean


def places_of(folder, needle):
    """Return the files below a folder that hold some bytes."""
    return [path for path in folder.rglob("*") if path.is_file() and needle.encode() in path.read_bytes()]


def test_a_deleted_lake_comes_back_byte_for_byte(site, uri):
    """The lake goes on where it was: its numbers, its audit log, and the segments that came since."""
    before = digests(site.folder / "lake")
    backup(site.lake, uri)
    site_spool = Spool(str(site.spool))
    put_segment(site.spool, step_rows(10, segment=2, start=days_ago(1)), rows_before=20)
    shutil.rmtree(site.folder / "lake")
    lake = bring_back(site, uri, "lake")
    after = digests(site.folder / "lake")
    assert after == before
    ingest(lake, site_spool, InProcess())
    assert len(site.rows("steps")) == 30
    record(lake, "Ann", "test", "second")
    assert prove(lake).whole
    assert [item.faults for item in balance(lake) if item.faults] == []


def test_an_increment_copies_only_what_is_new(site, uri):
    """Files that are there are not copied again, nor read; the objects' bytes are those of the lake's new files."""
    first = backup(site.lake, uri)
    assert first.copied_bytes == first.backup.size_bytes
    assert backup(site.lake, uri).copied_bytes == 0
    before = {path: path.stat().st_size for path in (site.folder / "lake").rglob("*") if path.is_file()}
    site.bring(step_rows(5000, segment=2, start=days_ago(1)), rows_before=20)
    after = {path: path.stat().st_size for path in (site.folder / "lake").rglob("*") if path.is_file()}
    fresh = sum(size for path, size in after.items() if path not in before)
    increment = backup(site.lake, uri)
    assert fresh <= increment.copied_bytes + increment.manifest_bytes <= 1.2 * fresh


def test_an_erased_person_does_not_come_back(site, uri):
    """The next backup takes the person out of the place; what was made before is refused, and its bytes are gone."""
    lines = [f"by {EMAIL}" for _ in range(20)]
    site.bring(any_rows("logs", 20, run="shared", incarnation=9, start=days_ago(2), message=lines), "logs")
    # A plain file with the address shows what a search of compressed data files could pass over.
    (site.folder / "lake/note.txt").write_text(EMAIL)
    first = backup(site.lake, uri)
    objects = {file.sha256 for file in first.backup.files if file.path.startswith("tables/logs/date=")}
    assert places_of(site.folder / "backups", EMAIL)
    (site.folder / "lake/note.txt").unlink()
    erase(site, EMAIL)
    second = backup(site.lake, uri)
    assert second.expired == (1,)
    assert not places_of(site.folder / "backups", EMAIL)
    assert not [path for path in (site.folder / "backups/objects").rglob("*") if path.name in objects]
    with pytest.raises(BackupError, match="no backup 1"):
        choose(Store.at(uri), 1)
    assert bring_back(site, uri).store.number == site.lake.store.number
    assert not places_of(site.folder / "restored", EMAIL)


def remove_a_day(site):
    """Have retention remove the steps of three days ago."""
    short = with_period("raw", 1)
    made = plan(site, policies=short)
    agree(site, made.name)
    carry_out(site, made.name, policies=short)


def without_delay(lake):
    """Open a lake of which backups keep nothing that retention removed."""
    return lake.configured(backup=BackupSection(keep_days=0))


def test_a_backup_from_before_a_removal_is_refused_while_it_is_there(site, uri, monkeypatch):
    """Killed before it deletes what is out of date, a backup leaves manifests that restore does not take."""
    backup(site.lake, uri)
    remove_a_day(site)
    monkeypatch.setattr(module, "_expire", lambda *_: ((), 0))
    backup(site.lake, uri)
    with pytest.raises(BackupError, match=r"backup 1 would bring back what was removed later \(retention 0+\d+\)"):
        choose(Store.at(uri), 1, keep_days=0)
    monkeypatch.undo()
    assert backup(without_delay(site.lake), uri).expired == (1,)


def age(uri, days):
    """Make all backups of a place so many days older."""
    for number in numbers_of(Store.at(uri)):
        path = Path(uri) / f"backups/{number:010d}.json"
        facts = json.loads(path.read_text())
        facts["created"] = (datetime.fromisoformat(facts["created"]) - timedelta(days=days)).isoformat()
        path.write_text(json.dumps(facts))


def test_one_can_go_back_by_keep_days_though_retention_removes_every_night(site, uri, capsys):
    """Until then an earlier backup brings back what retention took, and says so; then it is refused, and deleted."""
    backup(site.lake, uri)
    remove_a_day(site)
    assert backup(site.lake, uri).expired == ()
    age(uri, 6)
    assert backup(site.lake, uri).expired == ()
    target = str(site.folder / "earlier")
    assert run(["restore", uri, "--to", target, "--backup", "1", "--by", "Ann"]) == 0
    assert "what retention removed since is back (retention 0" in capsys.readouterr().out
    lake = Lake.open(target)
    assert len(read(lake.tables, contract("steps"))) == 20
    assert [item.faults for item in balance(lake) if item.faults] == []
    site.lake = lake
    remove_a_day(site)  # it is due again, as it was
    assert len(read(lake.tables, contract("steps"))) == 0
    age(uri, 2)
    with pytest.raises(BackupError, match="backup 1 would bring back"):
        choose(Store.at(uri), 1)
    site.lake = Lake.open(str(site.folder / "lake"))
    assert backup(site.lake, uri).expired == (1,)
    assert numbers_of(Store.at(uri)) == [2, 3, 4]


def test_a_restore_is_on_record(site, uri, tmp_path):
    """A row of the audit log that comes back says who restored what; the lake that is there gets none."""
    backup(site.lake, uri)
    target = str(tmp_path / "restored")
    assert run(["restore", uri, "--to", target, "--by", "Ann"]) == 0
    lake = Lake.open(target)
    row = trail(lake.tables)[-1]
    manifest = (tmp_path / "backups/backups/0000000001.json").read_bytes()
    assert (row["actor"], row["action"], row["subject"]) == ("Ann", ACTION, "backup 1")
    details = json.loads(row["details"])
    assert details["manifest_sha256"] == _digest(manifest)
    assert (details["undone"], details["backup"]) == ([], 1)
    assert {"audit", "steps"} <= set(details["tables"])
    assert prove(lake).whole
    assert len(trail(site.lake.tables)) + 1 == len(trail(lake.tables))


def test_a_restore_that_is_cut_off_before_the_marker_is_on_record_once(site, uri, tmp_path, monkeypatch):
    """Killed after its row of the audit log, it leaves no lake; the next call writes that row anew, and only one."""
    backup(site.lake, uri)
    target = tmp_path / "restored"
    with monkeypatch.context() as patched:

        def die_after(*row, **details):
            record(*row, **details)
            raise SystemExit(9)

        patched.setattr(restore_module, "record", die_after)
        with pytest.raises(SystemExit):
            restore(Store.at(uri), choose(Store.at(uri)), Store.at(str(target)), by="Ann")
    assert not (target / "ranklake.json").exists()
    assert run(["restore", uri, "--to", str(target), "--by", "Ann"]) == 0
    lake = Lake.open(str(target))
    assert [row["action"] for row in trail(lake.tables)] == ["test", ACTION]
    assert prove(lake).whole


def test_what_a_backup_left_that_was_cut_off_goes(site, uri, monkeypatch):
    """Bytes that were copied before the process died are of no manifest: the next backup uses or deletes them."""
    (site.folder / "lake/note.txt").write_text(EMAIL)
    with monkeypatch.context() as patched:
        patched.setattr(module.Backup, "to_json", lambda _: (_ for _ in ()).throw(SystemExit()))
        with pytest.raises(SystemExit):
            backup(site.lake, uri)
    assert places_of(site.folder / "backups", EMAIL)
    with pytest.raises(BackupError, match="no backup is there"):
        choose(Store.at(uri))
    (site.folder / "lake/note.txt").unlink()
    assert backup(site.lake, uri).objects < 5
    assert not places_of(site.folder / "backups", EMAIL)


def test_a_forgotten_key_stays_forgotten(site, uri):
    """A mark of the lake that a key was forgotten makes earlier backups out of date, as they lack it."""
    backup(site.lake, uri)
    site.lake.put_if_absent("forgotten/0123456789abcdef", b"")
    assert backup(site.lake, uri).expired == (1,)
    assert bring_back(site, uri).fs.exists(f"{site.folder}/restored/forgotten/0123456789abcdef")


def test_a_later_hold_stays_in_force(site, uri):
    """The audit log that comes back is the newest one, so holds and approvals since an earlier backup stay."""
    backup(site.lake, uri)
    record(site.lake, "Ann", "test", "second")
    site.bring(step_rows(10, segment=2, start=days_ago(1)), rows_before=20)
    backup(site.lake, uri)
    lake = bring_back(site, uri, number=1)
    assert len(read(lake.tables, contract("steps"))) == 20
    assert prove(lake).rows == 2
    assert prove(lake).whole
    ingest(lake, Spool(str(site.spool)), InProcess())
    assert len(read(lake.tables, contract("steps"))) == 30
    assert [item.faults for item in balance(lake) if item.faults] == []


def test_a_plan_that_is_half_carried_out_is_finished_after_a_restore(site, uri, monkeypatch):
    """Killed between two tables, an ingest is part of the backup, and the next process ends it."""
    put_segment(site.spool, step_rows(10, segment=2, start=days_ago(1)), rows_before=20)
    with monkeypatch.context() as patched:
        die_before(patched, "segments")
        with pytest.raises(SystemExit):
            ingest(site.lake, Spool(str(site.spool)), InProcess())
    backup(site.lake, uri)
    shutil.rmtree(site.folder / "lake")
    lake = bring_back(site, uri, "lake")
    ingest(lake, Spool(str(site.spool)), InProcess())
    site.lake = lake
    assert set(site.keys().values()) == {1}
    assert len(site.rows("steps")) == 30
    assert [item.faults for item in balance(lake) if item.faults] == []


def test_nothing_is_restored_over_anything(site, uri, tmp_path):
    """A lake, a stranger's file, another restore and the backups themselves keep their places."""
    backup(site.lake, uri)
    place = Store.at(uri)
    chosen = choose(place)
    before = digests(tmp_path)
    (tmp_path / "other").mkdir()
    (tmp_path / "other/notes.txt").write_text("mine")
    for name, message in (("lake", "a lake is there"), ("other", "not empty"), ("backups/x", "lies in that of the")):
        with pytest.raises(BackupError, match=message):
            restore(place, chosen, Store.at(str(tmp_path / name)))
    (tmp_path / "half").mkdir()
    (tmp_path / "half/restoring.json").write_text("{}")
    with pytest.raises(BackupError, match="another backup is being restored"):
        restore(place, chosen, Store.at(str(tmp_path / "half")))
    assert {name: digest for name, digest in digests(tmp_path).items() if name in before} == before


def test_the_place_of_backups_is_one_lakes(site, uri, tmp_path):
    """Another lake's place, one in the lake, one with files, and one of a newer ranklake are refused with a line."""
    backup(site.lake, uri)
    other = Lake.create(str(tmp_path / "second"))
    with pytest.raises(BackupError, match="backups of another lake are there"):
        backup(other, uri)
    with pytest.raises(BackupError, match="lies in the lake"):
        backup(site.lake, f"{site.lake.uri}/backups")
    with pytest.raises(BackupError, match="not empty"):
        backup(site.lake, str(site.spool))
    path = tmp_path / "backups/backups/0000000001.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "format": 3}))
    for call in (lambda: choose(Store.at(uri)), lambda: backup(site.lake, uri)):
        with pytest.raises(BackupError, match="backups of format 3, and this ranklake reads 2; upgrade"):
            call()


@pytest.mark.parametrize("path", ["../out", "/etc/out", "tables/../../out", "", "a//b"])
def test_a_manifest_leads_nowhere_else(site, uri, tmp_path, path):
    """Whoever may write to the backups cannot have a restore write beside the lake."""
    backup(site.lake, uri)
    manifest = tmp_path / "backups/backups/0000000001.json"
    facts = json.loads(manifest.read_text())
    facts["files"][0]["path"] = path
    manifest.write_text(json.dumps(facts))
    with pytest.raises(BackupError, match="names a file outside of the lake"):
        bring_back(site, uri)
    assert not (tmp_path / "restored").exists()


def test_a_damaged_object_is_named_and_nothing_opens(site, uri, tmp_path):
    """One flipped byte in the place of backups: restore and drill name the file; the lake's marker is not written."""
    made = backup(site.lake, uri).backup
    file = next(file for file in made.files if "tables/steps/date=" in file.path)
    path = tmp_path / "backups" / object_name(file.sha256)
    path.write_bytes(bytes([path.read_bytes()[0] ^ 1]) + path.read_bytes()[1:])
    with pytest.raises(BackupError, match=r"tables/steps/date=.* differ from their digest"):
        bring_back(site, uri)
    assert not (tmp_path / "restored/ranklake.json").exists()
    with pytest.raises(BackupError, match="differ from their digest"):
        drill(Store.at(uri), LakeConfig())


def test_a_damaged_file_of_the_lake_is_told_and_the_rest_is_backed_up(site, uri, tmp_path, capsys):
    """What was sound in an earlier backup stays sound; what never was is named, and the drill says so."""
    path = min((tmp_path / "lake/tables/steps").glob("date=*/*.parquet"))
    whole = path.read_bytes()
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    assert run(["backup", uri, "--lake", site.lake.uri]) == 1
    assert f"{path.relative_to(tmp_path / 'lake')}: damaged, not backed up" in capsys.readouterr().out
    assert run(["drill", uri]) == 1
    path.write_bytes(whole)
    assert not backup(site.lake, uri).backup.damaged
    path.write_bytes(whole[:-9] + b"x" + whole[-8:])
    assert not backup(site.lake, uri).backup.damaged
    assert not drill(Store.at(uri), LakeConfig()).faults


def test_one_table_comes_back_as_a_lake_of_its_own(site, uri, capsys):
    """It can be asked, and has another number, so that no spool takes it for the lake; an unknown name gets a hint."""
    backup(site.lake, uri)
    lake = bring_back(site, uri, tables=["steps"])
    assert lake.store.number != site.lake.store.number
    assert len(read(lake.tables, contract("steps"))) == 20
    assert not (site.folder / "restored/plans").exists()
    assert run(["restore", uri, "--to", str(site.folder / "more"), "--table", "stpes"]) == 2
    assert "did you mean 'steps'" in capsys.readouterr().err


def test_a_point_in_time(site, uri, capsys):
    """The last backup at or before a time is taken; before the first there is none."""
    first = backup(site.lake, uri).backup.created
    second = backup(site.lake, uri).backup.created
    place = Store.at(uri)
    assert choose(place, at=first).number == 1
    assert choose(place, at=second - timedelta(microseconds=1)).number == 1
    assert choose(place, at=second).number == 2
    target = str(site.folder / "restored")
    assert run(["restore", uri, "--to", target, "--at", (first - timedelta(seconds=1)).isoformat()]) == 2
    assert "no backup at or before" in capsys.readouterr().err
    assert run(["restore", uri, "--to", target, "--at", "yesterday"]) == 2


def test_backups_beyond_those_to_keep_go(site, uri):
    """With --keep 2 the two newest stay, and files that only others had are gone."""
    for at in range(4):
        (site.folder / "lake/note.txt").write_text(str(at))
        backup(site.lake, uri, keep=2)
    assert numbers_of(Store.at(uri)) == [3, 4]
    assert not [path for path in (site.folder / "backups/objects").rglob("*") if path.name == _digest(b"0")]
    assert (site.folder / "backups/objects" / _digest(b"2")[:2] / _digest(b"2")).exists()


def _digest(raw):
    return hashlib.sha256(raw).hexdigest()


def test_a_commit_in_between_starts_the_look_over(site, uri, monkeypatch):
    """Tables that are committed to while files are listed are looked at again, so no table is ahead of another."""
    genuine, calls = module.listed, []

    def slow(fs, root):
        entries = genuine(fs, root)
        if not calls:
            calls.append(site.bring(step_rows(10, segment=2, start=days_ago(1)), rows_before=20))
        return entries

    monkeypatch.setattr(module, "listed", slow)
    made = backup(site.lake, uri).backup
    assert made.tables["steps"].rows == 30
    assert not drill(Store.at(uri), LakeConfig()).faults


def test_files_that_go_while_they_are_copied_start_it_over(site, uri, monkeypatch):
    """An erasure takes files away meanwhile: the backup is of the lake afterwards, and keeps nothing of before."""
    site.bring(step_rows(7, run="other", incarnation=9, start=days_ago(1)))
    genuine, calls = module._copy_file, []

    def copy(*arguments):
        copied = genuine(*arguments)
        if arguments[-1].path.startswith(f"tables/steps/date={days_ago(1):%Y-%m-%d}") and not calls:
            calls.append(copied.file.sha256)
            erase(site, run_name="other")
            raise FileNotFoundError
        return copied

    monkeypatch.setattr(module, "_copy_file", copy)
    made = backup(site.lake, uri).backup
    assert made.tables["steps"].rows == 20
    assert len(made.removals) == 1
    referenced = {file.sha256 for file in made.files}
    assert calls[0] not in referenced
    assert {path.name for path in (site.folder / "backups/objects").rglob("*") if path.is_file()} == referenced
    assert not drill(Store.at(uri), LakeConfig()).faults


def test_the_witness_knows_rows_that_a_restore_lacks(site, uri, tmp_path, capsys):
    """Rows of the audit log since the last backup are lost with the lake: the witness says so, until it is resumed."""
    config = LakeConfig(audit=AuditSection(witness=str(tmp_path / "witness")))
    lake = Lake.open(site.lake.uri, config=config)
    record(lake, "Ann", "test", "second")
    backup(lake, uri)
    assert not drill(Store.at(uri), config).faults
    record(lake, "Ann", "test", "third")
    shutil.rmtree(tmp_path / "lake")
    assert run(["restore", uri, "--to", str(tmp_path / "lake"), "--by", "Ann"]) == 0
    again = Lake.open(site.lake.uri, config=config)
    assert prove(again).whole is False
    with pytest.raises(BrokenTrailError, match="audit resume"):
        record(again, "Ann", "test", "fourth")
    resume(again, "Ann", "the bucket was lost")  # the lost row has the number of the one that tells of the restore
    record(again, "Ann", "test", "fourth")
    assert prove(again).whole
    assert [row["action"] for row in trail(again.tables)] == ["test", "test", ACTION, RESUME, "test"]


class Quiet(SimpleHTTPRequestHandler):
    """Answers that nothing is there."""

    def log_message(self, *_):
        """Say nothing."""


def test_a_web_server_is_no_place_to_write_to(site, uri, tmp_path, capsys, monkeypatch):
    """Whatever command would write a lake or its copy there says so in one line."""
    backup(site.lake, uri)
    monkeypatch.chdir(tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Quiet) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        web = f"http://127.0.0.1:{server.server_port}/nothing"
        ingesting = ["ingest", "--new", "--lake", web, "--spool", str(site.spool)]
        for command in (["backup", web, "--lake", site.lake.uri], ["restore", uri, "--to", web], ingesting):
            assert run(command) == 2, command
            (line,) = capsys.readouterr().err.splitlines()
            assert "no store is reached by http:; name a folder, or a place of s3, " in line
        server.shutdown()


def test_a_removal_reaches_every_configured_place(site, uri, tmp_path, capsys, monkeypatch):
    """``erase apply`` brings backups up to date; a place that is out of reach is named, and it exits 1."""
    line = f"by {EMAIL}"
    site.bring(any_rows("logs", 5, run="shared", incarnation=9, start=days_ago(2), message=[line] * 5), "logs")
    gone = tmp_path / "gone"
    (tmp_path / "ranklake.toml").write_text(f"[backup]\nto = {json.dumps([uri, str(gone)])}\n")
    monkeypatch.chdir(tmp_path)
    assert run(["backup", "--lake", site.lake.uri]) == 0
    assert run(["backup", "--list"]) == 0
    assert f"{gone}: 1 backup" in capsys.readouterr().out
    (gone / "ranklake-backup.json").write_text("{}")
    options = ["--lake", site.lake.uri, "--spool", str(site.spool)]
    assert run(["erase", "plan", EMAIL, *options, "--by", "Petra", "--json"]) == 0
    name = json.loads(capsys.readouterr().out)["erasure"]
    assert run(["erase", "approve", name, "--lake", site.lake.uri, "--by", "Anna"]) == 0
    assert run(["erase", "apply", name, EMAIL, *options, "--by", "Otto"]) == 1
    out = capsys.readouterr().out
    assert f"{gone} still holds what was removed" in out
    assert numbers_of(Store.at(uri)) == [2]


def commanded(*arguments):
    """Start a command in a process of its own."""
    command = [sys.executable, "-m", "ranklake", *arguments]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


KILLS = int(os.environ.get("BACKUP_KILLS", "10"))


@pytest.mark.slow
@pytest.mark.parametrize("key", ["", "env:KEYRING"])
def test_kills_of_backup_and_restore_converge(site, uri, tmp_path, monkeypatch, key):
    """Killed at any point, a backup is none, a restore leaves no lake; the next of each ends it, byte for byte."""
    monkeypatch.setenv("KEYRING", "2b" * 32)
    monkeypatch.setenv("RANKLAKE_BACKUP_KEY", key)
    chance = random.Random(int(os.environ.get("BACKUP_SEED", "7")))
    lake = site.lake.uri
    for path in range(300):  # so that copying takes a while
        (tmp_path / f"lake/note-{path}.txt").write_text(f"{path}" * 1000)
    begin = time.monotonic()
    assert commanded("backup", uri, "--lake", lake).wait() == 0
    whole_s = time.monotonic() - begin
    for attempt in range(KILLS):
        for path in range(300):
            (tmp_path / f"lake/note-{path}.txt").write_text(f"{attempt} {path}" * 1000)
        before = numbers_of(Store.at(uri))
        process = commanded("backup", uri, "--lake", lake)
        time.sleep(chance.uniform(0.3, 1) * whole_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert set(numbers_of(Store.at(uri))) >= set(before)
        choose(unlock(Store.at(uri), key))
        assert commanded("backup", uri, "--lake", lake, "--keep", "2").wait() == 0
        target = tmp_path / f"restored-{attempt}"
        process = commanded("restore", uri, "--to", str(target))
        time.sleep(chance.uniform(0.3, 1) * whole_s)
        process.send_signal(signal.SIGKILL)
        process.wait()
        if not (target / "ranklake.json").exists():
            assert commanded("restore", uri, "--to", str(target)).wait() == 0
        else:
            commanded("restore", uri, "--to", str(target)).wait()
        expected = {name: value for name, value in digests(tmp_path / "lake").items() if not name.endswith(".tmp")}
        assert copied(digests(target)) == copied(expected)
        assert prove(Lake.open(str(target))).whole
    assert not list((tmp_path / "backups/backups").glob("*.tmp"))
