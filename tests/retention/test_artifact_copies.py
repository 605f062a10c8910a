"""Copies of artifacts in the lake: whole or not at all, fetched by alias, gone with the last row that names them."""

import hashlib
import json
import shutil
import signal
import subprocess
import sys
from datetime import date, timedelta

import pytest
from archiving import archived, policies_in
from erased import reach
from governed import any_rows
from retaining import agree, carry_out, keeping, plan, purge_after

from ranklake import capture
from ranklake.allowed import NotAllowedError, allowed_places
from ranklake.artifact_copies import CopyError, NoSuchArtifactError, copy, fetch, find_artifact, is_copied, uses_of
from ranklake.capture.assets.merkle_digest import merkle_digest
from ranklake.cli import run as command
from ranklake.insight.runs.asking import asking
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.retention.backup.backup import backup
from ranklake.retention.backup.restore import choose, restore
from ranklake.retention.copies import sweep_copies
from ranklake.retention.erasure.apply import apply, approve
from ranklake.retention.erasure.archived import HeldError
from ranklake.retention.erasure.plan import make_plan, propose
from ranklake.retention.erasure.subject import subject_of
from ranklake.retention.holds.holds import set_hold

ADA = "ada@analytical.example"


def made(site, run, name, files, *, incarnation, action="created", **columns):
    """Make a file, or a folder of files, and the row of a run that says so; return its place."""
    place = site.folder / "out" / run / name
    place.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(files, bytes):
        place.write_bytes(files)
    else:
        place.mkdir()
        for path, raw in files.items():
            (place / path).parent.mkdir(parents=True, exist_ok=True)
            (place / path).write_bytes(raw)
    told = merkle_digest(place)
    facts = {"name": [name], "kind": ["checkpoint"], "action": [action], "uri": [str(place)], "sha256": [told.sha256],
             "bytes": [told.size_bytes], "file_count": [told.file_count]}  # fmt: skip
    facts |= {key: [value] for key, value in columns.items()}
    site.bring(any_rows("artifacts", 1, run=run, incarnation=incarnation, **facts), "artifacts")
    return place


def copied(site, run, name):
    """Copy an artifact, and return its row."""
    (row,) = [one for one in site.rows("artifacts") if (one["run"], one["name"]) == (run, name)]
    copy(site.lake, row, allowed_places([str(site.folder)], []))
    return row


def blobs(site):
    """Return the digests of the bytes of all files that are copied, each held against its name."""
    found = set()
    for path in sorted((site.folder / "lake/artifacts").glob("*")):
        digest = path.name.removesuffix(".list")
        assert hashlib.sha256(path.read_bytes()).hexdigest() == digest
        found.add(digest)
    return found


def erase(site, values=(), run=None):
    """Erase a person or a run, and return the certificate."""
    subject = subject_of(site.lake, list(values), run)
    proposal = make_plan(reach(site), subject)
    propose(site.lake, proposal, "Petra")
    approve(site.lake, proposal.name, "Ada", "as asked")
    return apply(reach(site), proposal.name, subject, "Otto").certificate


def test_a_shared_file_goes_with_its_last_run(site):
    """Two runs made one file: the erasure of the first leaves its bytes, that of the second takes them; others stay."""
    folder = {"a/model.pt": b"shared weights", "opt.pt": b"of r1 alone"}
    made(site, "run-1", "ckpt", folder, incarnation=1)
    made(site, "run-2", "ckpt.pt", b"shared weights", incarnation=2)
    made(site, "run-3", "other", {"x.pt": b"others"}, incarnation=3)
    for run, name in (("run-1", "ckpt"), ("run-2", "ckpt.pt"), ("run-3", "other")):
        assert is_copied(site.lake.store, copied(site, run, name))
    listing = b"%s  x.pt\n" % hashlib.sha256(b"others").hexdigest().encode()
    shared, *others = (hashlib.sha256(raw).hexdigest() for raw in (b"shared weights", b"others", listing))
    assert len(blobs(site)) == 5  # three files, and the lists of two folders
    first = erase(site, run="run-1")
    assert first.is_clean
    assert blobs(site) == {shared, *others}
    assert erase(site, run="run-2").is_clean
    assert blobs(site) == {*others}
    assert sweep_copies(site.lake) == 0


