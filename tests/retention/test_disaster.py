"""The runbooks of docs/disaster-recovery.md: each loses a thing for real, and follows the page, command by command."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest
from ciphered import ONE, TWO, encrypt_segment, source_of
from governed import Site, die_before
from own_words import words_of_no_row
from retaining import agree, bring_days, carry_out, days_ago, plan, with_period
from segments import put_segment, step_rows

from ranklake.cli import run
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import trail
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import ensure_table
from ranklake.retention.backup.place import BackupError
from ranklake.retention.backup.restore import repair

PAGE = Path(__file__).parents[2] / "docs/disaster-recovery.md"
LOG = "lake/tables/steps/_delta_log"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a lake with two days of steps, which is backed up; and stand where the page's commands are typed."""
    site = Site(tmp_path)
    bring_days(site, (3, 2))
    (tmp_path / "ranklake.toml").write_text('[lake]\nuri = "lake"\n[spool]\nuri = "spool"\n')
    monkeypatch.chdir(tmp_path)
    assert run(["backup", "backups"]) == 0
    return site


def section(heading):
    """Return the commands of a section of the page."""
    text = PAGE.read_text(encoding="utf-8")
    _, _, rest = text.partition(f"\n## {heading}\n")
    assert rest, heading
    blocks = re.findall(r"```sh\n(.*?)```", rest.partition("\n## ")[0], re.DOTALL)
    return [line.split("#")[0].strip() for block in blocks for line in block.splitlines() if line.strip()]


def follow(heading, until=""):
    """Carry out the commands of a section, up to one that begins so; each exits 0."""
    for command in section(heading):
        if until and command.startswith(until):
            break
        assert run(shlex.split(command)[1:]) == 0, command


def come(site, segment, age=1):
    """Send ten rows more."""
    put_segment(site.spool, step_rows(10, segment=segment, start=days_ago(age)), rows_before=10 * segment)


def sums(lake):
    """Return the rows of steps and of the ledger, without when and by whom they were stored."""
    left_out = {"committed_ts", "created_ts", "writer", "date"}
    rows = [row for name in ("steps", "ingest_plans") for row in read(lake.tables, contract(name)).to_pylist()]
    return sorted(str({name: value for name, value in row.items() if name not in left_out}) for row in rows)


def adds_up(lake):
    """Assert that a lake has all rows that were recorded, each once, and a whole audit log."""
    assert [fault for item in balance(lake) for fault in item.faults] == []
    assert prove(lake).whole


def test_the_lake_is_lost(site):
    """Its folder is deleted after more came in: what comes back, with what the spool has, is what was there."""
    come(site, 2)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    before = sums(site.lake)
    shutil.rmtree(site.folder / "lake")
    follow("The lake is lost")
    lake = Lake.open(str(site.folder / "restored"))
    assert sums(lake) == before
    adds_up(lake)


def test_an_entry_of_a_log_is_lost(site, capsys):
    """A gap in the log stops every reader; the entry comes back, and nothing else is touched."""
    before = sums(site.lake)
    entry = site.folder / LOG / f"{1:020d}.json"
    raw = entry.read_bytes()
    entry.unlink()
    assert run(["status"]) == 2
    follow("A table's log, or some of its files, are lost", "ranklake replay")
    assert "steps: 1 log entry and 0 data files came back" in capsys.readouterr().out
    assert entry.read_bytes() == raw
    assert sums(site.lake) == before
    row = trail(site.lake.tables)[-1]
    assert (row["action"], row["subject"]) == ("backup.repair", "steps")
    adds_up(site.lake)


