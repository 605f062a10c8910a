"""Datasets, artifacts, checkpoints and tags, as users record them."""

import hashlib
import json
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from functools import partial
from pathlib import Path

import pytest

from ranklake import capture, rehash
from ranklake.allowed import NotAllowedError, allowed_places
from ranklake.capture.assets import file_entries, loads
from ranklake.capture.assets.artifacts import SUFFIX, WRITTEN_AGAIN
from ranklake.capture.assets.hashing import NOT_READ_BACK
from ranklake.capture.assets.loads import NO_DIGEST, WRITTEN_SINCE
from ranklake.cli import run as ranklake
from ranklake.config import Config
from ranklake.config.settings import ArtifactsSection
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.flows.pages import page
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.proof import prove
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.pipeline.calls import ArtifactsError, refuse_altered, verify_artifacts_once
from ranklake.pipeline.headlines import headline
from ranklake.quality.check import run_checks
from tests.support.bringing import adds_up, bring
from tests.support.recorded import check_books, rows

DOCUMENT = Path(__file__).parents[2] / "docs" / "provenance.md"
SQL = re.compile(r"```sql\n(.*?)```", re.DOTALL)


def test_a_dataset(place, tmp_path):
    """Its row has the fingerprint, the index's digest and what it was told."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_bytes(b"1")
    (data / "gone").symlink_to("nowhere")
    run = place.start()
    facts = {"version": "v2", "samples": 3, "preprocessing": {"lower": True}, "language": "en"}
    run.dataset("corpus", data, split="train", index=[3, 1, 2], **facts)
    run.dataset("remote", "https://user:pass@example.invalid/x?sig=abcdefgh")
    run.close()
    first, second = rows(place.spool, "datasets")
    assert (first["name"], first["split"], first["role"], first["version"]) == ("corpus", "train", "train", "v2")
    assert (first["file_count"], first["bytes"], first["unreadable_file_count"]) == (1, 1, 1)
    assert len(first["merkle_root_sha256"]) == 64
    assert first["index_sha256"] == hashlib.sha256(b"3\n1\n2\n").hexdigest()
    assert json.loads(first["attributes"]) == {"language": "en"}
    assert json.loads(first["unavailable"]) == {"file gone": "No such file or directory"}
    assert second["uri"] == "https://example.invalid/x?sig=[redacted]"
    assert second["merkle_root_sha256"] is None
    assert json.loads(second["unavailable"])["merkle_root_sha256"]
    check_books(place.spool)


def test_a_dataset_does_not_delay_training_and_has_a_row_all_the_same(place, tmp_path):
    """A run that ends before the fingerprint is taken says so in the row."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a").write_bytes(b"1")
    run = place.start()

    def until_it_ends():
        while not run.rows.hashing.background._stopping:
            time.sleep(0.01)
        yield 1

    run.dataset("first", index=until_it_ends())
    run.dataset("second", data)
    run.close()
    found = {row["name"]: row for row in rows(place.spool, "datasets")}
    assert set(found) == {"first", "second"}
    assert json.loads(found["second"]["unavailable"]) == {"merkle_root_sha256": "the run ended before it was found out"}


def test_an_artifacts_place_holds_no_credential(place, tmp_path):
    """User info, what signs an address, a token in a file's name: in no column of its row; the rest stays."""
    token = "ghp_" + "a1B2" * 9
    file = tmp_path / f"model-{token}.pt"
    file.write_bytes(b"weights")
    run = place.start()
    run.artifact("stored", "s3://key:hunter2-hunter2@bucket/prod/model.pt?X-Amz-Signature=" + "0f" * 32)
    run.artifact("local", file, wait=True)
    run.close()
    stored, local = rows(place.spool, "artifacts")
    assert stored["uri"].startswith("s3://bucket/prod/model.pt")
    assert local["uri"].startswith(str(tmp_path))
    for secret in ("hunter2", "0f0f0f", token):
        assert secret not in f"{stored} {local}"


