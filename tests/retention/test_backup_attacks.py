"""Hands, clocks and disks against backups: manifests that were edited, links, odd names, a full store, two at once."""

import json
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime

import pytest
from governed import Site
from retaining import agree, bring_days, carry_out, plan, with_period

from ranklake.cli import run
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import LakeConfig
from ranklake.lake.store.store import Store
from ranklake.retention.backup import backup as module
from ranklake.retention.backup.backup import backup
from ranklake.retention.backup.history import drill
from ranklake.retention.backup.place import BackupError, forbidden, numbers_of, read_backup
from ranklake.retention.backup.restore import choose, restore


@pytest.fixture
def site(tmp_path):
    """Give a lake with two days of steps."""
    site = Site(tmp_path)
    bring_days(site, (3, 2))
    return site


@pytest.fixture
def place(site, tmp_path):
    """Give the place of its one backup."""
    backup(site.lake, str(tmp_path / "backups"))
    return Store.at(str(tmp_path / "backups"))


def edit(tmp_path, change):
    """Edit the first manifest by hand."""
    path = tmp_path / "backups/backups/0000000001.json"
    facts = json.loads(path.read_text())
    change(facts)
    path.write_text(json.dumps(facts))


def exchange(facts):
    """Give two data files each other's bytes."""
    one, other = (file for file in facts["files"] if "steps/date=" in file["path"])
    one["sha256"], other["sha256"] = other["sha256"], one["sha256"]


def twice(facts):
    """Name a file a second time, with other bytes."""
    facts["files"].append({**facts["files"][0], "sha256": "0" * 64})


def below(facts):
    """Name a file that lies in another file."""
    facts["files"].append({**facts["files"][0], "path": f"{facts['files'][0]['path']}/x"})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (exchange, "gives a data file other bytes"),
        (twice, "names a file twice"),
        (below, "names a file that lies in another"),
        (lambda facts: facts.update(files=[]), "lacks ranklake.json, without which there is no lake"),
        (lambda facts: facts.update(tables={}), "names other tables than it has logs of"),
        (lambda facts: facts["tables"].update(other=facts["tables"]["steps"]), "names other tables than it has logs"),
        (lambda facts: facts["files"][0].update(size_bytes=-1), "gives a size or a count that cannot be"),
        (lambda facts: facts["tables"]["steps"].update(rows=-1), "gives a size or a count that cannot be"),
        (lambda facts: facts["files"][0].update(size_bytes="7"), "manifest is damaged"),
        (lambda facts: facts.update(number=7), "of another number, or time; put the file back"),
        (lambda facts: facts.update(created="2026-01-01"), "of another number, or time"),
        (lambda facts: facts.update(removals=None), "manifest is damaged"),
        (lambda facts: facts.update(tables={"steps": {"version": 1}}), "manifest is damaged"),
        (lambda facts: facts.update(files=[{"path": 1}]), "manifest is damaged"),
    ],
)
def test_a_manifest_that_was_edited_is_refused(place, tmp_path, change, message):
    """One line says which, and nothing is written; the next backup does not go by it either."""
    edit(tmp_path, change)
    with pytest.raises(BackupError, match=message):
        choose(place)
    with pytest.raises(BackupError, match=message):
        backup(Lake.open(str(tmp_path / "lake")), place.uri)
    assert numbers_of(place) == [1]
    with pytest.raises(BackupError, match=message):
        restore(place, read_backup(place, 1), Store.at(str(tmp_path / "restored")))
    assert not (tmp_path / "restored").exists()


def test_a_file_that_is_left_out_of_a_manifest_is_missed_by_the_drill(place, tmp_path):
    """What a manifest does not name cannot come back: the drill names the table."""
    edit(tmp_path, lambda facts: facts["files"].remove(next(f for f in facts["files"] if "steps/date" in f["path"])))
    assert drill(place, LakeConfig()).faults == ("steps: 1 data files are missing or not of their size",)


def test_links_in_a_lake_are_not_followed(site, tmp_path):
    """Whoever writes the lake's folder cannot have the backup read other files; a live file behind one is missing."""
    (tmp_path / "secret").write_text("hunter2")
    (tmp_path / "lake/link.txt").symlink_to(tmp_path / "secret")
    (tmp_path / "lake/folder").symlink_to(tmp_path)
    made = backup(site.lake, str(tmp_path / "backups")).backup
    assert not [file.path for file in made.files if file.path.startswith(("link", "folder"))]
    live = next((tmp_path / "lake/tables/steps").glob("date=*/*.parquet"))
    live.rename(tmp_path / "moved")
    live.symlink_to(tmp_path / "moved")
    with pytest.raises(BackupError, match="a live file is missing"):
        backup(site.lake, str(tmp_path / "backups"))


def test_links_in_an_empty_place_are_not_written_through(place, tmp_path):
    """A folder that somebody linked elsewhere before is no empty place."""
    outside, target = tmp_path / "outside", tmp_path / "target"
    outside.mkdir()
    target.mkdir()
    (target / "tables").symlink_to(outside)
    with pytest.raises(BackupError, match="not empty"):
        restore(place, choose(place), Store.at(str(target)))
    assert not list(outside.iterdir())