def test_a_whole_log_and_data_files_are_lost(site, capsys):
    """Rows that came after the backup are rebuilt from the spool; no backup is made of the loss meanwhile."""
    come(site, 2)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    before = sums(site.lake)
    shutil.rmtree(site.folder / LOG)
    shutil.rmtree(min((site.folder / "lake/tables/steps").glob("date=*")))  # of before the backup
    assert run(["status"]) == 1
    assert run(["backup", "backups"]) == 2
    assert "steps: the table, or its log, is gone, and the last backup has it" in capsys.readouterr().err
    assert run(["repair", "steps", "backups"]) == 0
    out = capsys.readouterr().out
    assert "steps: 3 log entries and 1 data file came back" in out
    assert "with 20 rows" in out
    assert run(["status"]) == 1
    day = f"{days_ago(1):%Y-%m-%d}"
    (again,) = (line for line in section("A table's log, or some of its files, are lost") if "replay" in line)
    assert run(shlex.split(again.replace("2026-03-01", day))[1:]) == 0
    assert run(["status"]) == 0
    assert [row for row in sums(site.lake) if "'replay'" not in row] == before
    come(site, 3)
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    adds_up(site.lake)
    assert run(["backup", "backups"]) == 0
    assert words_of_no_row(site.folder) == {}


@pytest.mark.parametrize("change", [lambda _: b"", lambda raw: raw + b"x", lambda raw: raw[::-1]])
def test_a_damaged_data_file_is_named_by_the_repair(site, capsys, change):
    """It is not written over; moved away, the next repair puts it back."""
    path = next((site.folder / "lake/tables/steps").glob("date=*/*.parquet"))
    name = str(path.relative_to(site.folder / "lake"))
    raw = path.read_bytes()
    path.write_bytes(change(raw))
    assert run(["repair", "steps", "backups"]) == 1
    (line,) = (line for line in capsys.readouterr().out.splitlines() if line.startswith(name))
    assert line.endswith("; move it away, and run this again")
    assert run(["repair", "steps", "backups", "--json"]) == 1
    assert [*json.loads(capsys.readouterr().out)["damaged"]] == [name]
    assert path.read_bytes() == change(raw)
    path.rename(site.folder / "moved")
    assert run(["repair", "steps", "backups"]) == 0
    assert path.read_bytes() == raw


def test_a_repair_that_is_cut_off_leaves_no_half_log(site, monkeypatch):
    """The first entry comes last: until then the table cannot be opened; the next call ends it."""
    before = sums(site.lake)
    shutil.rmtree(site.folder / LOG)
    genuine = Lake.put_if_absent

    def put(lake, path, raw):
        if path.endswith(f"{0:020d}.json"):
            raise SystemExit
        return genuine(lake, path, raw)

    with monkeypatch.context() as patched:
        patched.setattr(Lake, "put_if_absent", put)
        with pytest.raises(SystemExit):
            repair(Store.at("backups"), site.lake, "steps", "Ann")
    assert run(["sql", "SELECT count(*) FROM steps"]) == 2
    assert repair(Store.at("backups"), site.lake, "steps", "Ann").log_entries == 1
    assert sums(site.lake) == before


def test_a_repair_brings_back_nothing_that_was_removed(site):
    """After a removal that no backup knows of, with another log, or without the ledger, it is refused."""
    place = Store.at("backups")
    with pytest.raises(BackupError, match=r"backup 1 has no table 'stepz'; did you mean 'steps'"):
        repair(place, site.lake, "stepz", "Ann")
    with pytest.raises(BackupError, match="without its ledger"):
        repair(place, site.lake, "ingest_plans", "Ann")
    with pytest.raises(BackupError, match="backups of another lake"):
        repair(place, Lake.create(str(site.folder / "second")), "steps", "Ann")
    short = with_period("raw", 1)
    made = plan(site, policies=short)
    agree(site, made.name)
    carry_out(site, made.name, policies=short)
    shutil.rmtree(site.folder / LOG)
    with pytest.raises(BackupError, match=r"what was removed since backup 1 could come back \(retention 0"):
        repair(place, site.lake, "steps", "Ann")
    assert not (site.folder / LOG).exists()


def test_a_log_that_was_begun_anew_is_not_mixed_with_the_old_one(site, capsys):
    """Ingest does not begin it; where something else did, the restored lake has all rows, the new ones among them."""
    shutil.rmtree(site.folder / LOG)
    come(site, 2)
    assert run(["ingest"]) == 2
    assert "'ranklake repair steps URI' puts it back" in capsys.readouterr().err
    ensure_table(site.lake.tables, contract("steps"))
    assert run(["ingest"]) == 0
    with pytest.raises(BackupError, match="the table has another log than the backup"):
        repair(Store.at("backups"), site.lake, "steps", "Ann")
    follow("The lake is lost")
    lake = Lake.open(str(site.folder / "restored"))
    assert len(read(lake.tables, contract("steps"))) == 30
    adds_up(lake)