def test_a_checkpoint_appears_whole(place, tmp_path):
    """Files and folders take their name when the block ends; what was there before is replaced."""
    target, folder = tmp_path / "out" / "model.pt", tmp_path / "out" / "sharded"
    target.parent.mkdir()
    run = place.start()
    for number in range(2):
        with run.checkpoint(target, step=number, epoch=1) as temporary:
            temporary.write_bytes(b"%d" % number)
            assert not target.exists() or target.read_bytes() == b"0"
        with run.checkpoint(folder, step=number) as temporary:
            temporary.mkdir()
            (temporary / f"rank{number}").write_bytes(b"x")
    assert target.read_bytes() == b"1"
    assert [file.name for file in folder.iterdir()] == ["rank1"]
    assert [file.name for file in target.parent.iterdir() if SUFFIX in file.name] == []
    run.flush()
    run.close()
    created = [row for row in rows(place.spool, "artifacts") if row["name"] == "model.pt"]
    assert [(row["step"], row["atomic"], row["action"], row["kind"]) for row in created] == [
        (0, True, "created", "checkpoint"),
        (1, True, "created", "checkpoint"),
    ]
    assert created[1]["sha256"] == hashlib.sha256(b"1").hexdigest()
    assert created[1]["duration_ns"] > 0
    assert created[1]["uri"] == str(target)
    assert json.loads(created[1]["attributes"])["epoch"] == 1
    assert [row["event"] for row in rows(place.spool, "events")].count("checkpoint") == 4


def test_a_checkpoint_that_fails_leaves_what_was_there(place, tmp_path):
    """The exception goes on; the target is as it was, and nothing else is left."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"old")
    run = place.start()

    def save():
        with run.checkpoint(target) as temporary:
            temporary.write_bytes(b"half")
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        save()
    with run.checkpoint(target):
        pass  # nothing is written: told, and no reason to end the training
    assert target.read_bytes() == b"old"
    assert [file.name for file in tmp_path.iterdir() if SUFFIX in file.name] == []
    run.close()
    (row,) = rows(place.spool, "artifacts")
    assert (row["action"], row["exception_type"], row["sha256"]) == ("save_failed", "RuntimeError", None)


def test_a_killed_checkpoint_is_not_seen(tmp_path):
    """A process that dies in the middle leaves the old one whole."""
    target = tmp_path / "model.pt"
    target.write_bytes(b"old")
    script = (
        "import os, sys; from ranklake import capture\nrun = capture.start(enabled=False)\n"
        "with run.checkpoint(sys.argv[1]) as place:\n place.write_bytes(b'half'); os.kill(os.getpid(), 9)"
    )
    died = subprocess.run([sys.executable, "-c", script, str(target)], check=False, timeout=60)
    assert died.returncode == -signal.SIGKILL
    assert target.read_bytes() == b"old"


def test_a_run_that_records_nothing_writes_checkpoints(tmp_path):
    """Atomicity is the training's, whether it is recorded or not; a URI is refused with a way out."""
    run = capture.start(enabled=False)
    with run.checkpoint(tmp_path / "x", tag="best") as place:
        place.write_bytes(b"1")
    run.dataset("d", tmp_path)
    run.artifact("a", tmp_path)
    assert (tmp_path / "x").read_bytes() == b"1"
    with pytest.raises(RanklakeError, match=r"run\.artifact"), run.checkpoint("s3://bucket/x"):
        pass


def test_what_is_recorded_last_is_hashed_all_the_same(place, tmp_path):
    """A script that ends without closing its run does so while the interpreter takes no new threads."""
    script = (
        "import sys; from ranklake import capture; from pathlib import Path\n"
        "run = capture.start(run='run', spool=sys.argv[1], local_dir=sys.argv[2])\n"
        "Path(sys.argv[3]).write_bytes(b'weights'); run.artifact('model', sys.argv[3])"
    )
    model = tmp_path / "model.pt"
    command = [sys.executable, "-c", script, str(place.spool), str(place.local), str(model)]
    subprocess.run(command, check=True, timeout=60)
    (row,) = rows(place.spool, "artifacts")
    assert (row["sha256"], row["attributes"]) == (hashlib.sha256(b"weights").hexdigest(), None)