def test_who_loaded_it_keeps_it(site):
    """The run that made it is erased; another that loaded the same bytes refers to the copy, and keeps it."""
    made(site, "run-1", "base.pt", b"weights", incarnation=1)
    made(site, "run-2", "base.pt", b"weights", incarnation=2, action="loaded")
    digest = copied(site, "run-1", "base.pt")["sha256"]
    assert erase(site, run="run-1").is_clean
    assert blobs(site) == {digest}
    assert erase(site, run="run-2").is_clean
    assert blobs(site) == set()


def test_a_person_in_the_bytes(site):
    """Whoever is named in a copied file is erased from it: the copy goes, whoever else refers to it."""
    place = made(site, "run-1", "notes", f"reviewed by {ADA}\n".encode(), incarnation=1)
    made(site, "run-2", "notes", f"reviewed by {ADA}\n".encode(), incarnation=2)
    made(site, "run-3", "other", b"nobody", incarnation=3)
    copied(site, "run-1", "notes")
    other = copied(site, "run-3", "other")["sha256"]
    shutil.rmtree(place.parents[1])
    certificate = erase(site, [ADA])
    assert certificate.is_clean
    assert blobs(site) == {other}
    assert site.places_of(ADA) == []


_DYING = """
import os, signal, sys
from ranklake.allowed import allowed_places
from ranklake.artifact_copies import copy, find_artifact
from ranklake.insight.runs.asking import asking
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
uri, folder, left, where = sys.argv[1], sys.argv[2], int(sys.argv[3]), sys.argv[4]
genuine, fsync = Store.put_if_absent, os.fsync
def die(*_):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
def put(*given):
    die()
    return genuine(*given)
if where == "before":
    Store.put_if_absent = put
else:
    os.fsync = lambda fd: (fsync(fd), die())
lake = Lake.open(uri)
row = next(row for row in __import__("ranklake.lake.query.sql", fromlist=["query"]).query(
    lake, "SELECT * FROM artifacts WHERE run = 'run-1'").to_pylist())
copy(lake, row, allowed_places([folder], []))
print("whole")
"""


@pytest.mark.slow
@pytest.mark.parametrize("where", ["before", "while"])
def test_a_copy_that_is_killed_converges(site, where):
    """Killed before or within the writing of each file, it leaves whole files and scratch; the next call finishes."""
    made(site, "run-1", "ckpt", {f"shard-{part}": b"%d" % part * 1000 for part in range(3)}, incarnation=1)
    (row,) = site.rows("artifacts")
    for files in range(4):
        died = subprocess.run(
            [sys.executable, "-c", _DYING, site.lake.uri, str(site.folder), str(files), where], check=False
        )
        assert died.returncode == -signal.SIGKILL
        assert not is_copied(site.lake.store, row)
        scratch = set((site.folder / "lake/artifacts").glob("*.tmp"))
        assert bool(scratch) == (where == "while")
        copied(site, "run-1", "ckpt")
        assert is_copied(site.lake.store, row)
        assert sweep_copies(site.lake, with_scratch=True) == len(scratch)
        assert len(blobs(site)) == 4
        shutil.rmtree(site.folder / "lake/artifacts")


@pytest.mark.slow
def test_retention_grace_and_holds(site, monkeypatch):
    """A copy stays through days of grace and under a legal hold, and goes when its rows are purged."""
    made(site, "run-1", "old.pt", b"old", incarnation=1)
    made(site, "held-run", "held.pt", b"held", incarnation=2)
    for run, name in (("run-1", "old.pt"), ("held-run", "held.pt")):
        copied(site, run, name)
    old, held = (hashlib.sha256(raw).hexdigest() for raw in (b"old", b"held"))
    today = date(2026, 11, 30)
    set_hold(site.lake, ["run=held-run"], "the case of the lost checkpoint", today + timedelta(days=999), by="Lena")
    rule = "made: {where: {table: artifacts}, delete_after_days: 30, reason: nobody loads them any longer}"
    found = keeping(policies_in(site.folder, rule))
    due = plan(site, today, found)
    agree(site, due.name)
    carry_out(site, due.name, today, found)
    assert [row["run"] for row in site.rows("artifacts")] == ["held-run"]
    sweep_copies(site.lake)
    assert blobs(site) == {old, held}
    assert purge_after(site) == (due.name,)
    assert blobs(site) == {held}
    with pytest.raises(HeldError):
        erase(site, run="held-run")
    assert blobs(site) == {held}