def test_odd_names_come_back_and_poison_nothing(site, tmp_path):
    """Spaces, other alphabets, percent signs, line breaks; what no restore could write is left out."""
    names = ["ä b #%20?.txt", "'q\".txt", "new\nline.txt", "数据.txt"]
    for name in (*names, "back\\slash.txt"):
        (tmp_path / "lake" / name).write_text(name)
    uri = str(tmp_path / "back ups ü")
    backup(site.lake, uri)
    place, target = Store.at(uri), tmp_path / "zurück gö"
    restore(place, choose(place), Store.at(str(target)))
    assert sorted(path.name for path in target.glob("*.txt")) == sorted(names)
    assert not drill(place, LakeConfig()).faults


def test_backups_at_once_each_get_a_number(site, tmp_path):
    """Four at a time: each is whole, and none takes away what another goes by."""
    uri = str(tmp_path / "backups")
    with ThreadPoolExecutor(4) as pool:
        made = list(pool.map(lambda _: backup(Lake.open(site.lake.uri), uri).backup.number, range(4)))
    assert sorted(made) == [1, 2, 3, 4]
    place = Store.at(uri)
    for number in made:
        target = str(tmp_path / f"restored-{number}")
        restore(place, choose(place, number), Store.at(target))


def test_a_full_store_leaves_no_backup_and_the_next_goes_on(site, tmp_path):
    """A file that does not fit is named in one line; with room again, what was copied is not copied again."""
    (tmp_path / "lake/big.bin").write_bytes(bytes(range(256)) * 8_000)
    command = [sys.executable, "-m", "ranklake", "backup", "backups", "--lake", "lake"]
    limited = ["bash", "-c", 'ulimit -f 900; exec "$@"', "bash", *command]
    done = subprocess.run(limited, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "cannot be written: File too large; make room" in done.stderr
    place = Store.at(str(tmp_path / "backups"))
    assert numbers_of(place) == []
    made = backup(site.lake, place.uri)
    assert made.objects < len(made.backup.files)
    assert not drill(place, LakeConfig()).faults


@pytest.mark.parametrize("year", [1970, 2090])
def test_a_clock_that_was_wrong_once_keeps_no_removed_rows(site, place, monkeypatch, year):
    """Of the backups that tell of a removal the earliest counts, so that a clock ahead does not hold rows for years."""
    short = with_period("raw", 1)
    made = plan(site, policies=short)
    agree(site, made.name)
    carry_out(site, made.name, policies=short)

    class Clock(datetime):
        @classmethod
        def now(cls, tz=None):
            return datetime(year, 1, 2, tzinfo=tz)

    with monkeypatch.context() as patched:
        patched.setattr(module, "datetime", Clock)
        backup(site.lake, place.uri)
    backup(site.lake, place.uri)
    backups = [read_backup(place, number) for number in numbers_of(place)]
    last = datetime.now(UTC)
    assert choose(place, at=last).number == backups[-1].number
    if year > last.year:
        assert not forbidden(backups, 7, last)
        assert forbidden(backups, 0, last)[1]
    else:
        assert numbers_of(place) == [2, 3]  # depth is lost, and nothing else


def test_messages_are_lines(place, tmp_path, capsys, monkeypatch):
    """Places that are no places: one line each, and exit 2."""
    monkeypatch.setitem(sys.modules, "gcsfs", None)
    monkeypatch.setitem(sys.modules, "google", None)
    (tmp_path / "file").write_text("x")
    for command in (
        ["restore", place.uri, "--to", str(tmp_path / "file")],
        ["restore", place.uri, "--to", "/proc/lake"],
        ["restore", str(tmp_path / "file"), "--to", str(tmp_path / "y")],
        ["restore", str(tmp_path / "lake"), "--to", str(tmp_path / "y")],
        ["drill", str(tmp_path / "nowhere")],
        ["backup", "/proc/backups", "--lake", str(tmp_path / "lake")],
        ["repair", "steps", str(tmp_path / "nowhere"), "--lake", str(tmp_path / "lake")],
    ):
        capsys.readouterr()
        assert run(command) == 2, command
        assert capsys.readouterr().err.count("\n") == 1, command
    for uri, message in (
        ("~/x", "~ is not expanded here, as a shell would; write the whole path"),
        ("s3://", "the bucket or container is missing; write it as s3://bucket/folder"),
        ("ftp://nohost.invalid/x", "no store is reached by ftp:; name a folder, or a place of s3, "),
        ("gs://x/y", "gs:// needs gcsfs, which is not installed; pip install 'ranklake[gcs]'"),
    ):
        lake = ["--lake", str(tmp_path / "lake")]
        for command in (["backup", uri, *lake], ["repair", "steps", uri, *lake], ["restore", place.uri, "--to", uri]):
            assert run(command) == 2, command
            (line,) = capsys.readouterr().err.splitlines()
            assert line.startswith(f"ranklake: {uri}: {message}"), command
    shutil.rmtree(tmp_path / "lake/tables/segments")
    assert run(["backup", place.uri, "--lake", str(tmp_path / "lake")]) == 2
    assert "segments: the table, or its log, is gone" in capsys.readouterr().err