def test_what_is_written_again_before_it_is_hashed_gets_no_digest(place, tmp_path):
    """It would be that of other bytes; the row says so, and when the first ones were there."""
    model, go = tmp_path / "last.ckpt", threading.Event()
    run = place.start()

    def until_told():
        go.wait(30)
        yield 1

    run.dataset("first", index=until_told())
    for content in (b"one", b"two"):
        model.unlink(missing_ok=True)
        model.write_bytes(content)
        run.rows.artifacts.record_checkpoint(model, step=1)
        run.event("between")
    go.set()
    run.flush()
    run.close()
    one, two = rows(place.spool, "artifacts")
    assert (one["sha256"], json.loads(one["attributes"])) == (None, {"unavailable": {"sha256": WRITTEN_AGAIN}})
    assert two["sha256"] == hashlib.sha256(b"two").hexdigest()
    between = [row["ts"] for row in rows(place.spool, "events") if row["event"] == "between"]
    assert one["ts"] <= between[0] <= two["ts"] <= between[1]


def test_a_file_of_ours_is_told_without_credentials(place, tmp_path):
    """Traces and dumps lie where the user said."""
    folder = tmp_path / f"password={'Zx81kQ0vTn' * 4}"
    folder.mkdir()
    (folder / "trace").write_bytes(b"trace")
    with place.start() as run:
        run.rows.artifacts.record_file(folder / "trace", "dump", atomic=True)
    (row,) = rows(place.spool, "artifacts")
    assert row["uri"] == f"{tmp_path}/password=[redacted]"
    assert (row["name"], row["kind"], row["bytes"]) == ("trace", "dump", 5)
    assert (row["sha256"], row["atomic"]) == (hashlib.sha256(b"trace").hexdigest(), True)


def test_tags_have_a_history(place, tmp_path):
    """A tag moves: the one that had it loses it."""
    run = place.start()
    for step, loss in ((1, 0.5), (2, 0.25)):
        with run.checkpoint(tmp_path / f"{step}.pt", step=step, tag="best", tag_value=loss, tag_metric="loss") as out:
            out.write_bytes(b"x")
    run.close()
    found = [
        (row["action"], row["name"], row["tag"], row["tag_value"], row["tag_metric"])
        for row in rows(place.spool, "artifacts")
        if row["action"] != "created"
    ]
    assert found == [
        ("tagged", "1.pt", "best", 0.5, "loss"),
        ("untagged", "1.pt", "best", None, None),
        ("tagged", "2.pt", "best", 0.25, "loss"),
    ]


def test_a_tag_is_where_the_last_attempt_put_it(place, tmp_path):
    """An attempt does not know what the one before tagged; the document's question tells which has it now."""
    for attempt, losses in enumerate(((0.5, 0.4), (0.3, 0.2))):
        with place.start(attempt=attempt) as run:
            for step, loss in enumerate(losses):
                run.tag(f"a{attempt}-{step}.pt", "best-val-loss", value=loss)
            run.tag("a.pt", "released" if attempt else "reviewed")
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, place.spool)
    asked = next(text for text in SQL.findall(DOCUMENT.read_text()) if "row_number" in text)
    assert {(row["tag"], row["name"], row["tag_value"]) for row in query(lake, asked).to_pylist()} == {
        ("best-val-loss", "a1-1.pt", 0.2),
        ("released", "a.pt", None),
        ("reviewed", "a.pt", None),
    }


@pytest.fixture
def allowing(tmp_path, monkeypatch):
    """Allow commands to open what lies in the test's folder."""
    (tmp_path / "ranklake.toml").write_text(f'[artifacts]\nallow = ["{tmp_path}"]\n')
    monkeypatch.setenv("RANKLAKE_CONFIG", str(tmp_path / "ranklake.toml"))