@pytest.mark.slow
def test_an_archive_keeps_it(site):
    """Rows that went into an archive come back from there, and so do their bytes."""
    made(site, "run-1", "cold.pt", b"cold", incarnation=1)
    digest = copied(site, "run-1", "cold.pt")["sha256"]
    rule = "cold: {where: {table: artifacts}, archive: {after_days: 30, to: TO}, reason: rarely read}"
    archived(site, policies_in(site.folder, rule))
    assert site.rows("artifacts") == []
    sweep_copies(site.lake)
    assert blobs(site) == {digest}
    assert erase(site, run="run-1").is_clean
    assert blobs(site) == set()


@pytest.mark.slow
def test_a_backup_carries_copies(site):
    """Restored from a backup, an artifact is fetched though nothing else has its bytes; an erasure leaves no copy."""
    place = made(site, "run-1", "best.pt", b"weights", incarnation=1)
    row = copied(site, "run-1", "best.pt")
    backup(site.lake, str(site.folder / "backup"))
    place.unlink()
    store = Store.at(str(site.folder / "backup"))
    restore(store, choose(store), Store.at(str(site.folder / "again")))
    done = fetch(Lake.open(str(site.folder / "again")), row, site.folder / "back.pt", allowed_places([], []))
    assert (done.written_bytes, (site.folder / "back.pt").read_bytes()) == (7, b"weights")
    assert erase(site, run="run-1").is_clean
    backup(site.lake, str(site.folder / "backup"))
    raw = hashlib.sha256(b"weights").hexdigest()
    assert not [path for path in (site.folder / "backup").rglob("*") if raw in path.name]


def test_bad_input(site):
    """What changed, is gone, is too large, has no digest or may not be opened is refused in a line; nothing is left."""
    place = made(site, "run-1", "a.pt", b"as recorded", incarnation=1)
    (row,) = site.rows("artifacts")
    allow = allowed_places([str(site.folder)], [])
    lake = site.lake
    for wrong, kind, words in (
        (lambda: copy(lake, row, allowed_places([], [])), NotAllowedError, "not allowed"),
        (lambda: copy(lake, row, allow, most_bytes=3), CopyError, "above 3; allow so many by --max-bytes 11"),
        (lambda: copy(lake, row | {"sha256": None}, allow), CopyError, "took no digest"),
        (lambda: copy(lake, row, allow, at=str(site.folder / "lake/ranklake.json")), CopyError, "not those that were"),
        (lambda: copy(lake, row, allow, at=str(site.folder / "gone")), CopyError, "it is gone"),
        (lambda: fetch(lake, row, place.parent, allow), CopyError, "is there, and is not this artifact"),
        (lambda: copy(lake, row | {"sha256": merkle_digest(__file__).sha256, "uri": __file__},
                      allowed_places([__file__], [])), CopyError, "its row is gone"),
    ):  # fmt: skip
        with pytest.raises(kind, match=words) as caught:
            wrong()
        assert "\n" not in str(caught.value)
    assert blobs(site) == set()
    place.write_bytes(b"altered")
    with pytest.raises(CopyError, match="not those that were recorded"):
        fetch(lake, row, site.folder / "here.pt", allow)
    assert not [path for path in site.folder.iterdir() if "here.pt" in path.name]
    listing = b"%s  ../../evil\n" % hashlib.sha256(b"x").hexdigest().encode()
    digest = hashlib.sha256(listing).hexdigest()
    lake.store.put_if_absent(f"artifacts/{digest}.list", listing)
    lake.store.put_if_absent(f"artifacts/{hashlib.sha256(b'x').hexdigest()}", b"x")
    with pytest.raises(CopyError, match="leads out of it"):
        fetch(lake, row | {"sha256": digest, "bytes": 1}, site.folder / "evil", allow)