def test_a_plan_is_half_carried_out_or_half_written(site, monkeypatch, capsys):
    """Killed between two tables it is ended; one that cannot be read is named, and written anew once it is deleted."""
    come(site, 2)
    with monkeypatch.context() as patched:
        die_before(patched, "segments")
        with pytest.raises(SystemExit):
            ingest(site.lake, Spool(str(site.spool)), InProcess())
    follow("A plan is half carried out, or half written")
    adds_up(site.lake)
    come(site, 3)
    path = site.folder / "lake/plans/0000000004.json"
    path.write_text('{"kind": "inge')
    assert run(["ingest"]) == 2
    assert f"{path}: the plan cannot be read" in capsys.readouterr().err
    path.unlink()
    follow("A plan is half carried out, or half written")
    assert len(site.rows("steps")) == 40
    adds_up(site.lake)


def test_the_spool_is_lost(site, capsys):
    """What was ingested is there; rows that were not are named as soon as the rank's next segment comes."""
    come(site, 2)
    shutil.rmtree(site.spool)
    follow("The spool is lost")
    assert len(site.rows("steps")) == 20
    come(site, 3)
    assert run(["ingest"]) == 0
    assert run(["status"]) == 1
    assert "run r1 attempt 0 rank 0: 10 rows are missing" in capsys.readouterr().err


def test_a_region_is_out_of_reach(site):
    """The lag grows in the table while it is away, and the next backup copies what came meanwhile."""
    (site.folder / "backups").rename(site.folder / "away")
    (site.folder / "backups").write_text("no folder")
    for _ in range(2):
        assert run(["backup", "backups"]) == 2
    (site.folder / "backups").unlink()
    (site.folder / "away").rename(site.folder / "backups")
    come(site, 2)
    assert run(["ingest"]) == 0
    assert run(["backup", "backups"]) == 0
    rows = sorted(read(site.lake.tables, contract("backups")).to_pylist(), key=lambda row: row["ts"])
    assert [row["outcome"] for row in rows] == ["ok", "failed", "failed", "ok"]
    lags = [row["rpo_s"] for row in rows]
    assert lags[0] is None
    assert 0 < lags[1] < lags[2] < lags[3]
    assert run(["drill", "backups"]) == 0


def test_keys_are_lost(site, capsys):
    """Without the key, segments wait in the spool; once its file is put back, the next ingest brings them in."""
    configuration = site.folder / "ranklake.toml"
    source = source_of(site.folder / "keys", ONE)
    configuration.write_text(configuration.read_text() + f'[capture]\nencryption_key = "{source}"\n')
    (site.folder / "keys").rename(site.folder / "copy")
    come(site, 2)
    encrypt_segment(max(site.spool.rglob("*.parquet"), key=lambda path: path.stat().st_mtime_ns), ONE)
    assert run(["ingest"]) == 1
    assert len(site.rows("steps")) == 20
    (site.folder / "copy").rename(site.folder / "keys")
    assert run(["ingest"]) == 0
    assert len(site.rows("steps")) == 30
    adds_up(site.lake)


def test_the_key_of_plans_is_lost_while_one_is_unfinished(site, monkeypatch, capsys):
    """With another key the plan is refused and named; it is deleted, and made anew."""
    configuration, keys = site.folder / "ranklake.toml", site.folder / "plans.keys"
    source = source_of(keys, ONE)
    configuration.write_text(configuration.read_text() + f'[plans]\nkey = "{source}"\nrequire_signed_plans = true\n')
    come(site, 2)
    with monkeypatch.context() as patched:
        die_before(patched, "steps")
        with pytest.raises(SystemExit):
            run(["ingest"])
    capsys.readouterr()
    keys.unlink()
    source_of(keys, TWO)
    assert run(["ingest"]) == 2
    text = capsys.readouterr().err
    named = re.search(r"lake/plans/\d+\.json", text)
    assert named, text
    (site.folder / named.group()).unlink()
    assert run(["ingest"]) == 0
    assert len(site.rows("steps")) == 30
    adds_up(site.lake)