@pytest.mark.usefixtures("allowing")
def test_artifacts_are_verified(place, tmp_path, capsys):
    """By name, path or run; changed, missing and unknown ones have their verdict and exit code."""
    file, folder = tmp_path / "model.pt", tmp_path / "plots"
    file.write_bytes(b"weights")
    folder.mkdir()
    (folder / "a.png").write_bytes(b"png")
    run = place.start()
    run.artifact("model", file, kind="model", step=3, inputs=["ab" * 32])
    run.artifact("plots", folder, kind="plot", wait=True)
    run.close()
    lake = str(tmp_path / "lake")
    made = Lake.create(lake)
    bring(made, place.spool)
    adds_up(made, place.spool)

    def verify(*arguments):
        code = ranklake(["verify-artifact", *arguments, "--lake", lake])
        return code, capsys.readouterr()

    code, said = verify("model", "--json")
    assert (code, json.loads(said.out)["verdict"]) == (0, "verified")
    assert verify(str(file), "--run", "run")[0] == 0
    assert verify("plots")[0] == 0
    (folder / "a.png").write_bytes(b"pnG")
    code, said = verify("plots")
    assert code == 1
    assert "not those that were recorded" in said.out
    file.rename(tmp_path / "moved")
    code, said = verify("model")
    assert (code, "it is gone" in said.out) == (1, True)
    assert verify("model", "--at", str(tmp_path / "moved"))[0] == 0
    code, said = verify("modle")
    assert code == 2
    assert "model" in said.err
    assert verify("model", "--run", "other")[0] == 2
    trail = audit.trail(made.tables)
    assert prove(made).whole
    assert [row["action"] for row in trail] == ["artifact.verify"] * 6
    told = [json.loads(row["details"]) for row in trail]
    assert [(facts["name"], facts["verified"]) for facts in told] == [
        ("model", True), ("model", True), ("plots", True), ("plots", False), ("model", False), ("model", True)
    ]  # fmt: skip
    assert told[0]["recorded_sha256"] == told[0]["found_sha256"] == hashlib.sha256(b"weights").hexdigest()
    assert told[4]["found_sha256"] is None
    assert trail[0]["subject"] == str(file)
    adds_up(made, place.spool)


def test_what_a_rank_recorded_is_not_opened_unless_allowed(place, tmp_path, capsys, monkeypatch):
    """A place in data is opened only if it is named, or configuration allows it; the refusal says how to mend that."""
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "kept" / "model.pt"
    file.parent.mkdir()
    file.write_bytes(b"weights")
    with place.start() as run:
        run.artifact("model", file, wait=True)
    lake = str(tmp_path / "lake")
    bring(Lake.create(lake), place.spool)
    assert ranklake(["verify-artifact", "model", "--lake", lake]) == 2
    said = capsys.readouterr()
    assert "not allowed to open" in said.err
    assert "[artifacts] allow" in said.err
    assert ranklake(["verify-artifact", "kept/model.pt", "--lake", lake]) == 0
    assert ranklake(["verify-artifact", "model", "--at", str(file), "--lake", lake]) == 0
    (tmp_path / "ranklake.toml").write_text('[artifacts]\nallow = ["kept"]\n')
    assert ranklake(["verify-artifact", "model", "--lake", lake]) == 0
    aside = file.rename(tmp_path / "aside")
    file.symlink_to(aside)
    assert ranklake(["verify-artifact", "model", "--lake", lake]) == 2


def test_a_dataset_that_is_not_the_expected_one(place, tmp_path, caplog):
    """Other files than those expected are told and fail a check; the same ones, in any spelling, pass; so does none."""
    data = tmp_path / "data"
    data.mkdir()
    (data / "a.bin").write_bytes(b"1")
    with place.start(run="first") as run:
        run.dataset("d", data, wait=True)
    (right,) = (row["merkle_root_sha256"] for row in rows(place.spool, "datasets"))
    with place.start(run="second") as run:
        run.dataset("same", data, expected=f" SHA256:{right.upper()}", wait=True)
        run.dataset("none", data, wait=True)
    assert "expected" not in caplog.text
    (data / "a.bin").write_bytes(b"2")
    with place.start(run="third") as run:
        run.dataset("other", data, expected=right, wait=True)
        run.dataset("gone", tmp_path / "nowhere", expected=right, wait=True)
    assert "dataset other is not the one that was expected" in caplog.text
    made = Lake.create(str(tmp_path / "lake"))
    bring(made, place.spool)
    (result,) = (one for one in run_checks(made, ["datasets"]).results if one.check_id == "as_expected")
    assert (result.status, result.severity, result.rows_checked, result.rows_failed) == ("failed", "error", 2, 1)