def test_an_alias_given_later(site, capsys):
    """It belongs to the bytes that it was given to, though the script wrote others under the name; it moves, and goes.

    What is ``latest`` everywhere, what no reference could name, and an alias that there is not are refused.
    """
    made(site, "run-1", "ckpt.pt", b"weights 1", incarnation=1, step=1)
    first = site.rows("artifacts")[0]
    made(site, "run-1", "ckpt.pt", b"weights 2", incarnation=2, step=2, ts=first["ts"] + timedelta(seconds=1))
    made(site, "run-1", "other.pt", b"weights 3", incarnation=3, step=3, ts=first["ts"] + timedelta(seconds=2))
    place = ["--json", "--lake", site.lake.uri, "--spool", str(site.spool)]

    def alias(reference, *aliases, code=0):
        assert command(["artifacts", "alias", reference, *aliases, *place]) == code
        printed = capsys.readouterr()
        ingest(site.lake, Spool(str(site.spool)), InProcess())
        return printed.err if code else json.loads(printed.out)["rows"]

    (row,) = alias("run-1/ckpt.pt", "best")
    assert (row["action"], row["tag"], row["step"]) == ("tagged", "best", 2)
    assert find_artifact(asking(site.lake), "run-1/checkpoint:best")["step"] == 2
    made(site, "run-1", "ckpt.pt", b"weights 4", incarnation=4, step=4, ts=first["ts"] + timedelta(seconds=3))
    best = find_artifact(asking(site.lake), "run-1/checkpoint:best")
    assert (best["step"], best["aliases"]) == (2, ["best"])
    alias("run-1/other.pt", "best", "shipped")
    assert find_artifact(asking(site.lake), "run-1/checkpoint:best")["step"] == 3
    alias("run-1/other.pt", "--remove", "best")
    ask = asking(site.lake)
    with pytest.raises(NoSuchArtifactError, match="has the alias 'best'"):
        find_artifact(ask, "run-1/checkpoint:best")
    assert find_artifact(ask, "run-1/other.pt")["aliases"] == ["shipped"]
    assert uses_of(ask, find_artifact(ask, "run-1/other.pt")) == ()
    history = [(row["name"], row["action"], row["tag"]) for row in site.rows("artifacts") if row["tag"]]
    assert len(history) == 4  # nothing is overwritten
    for aliases, words in (
        (("latest",), "has it by itself"), (("a:b",), "leave : and / out"), (("",), "1 to 512 printable characters"),
        (("--remove", "shiped"), "did you mean 'shipped'"), ((), "no alias is named"),
    ):  # fmt: skip
        assert words in alias("run-1/other.pt", *aliases, code=2)
    site.balances()


@pytest.mark.slow
def test_the_commands(site, capsys, monkeypatch):
    """A run's script tags checkpoints; they are listed, copied and fetched by alias, and their loads are lineage."""
    monkeypatch.chdir(site.folder)
    with capture.start(run="train", spool=site.spool, local_dir=site.folder / "local", samplers="off") as run:
        for step in range(3):
            with run.checkpoint(f"step-{step}.pt", step=step, tag="best" if step < 2 else None) as place:
                place.write_bytes(b"weights %d" % step)
    places = {"spool": site.spool, "local_dir": site.folder / "local2"}
    with capture.start(run="eval", samplers="off", **places) as run, run.loading("step-1.pt", step=1):
        pass
    ingest(site.lake, Spool(str(site.spool)), InProcess())
    run_rollups(site.lake)
    ask = asking(site.lake)
    assert find_artifact(ask, "train/checkpoint:best")["name"] == "step-1.pt"
    assert find_artifact(ask, "train/checkpoint")["name"] == "step-2.pt"
    assert find_artifact(ask, "train/step-0.pt:latest")["name"] == "step-0.pt"
    for wrong, words in (
        ("train/checkpoint:bset", "did you mean 'best'"), ("train/chekpoint", "did you mean 'checkpoint'"),
        ("train", "write RUN/NAME"),
    ):  # fmt: skip
        with pytest.raises(NoSuchArtifactError, match=words):
            find_artifact(ask, wrong)
    assert [(use["run"], use["action"]) for use in uses_of(ask, find_artifact(ask, "train/checkpoint:best"))] == [
        ("eval", "loaded")
    ]

    def ranklake(*args):
        assert command([*args, "--json", "--lake", site.lake.uri]) == 0
        return json.loads(capsys.readouterr().out)

    assert [(row["name"], row["aliases"], row["copied"]) for row in ranklake("artifacts", "list", "train")] == [
        ("step-2.pt", ["latest"], False), ("step-1.pt", ["best"], False), ("step-0.pt", [], False),
    ]  # fmt: skip
    (site.folder / "ranklake.toml").write_text(f'[artifacts]\nallow = ["{site.folder}"]\n')
    assert ranklake("artifacts", "copy", "train/checkpoint:best")["written_bytes"] == 9
    assert ranklake("artifacts", "copy", "train/checkpoint:best")["written_bytes"] == 0
    (site.folder / "step-1.pt").unlink()
    assert ranklake("artifacts", "fetch", "train/checkpoint:best")["written_bytes"] == 9
    assert ranklake("artifacts", "fetch", "train/checkpoint:best")["written_bytes"] == 0
    assert (site.folder / "step-1.pt").read_bytes() == b"weights 1"
    assert [use["run"] for use in ranklake("artifacts", "uses", "train/checkpoint:best")["uses"]] == ["eval"]
    assert [row["action"] for row in site.rows("audit")].count("artifact.copy") == 1


