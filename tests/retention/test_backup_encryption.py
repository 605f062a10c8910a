"""Encrypted backups: nobody without the key reads or tests what is in a place, and all else is as in clear."""

import hashlib
import json
import signal
import subprocess
import sys

import pytest
from fsspec.implementations.local import LocalFileSystem
from governed import Site, any_rows
from retaining import bring_days, days_ago
from segments import step_rows

from ranklake.cli import run
from ranklake.config import load_config
from ranklake.context import Context
from ranklake.lake.audit.proof import prove
from ranklake.lake.audit.trail import record
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import BackupSection, LakeConfig
from ranklake.lake.store.store import Store
from ranklake.pipeline.backups import backup_once, drill_once
from ranklake.retention.backup.backup import backup
from ranklake.retention.backup.history import drill, last_drill
from ranklake.retention.backup.place import (
    MARKER,
    BackupError,
    address,
    backups_of,
    numbers_of,
    object_name,
    read_file,
    unlock,
)
from ranklake.retention.backup.restore import choose, restore
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import Reach, subject_of

SOURCE = "env:BACKUP_KEYRING"
EMAIL = "ada@analytical.example"


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Give a lake with two days of steps, a row of the audit log, and a key for its backups."""
    monkeypatch.setenv("BACKUP_KEYRING", "5c" * 32)
    monkeypatch.setenv("OTHER_KEYRING", "a7" * 32)
    monkeypatch.chdir(tmp_path)
    site = Site(tmp_path)
    bring_days(site, (3, 2))
    record(site.lake, "Ann", "test", "first")
    (tmp_path / "ranklake.toml").write_text(f'[lake]\nuri = "{site.lake.uri}"\n[backup]\nkey = "{SOURCE}"\n')
    return site


@pytest.fixture
def uri(tmp_path):
    """Give the place of its backups."""
    return str(tmp_path / "backups")


def back_up(site, uri):
    """Back the lake up under its key."""
    lake = Lake.open(site.lake.uri, config=LakeConfig(backup=BackupSection(key=SOURCE)))
    return backup(lake, uri)


def opened(uri):
    """Return the place with its key."""
    return unlock(Store.at(uri), SOURCE)


def files_of(folder):
    """Return the bytes of every file below a folder, by its path there."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def in_clear(uri, folder):
    """Return all that a place says to who has the key, by path."""
    place = opened(uri)
    return {path: read_file(place, path) for path in files_of(folder) if path != "ranklake-backup.json"}


def test_the_lake_comes_back_and_an_increment_costs_what_is_new(site, uri, tmp_path):
    """Byte for byte, and nothing is copied twice: the same bytes have the same name and envelope under a key."""
    first = back_up(site, uri)
    assert back_up(site, uri).copied_bytes == 0
    before = files_of(tmp_path / "lake")
    site.bring(step_rows(5000, segment=2, start=days_ago(1)), rows_before=20)
    after = files_of(tmp_path / "lake")
    fresh = sum(len(raw) for path, raw in after.items() if path not in before)
    increment = back_up(site, uri)
    assert fresh <= increment.copied_bytes + increment.manifest_bytes <= 1.2 * fresh
    place, target = opened(uri), Store.at(str(tmp_path / "restored"))
    restore(place, choose(place), target)
    assert files_of(tmp_path / "restored") == after
    assert prove(Lake.open(target.uri)).whole
    assert first.backup.number == 1
    measured = drill(place, LakeConfig())
    assert measured.faults == ()
    assert last_drill(place) == measured.plain()


def test_who_reads_the_place_learns_no_name_and_cannot_test_for_content(site, uri, tmp_path):
    """No run, table, host or user, in names or bytes; no object bears the digest of what is in it."""
    made = back_up(site, uri).backup
    drill(opened(uri), LakeConfig())
    digests = {hashlib.sha256(raw).hexdigest() for raw in files_of(tmp_path / "lake").values()}
    assert digests >= {file.sha256 for file in made.files}
    there = files_of(tmp_path / "backups")
    for path, raw in there.items():
        assert not any(digest in path for digest in digests)
        assert not [word for word in ("steps", "tables", "_delta_log", ".parquet", *digests) if word.encode() in raw]
    places = {path.rpartition("/")[2] for path in there if path.startswith("objects/")}
    assert places == {address(opened(uri), file.sha256) for file in made.files}