@pytest.mark.slow
def test_all_artifacts_in_turn(place, tmp_path, capsys, monkeypatch):
    """Those that wait longest come first, deleted and unreadable ones are told apart, and the audit log has a row."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "kept").mkdir()
    (tmp_path / "away").mkdir()
    files = [tmp_path / "kept" / f"{name}.pt" for name in "abc"] + [tmp_path / "away" / "d.pt"]
    with place.start(run="run") as run:
        for file in files:
            file.write_bytes(file.name.encode())
            run.artifact(file.stem, file, wait=True)
    lake = str(tmp_path / "lake")
    made = Lake.create(lake)
    bring(made, place.spool)
    (tmp_path / "ranklake.toml").write_text('[artifacts]\nallow = ["kept"]\n')

    def verify(*arguments):
        code = ranklake(["verify-artifact", "--all", *arguments, "--lake", lake, "--json"])
        told = json.loads(capsys.readouterr().out)
        return code, [one["name"] for one in told["verified"]], [one["name"] for one in told["not_allowed"]]

    assert verify("--limit", "2") == (0, ["a", "b"], [])
    assert verify("--limit", "1") == (0, ["c"], [])
    assert verify("--limit", "1") == (0, ["a"], ["d"])  # which never has its turn, and takes none
    files[1].write_bytes(b"other")
    files[2].unlink()
    assert verify() == (1, ["b", "c", "a"], ["d"])
    assert ranklake(["verify-artifact", "--all", "--lake", lake]) == 1
    said = capsys.readouterr().out
    assert "3 artifacts hashed again, 2 not as recorded" in said
    assert "1 artifact not opened" in said
    assert verify("--run", "other") == (0, [], [])
    (tmp_path / "ranklake.toml").write_text("")
    code, verified, closed = verify()
    assert (code, verified, sorted(closed)) == (1, [], ["a", "b", "c", "d"])
    assert ranklake(["verify-artifact", "--lake", lake]) == 2
    assert ranklake(["verify-artifact", "a", "--all", "--lake", lake]) == 2
    assert len(audit.trail(made.tables)) == 2 + 1 + 1 + 3 + 3


@pytest.mark.slow
def test_the_schedule_goes_on_where_a_bound_stopped_it(place, tmp_path, monkeypatch):
    """Each run hashes so many bytes, one artifact at least; verdicts stand at once, and a wrong one fails the flow."""
    kept = tmp_path / "kept"
    kept.mkdir()
    files = [kept / f"{name}.pt" for name in "abcd"]
    with place.start(run="run") as run:
        for file in files:
            file.write_bytes(file.name.encode() * (50 if file.stem == "c" else 1))
            run.artifact(file.stem, file, wait=True)
    made = Lake.create(str(tmp_path / "lake"))
    bring(made, place.spool)
    allow = ArtifactsSection((str(kept),))
    context = Context.of(Config(artifacts=allow), {"lake.uri": str(tmp_path / "lake")})

    def once(**bound):
        told = verify_artifacts_once(context, **bound)
        assert refuse_altered(told) is told
        return [one["name"] for one in told["artifacts"]], told["waiting"], told["hashed_bytes"]

    assert once(max_bytes=10) == (["a", "b"], 2, 8)
    assert once(max_bytes=10) == (["c"], 3, 200)
    assert once(limit=2) == (["d", "a"], 2, 8)
    monkeypatch.setattr(rehash, "NOTED_BYTES", 4)
    real = rehash.verify

    def dies(lake, row, *arguments, **options):
        if row["name"] == "c":
            raise KeyboardInterrupt
        return real(lake, row, *arguments, **options)

    monkeypatch.setattr(rehash, "verify", dies)
    with pytest.raises(KeyboardInterrupt):
        once()
    monkeypatch.undo()
    files[2].write_bytes(b"other")
    told = verify_artifacts_once(context, limit=2)
    assert [one["name"] for one in told["artifacts"]] == ["c", "a"]  # b has its verdict, though the run died
    with pytest.raises(ArtifactsError, match="c of run: it has 5 bytes in place of 200"):
        refuse_altered(told)
    assert headline("verify_artifacts", told)[0] == "2 artifacts hashed again, 1 not as recorded"
    assert "| run | c | it has 5 bytes" in page("verify_artifacts", told)


@pytest.mark.parametrize(
    ("place", "may"),
    [
        ("s3://good/prod/a.pt", True),
        ("s3a://good/prod", True),
        ("s3://good/production/a.pt", False),
        ("s3://good/prod/../dev/a.pt", False),
        ("s3://good/prod/%2E%2E/dev", False),
        ("s3://other/prod/a.pt", False),
        ("http://good/prod/a.pt", False),
        ("http://169.254.169.254/latest/meta-data", False),
        ("zip://a::s3://good/prod/a.zip", False),
        ("https://models.example/a", True),
        ("https://models.example@evil/a", False),
        ("https://models.example:8443/a", False),
        ("gs://any/thing", True),
        ("/srv/models/../../etc/shadow", False),
        ("file:///etc/shadow", False),
        ("/srv/models/a.pt", True),
        ("file:///srv/models/a.pt", True),
        ("/srv/models-of-others/a.pt", False),
        ("/srv/models/a\0.pt", False),
        ("s3://good/prod/./a", False),
        ("s3://good/prod/a?versionId=", False),
    ],
)
def test_allowed_places(place, may):
    """What lies below an allowed place may be opened; what only looks like that may not."""
    allow = allowed_places(["s3://good/prod", "https://models.example", "gs://", "/srv/models", ""], [])
    if may:
        allow.check(place)
    else:
        with pytest.raises(NotAllowedError, match="not allowed to open"):
            allow.check(place)


@pytest.mark.parametrize("place", ["s3://good/lake?versionId=1", "s3://good/./lake/tables", "s3://good//lake"])
def test_closed_places(place):
    """Nothing in a place of rows may be opened, however a store's client would read its name."""
    with pytest.raises(NotAllowedError):
        allowed_places(["s3://good"], [], ["s3://good/lake"]).check(place)