def test_a_folder_and_its_listing_are_two_artifacts(site, tmp_path):
    """A file that holds a folder's listing has the folder's digest; each is copied and fetched as what it is."""
    raw = b"rows"
    listing = f"{hashlib.sha256(raw).hexdigest()}  x\u2028.bin\n".encode()
    made(site, "run-1", "data", {"x\u2028.bin": raw}, incarnation=1)
    made(site, "run-1", "data.sha256", listing, incarnation=2)
    made(site, "run-1", "empty", {}, incarnation=3)
    made(site, "run-1", "empty.bin", b"", incarnation=4)
    places = allowed_places([str(site.folder)], [])
    rows = [copied(site, "run-1", name) for name in ("data", "data.sha256", "empty", "empty.bin")]
    assert len({row["sha256"] for row in rows}) == 2
    shutil.rmtree(site.folder / "out")
    for row in rows:
        fetch(site.lake, row, tmp_path / row["name"], places)
    assert (tmp_path / "data" / "x\u2028.bin").read_bytes() == raw
    assert (tmp_path / "data.sha256").read_bytes() == listing
    assert list((tmp_path / "empty").iterdir()) == []
    assert (tmp_path / "empty.bin").read_bytes() == b""


@pytest.mark.parametrize("damaged", [b"zz", b"shared weighty"])
def test_a_damaged_copy_is_made_again(site, tmp_path, damaged):
    """A copy of another size is none, and one with other bytes gives way once its artifact is copied again."""
    made(site, "run-1", "ckpt.pt", b"shared weights", incarnation=1)
    made(site, "run-2", "ckpt", {"model.pt": b"shared weights"}, incarnation=2)
    row = copied(site, "run-1", "ckpt.pt")
    (site.folder / "lake/artifacts" / row["sha256"]).write_bytes(damaged)
    assert is_copied(site.lake.store, row) is (len(damaged) == len(b"shared weights"))
    copied(site, "run-2", "ckpt")
    places = allowed_places([], [])
    assert fetch(site.lake, row, tmp_path / "out.pt", places).files == 1
    assert (tmp_path / "out.pt").read_bytes() == b"shared weights"


def test_a_link_in_a_folder_leads_nowhere_else(site, tmp_path):
    """A link to a file outside the allowed places is refused, in copy and fetch; one within them is followed."""
    (tmp_path / "secret").write_bytes(b"of somebody")
    place = made(site, "run-1", "ckpt", {"a.pt": b"weights"}, incarnation=1)
    (place / "inside").symlink_to("a.pt")
    (place / "outside").symlink_to(tmp_path / "secret")
    told = merkle_digest(place)
    facts = {"name": ["linked"], "kind": ["checkpoint"], "action": ["created"], "uri": [str(place)],
             "sha256": [told.sha256], "bytes": [told.size_bytes], "file_count": [told.file_count]}  # fmt: skip
    site.bring(any_rows("artifacts", 1, run="run-1", incarnation=2, **facts), "artifacts")
    (row,) = [row for row in site.rows("artifacts") if row["name"] == "linked"]
    for places in (allowed_places([str(site.folder / "out")], []), allowed_places([], [str(place)])):
        with pytest.raises(NotAllowedError, match="secret"):
            copy(site.lake, row, places)
        with pytest.raises(NotAllowedError, match="secret"):
            fetch(site.lake, row, tmp_path / "fetched", places)
    assert not (tmp_path / "fetched").exists()
    assert blobs(site) == set()
    copy(site.lake, row, allowed_places([str(site.folder), str(tmp_path)], []))
    assert is_copied(site.lake.store, row)