COMMANDS = (["backup", "backups"], ["backup", "backups", "--list"], ["restore", "backups", "--to", "restored"],
            ["drill", "backups"], ["repair", "steps", "backups"])  # fmt: skip


@pytest.mark.parametrize("command", COMMANDS, ids=" ".join)
def test_without_the_key_every_command_refuses_in_a_line(site, uri, tmp_path, capsys, monkeypatch, command):
    """No key, another key, a key for a place in clear: one line that says which; nothing is written."""
    monkeypatch.delenv("RANKLAKE_BACKUP_KEY", raising=False)
    assert run(["backup", "backups"]) == 0
    before = files_of(tmp_path / "backups")
    config = (tmp_path / "ranklake.toml").read_text()
    for text, message in (
        (config.replace(f'key = "{SOURCE}"', ""), "and no key is named; name its keyring by key under [backup]"),
        (config.replace(SOURCE, "env:OTHER_KEYRING"), "is not available; name its keyring by key under [backup]"),
    ):
        (tmp_path / "ranklake.toml").write_text(text)
        capsys.readouterr()
        assert run(command) == 2
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("ranklake: ")
        assert "backups: the backups" in line
        assert "encrypted under key " in line
        assert message in line
    (tmp_path / "ranklake.toml").write_text(config.replace(f'key = "{SOURCE}"', ""))
    assert run(["backup", "clear"]) == 0
    (tmp_path / "ranklake.toml").write_text(config)
    capsys.readouterr()
    assert run([word.replace("backups", "clear") for word in command]) == 2
    assert "the backups there are not encrypted, and a key is named; name an empty place" in capsys.readouterr().err
    assert files_of(tmp_path / "backups") == before
    assert not (tmp_path / "restored").exists()


def test_with_the_key_every_command_works(site, uri, tmp_path, capsys):
    """Backup, list, drill, restore, and a log that was lost is put back."""
    assert run(["backup", "backups"]) == 0
    log = tmp_path / "lake/tables/steps/_delta_log"
    entries = files_of(log)
    for path in log.iterdir():
        path.unlink()
    for command in (COMMANDS[4], *COMMANDS[:4]):
        assert run(command) == 0, command
    assert files_of(log) == entries
    assert "backup 2: sound" in capsys.readouterr().out


def test_the_stages_and_the_doctor_have_the_key(site, uri, tmp_path, capsys):
    """Scheduled backups and drills work by the setting; the doctor reads the drill, and says what it cannot open."""
    config = f'[lake]\nuri = "{site.lake.uri}"\n[backup]\nto = ["{uri}"]\nkey = "{SOURCE}"\n'

    def look():
        run(["doctor", "--json"])
        found = json.loads(capsys.readouterr().out)["findings"]
        return [(item["state"], item["what"]) for item in found if item["check"] == "backup"]

    (tmp_path / "ranklake.toml").write_text(config)
    context = Context.of(load_config(tmp_path / "ranklake.toml"))
    for stage in (backup_once, drill_once):
        done = stage(context)
        assert (done["failed"], len(done["places"])) == ([], 1)
    assert numbers_of(opened(uri)) == [1]
    assert [state for state, _ in look()] == ["ok", "ok"]
    (tmp_path / "ranklake.toml").write_text(config.replace(f'key = "{SOURCE}"\n', ""))
    ((state, text),) = look()
    assert state == "failed"
    assert "and no key is named" in text
    failed = drill_once(Context.of(load_config(tmp_path / "ranklake.toml")))["failed"]
    assert [item["place"] for item in failed] == [uri]


@pytest.mark.parametrize("change", ["flipped", "exchanged", "in clear", "cut off"])
def test_a_changed_object_is_named_and_nothing_opens(site, uri, tmp_path, change):
    """A byte anywhere, another object in its place, or the right bytes in clear: the file is named."""
    file = next(each for each in back_up(site, uri).backup.files if "tables/steps/date=" in each.path)
    place = opened(uri)
    path = tmp_path / "backups" / object_name(address(place, file.sha256))
    raw = path.read_bytes()
    other = next(each for each in (tmp_path / "backups/objects").rglob("*") if each.is_file() and each != path)
    changes = {
        "flipped": [raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1 :] for at in (0, 9, 20, 50, len(raw) - 1)],
        "exchanged": [other.read_bytes()],
        "in clear": [(tmp_path / "lake" / file.path).read_bytes()],
        "cut off": [raw[:-1], raw[:40], b""],
    }
    for changed in changes[change]:
        path.write_bytes(changed)
        with pytest.raises(BackupError, match=r"tables/steps/date=.* are not what was encrypted"):
            restore(place, choose(place), Store.at(str(tmp_path / "restored")))
    assert not (tmp_path / "restored/ranklake.json").exists()