@pytest.mark.usefixtures("allowing")
def test_an_artifact_is_verified_where_the_trail_cannot_be_written(place, tmp_path, capsys):
    """The verdict stands, and a line says that the audit log has no row of it."""
    file = tmp_path / "model.pt"
    file.write_bytes(b"weights")
    with place.start() as run:
        run.artifact("model", file, wait=True)
    lake = str(tmp_path / "lake")
    bring(Lake.create(lake), place.spool)
    shutil.rmtree(tmp_path / "lake" / "tables" / "audit", ignore_errors=True)
    (tmp_path / "lake" / "tables" / "audit").write_text("no folder")
    assert ranklake(["verify-artifact", "model", "--lake", lake]) == 0
    said = capsys.readouterr()
    assert "verified" in said.out
    assert "the audit log has no row of it" in said.err


def load(run, place, **said):
    """Read a checkpoint back."""
    with run.loading(place, **said) as found:
        return found.read_bytes()


def test_a_load_says_whether_it_was_what_was_saved(place, tmp_path):
    """The bytes are held against the digest on this node, or the caller's; where there is none, the row says why."""
    target, other = tmp_path / "model.pt", tmp_path / "other.pt"
    other.write_bytes(b"other")
    with place.start(run="first") as run, run.checkpoint(target, step=3) as temporary:
        temporary.write_bytes(b"weights")
    right, wrong = hashlib.sha256(b"weights").hexdigest(), "0" * 64
    run = place.start(run="second")
    assert load(run, target, step=3, why="resume") == b"weights"
    load(run, target, sha256=right)
    load(run, target, sha256=wrong, name="mine")
    load(run, other)
    with run.loading("s3://me:hunter2@bucket/x"):
        pass
    run.flush()
    target.write_bytes(b"WEIGHTS")  # written by somebody else, and no digest told
    load(run, target)
    run.close()
    found = [row for row in rows(place.spool, "artifacts") if row["action"] == "loaded"]
    judged = {row["name"]: [] for row in found}
    for row in found:
        why = (json.loads(row["attributes"] or "{}").get("unavailable") or {}).get("verified")
        judged[row["name"]].append((row["verified"], row["expected_sha256"], why))
    assert judged == {
        "model.pt": [(True, right, None), (True, right, None), (None, None, WRITTEN_SINCE)],
        "mine": [(False, wrong, None)],
        "other.pt": [(None, None, NO_DIGEST)],
        "x": [(None, None, NOT_READ_BACK)],
    }
    first = found[0]
    assert (first["kind"], first["step"], first["bytes"], first["sha256"]) == ("checkpoint", 3, 7, right)
    assert first["duration_ns"] == first["blocking_ns"] > 0
    assert json.loads(first["attributes"]) == {"why": "resume"}
    assert "hunter2" not in str(found)
    lake = Lake.create(str(tmp_path / "lake"))
    bring(lake, place.spool)
    asked = next(text for text in SQL.findall(DOCUMENT.read_text()) if "made_by" in text)
    told = {(row["name"], row["verified"], row["made_by"], row["step"]) for row in query(lake, asked).to_pylist()}
    assert told >= {("model.pt", True, "first", 3), ("mine", False, "first", 3), ("other.pt", None, None, None)}


def test_a_place_looks_the_same_however_it_is_spelled(place, tmp_path, monkeypatch):
    """What was saved under an absolute path can be held against a load of the relative one."""
    (tmp_path / "ckpt").mkdir()
    (tmp_path / "ckpt" / "rank0").write_bytes(b"weights")
    monkeypatch.chdir(tmp_path)
    assert file_entries.state_of("ckpt") == file_entries.state_of(tmp_path / "ckpt") != ""


@pytest.mark.parametrize("spelled", [str.upper, "sha256:{}".format])
def test_a_digest_may_be_said_as_registries_spell_it(place, tmp_path, spelled):
    """Upper case, or the algorithm before it, is no other digest."""
    (tmp_path / "model.pt").write_bytes(b"weights")
    with place.start() as run:
        load(run, tmp_path / "model.pt", sha256=spelled(hashlib.sha256(b"weights").hexdigest()))
        run.flush()
    (row,) = rows(place.spool, "artifacts")
    assert row["verified"] is True


def test_a_framework_that_is_still_imported_does_not_count(tmp_path):
    """While its module's body runs it lacks most of what it is asked for."""
    ask = "from ranklake.capture.provenance.run_record import is_imported; print(is_imported())"
    (tmp_path / "torch.py").write_text(ask)
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {str(tmp_path)!r})\nimport torch\n{ask}"],
        check=True,
        timeout=60,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["False", "True"]


def test_bytes_that_changed_by_themselves_are_not_what_was_saved(place, tmp_path, monkeypatch):
    """A file that looks as it did when it was saved, and has other bytes: the digest is another."""
    folder = tmp_path / "sharded"
    with place.start(run="first") as run, run.checkpoint(folder) as temporary:
        temporary.mkdir()
        (temporary / "rank0").write_bytes(b"weights")
    real = file_entries.state_of(folder)
    (folder / "rank0").write_bytes(b"w_ights")
    monkeypatch.setattr(loads, "state_of", lambda _: real)  # as a disk does that loses a bit
    with place.start(run="second") as run, run.loading(folder):
        pass
    (row,) = (row for row in rows(place.spool, "artifacts") if row["action"] == "loaded")
    assert (row["verified"], row["file_count"]) == (False, 1)
    assert row["sha256"] != row["expected_sha256"]


def test_what_cannot_be_loaded_or_saved_is_told_and_raised(place, tmp_path):
    """The exception goes on as it was; its row has class, message without credentials, and the time until then."""
    secret = "hf_" + "Q7wZ2mKp9XvB4nTr8LcY3sDg6HfJ1aEu"
    run = place.start()
    boom = RuntimeError(f"no room for {secret}")

    def save():
        with run.checkpoint(tmp_path / "model.pt", step=4):
            raise boom

    for fails, kind in ((partial(load, run, tmp_path / "none.pt"), FileNotFoundError), (save, RuntimeError)):
        with pytest.raises(kind) as raised:
            fails()
    assert raised.value is boom
    run.close()
    lost, unsaved = rows(place.spool, "artifacts")
    assert (lost["action"], lost["name"], lost["exception_type"]) == ("load_failed", "none.pt", "FileNotFoundError")
    assert (unsaved["action"], unsaved["name"], unsaved["step"]) == ("save_failed", "model.pt", 4)
    assert unsaved["exception_message"] == "no room for [redacted]"
    assert lost["duration_ns"] > 0
    assert (lost["sha256"], lost["verified"], unsaved["uri"]) == (None, None, str(tmp_path / "model.pt"))


def test_a_run_that_records_nothing_loads_checkpoints(tmp_path):
    """Training goes on as it would."""
    (tmp_path / "x").write_bytes(b"1")
    run = capture.start(enabled=False)
    assert load(run, tmp_path / "x") == b"1"
    with pytest.raises(FileNotFoundError):
        load(run, tmp_path / "none")