def test_a_changed_manifest_is_refused(site, uri, tmp_path):
    """A flipped byte, and the manifest of another number: neither is read."""
    back_up(site, uri)
    back_up(site, uri)
    first, second = sorted((tmp_path / "backups/backups").iterdir())
    raw = second.read_bytes()
    for changed in (raw[:-1] + bytes([raw[-1] ^ 1]), first.read_bytes(), b'{"format": 1}'):
        second.write_bytes(changed)
        with pytest.raises(BackupError, match="manifest is damaged"):
            choose(opened(uri))
        with pytest.raises(BackupError, match="manifest is damaged"):
            back_up(site, uri)


def test_an_erased_person_is_in_no_backup(site, uri, tmp_path):
    """Of all that is left in the place nothing names the person, opened with the key; the objects themselves go."""
    lines = [f"by {EMAIL}" for _ in range(20)]
    site.bring(any_rows("logs", 20, run="shared", incarnation=9, start=days_ago(2), message=lines), "logs")
    note = tmp_path / "lake/note.txt"
    note.write_text(EMAIL)
    made = [back_up(site, uri), back_up(site, uri)]
    files = {file.sha256 for result in made for file in result.backup.files}
    personal = {address(opened(uri), digest) for digest in files if digest in _digests_of_logs(made)}
    assert any(EMAIL.encode() in raw for raw in in_clear(uri, tmp_path / "backups").values())
    note.unlink()
    reach = Reach(site.lake, Spool(str(site.spool)))
    subject = subject_of(site.lake, (EMAIL,), None)
    plan = make_plan(reach, subject)
    propose(site.lake, plan, "Petra")
    approve(site.lake, plan.name, "Anna")
    assert apply(reach, plan.name, subject, "Otto").certificate.is_clean
    assert back_up(site, uri).expired == (1, 2)
    assert [item.number for item in backups_of(opened(uri))] == [3]
    left = in_clear(uri, tmp_path / "backups")
    assert not [path for path, raw in left.items() if EMAIL.encode() in raw]
    assert not personal & {path.rpartition("/")[2] for path in left}


def _digests_of_logs(made):
    return {file.sha256 for result in made for file in result.backup.files if file.path.startswith("tables/logs/date=")}


DYING = """
import os, signal, sys
from ranklake.cli import run
from ranklake.lake.store.store import Store
put, left = Store.put_if_absent, [int(sys.argv[1])]
def dying(store, name, raw):
    left[0] -= 1
    if not left[0] and store.root.endswith("backups"):
        os.kill(os.getpid(), signal.SIGKILL)
    return put(store, name, raw)
Store.put_if_absent = dying
run(["backup", "backups"])
"""


@pytest.mark.parametrize("writes", [1, 2, 5, 12])
def test_a_backup_that_is_killed_is_ended_by_the_next(site, uri, tmp_path, writes):
    """Before the mark, between objects: no backup is there, and the next one uses what was written."""
    process = subprocess.run([sys.executable, "-c", DYING, str(writes)], cwd=tmp_path, check=False, timeout=120)
    assert process.returncode == -signal.SIGKILL
    assert numbers_of(Store.at(uri)) == []
    written = len([path for path in files_of(tmp_path / "backups") if not path.endswith(".tmp")]) if writes > 1 else 0
    result = back_up(site, uri)
    assert result.objects == len({file.sha256 for file in result.backup.files}) - max(0, written - 1)
    assert drill(opened(uri), LakeConfig()).faults == ()


def test_a_place_is_unlocked_by_one_look_at_its_marker(site, uri, monkeypatch):
    """In clear as encrypted; a store far away is asked once."""
    back_up(site, uri)
    backup(site.lake, f"{uri}-clear")
    reads: list[str] = []
    read = LocalFileSystem.cat_file
    monkeypatch.setattr(LocalFileSystem, "cat_file", lambda fs, path: (reads.append(path), read(fs, path))[1])
    for uri_of, source in ((uri, SOURCE), (f"{uri}-clear", "")):
        unlock(Store.at(uri_of), source)
        assert [path.rpartition("/")[2] for path in reads] == [MARKER]
        reads.clear()
