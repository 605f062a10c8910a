"""Stores of MLflow, in files and in SQLite: a run each, once; what is deleted, damaged or hostile says so."""

import json
import shutil

import pytest
from importing import ask, imported, rejects
from mlflow_store import BEGIN_MS, experiment, run, tables, write

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

A, B, C = "a" * 32, "b" * 32, "c" * 32
LOSS = f"{BEGIN_MS + 1} 2.5 0\n{BEGIN_MS + 2} nan 1\n{BEGIN_MS + 3} 1.5 2 data 1234\n"
TAGS = {"mlflow.note.content": "first try", "team": "vision", "mlflow.source.git.commit": "c0ffee"}


@pytest.fixture
def store(tmp_path):
    """Give a file store: a run, one in it, one deleted, one of a deleted experiment, and a registered model."""
    root = tmp_path / "mlruns"
    folder = experiment(root, "1", "digits")
    params = {"lr": "0.001", "depth": "4", "name": "007", "opt/flag": "True", "api_key": "sk-live-0123456789abcdef"}
    of = run(folder, A, params=params, tags=TAGS, metrics={"train/loss": LOSS, "acc": f"{BEGIN_MS} 0.5 0\n"})
    write(of / "artifacts" / "net" / "MLmodel", "flavors: {}\n")
    write(of / "artifacts" / "last.ckpt", b"\0" * 7)
    run(
        folder, B, status=4, run_name="two", tags={"mlflow.parentRunId": A}, metrics={"loss": f"{BEGIN_MS + 5} 1e400 0"}
    )
    run(folder, C, stage="deleted")
    run(experiment(root / ".trash", "2", "old", "deleted"), "d" * 32)
    model = f"creation_timestamp: {BEGIN_MS}\nname: net\nrun_id: {A}\nsource: s3://u:pw@b/net\nversion: 1\n"
    write(root / "models" / "net" / "meta.yaml", "name: net\n")
    write(root / "models" / "net" / "version-1" / "meta.yaml", model + "current_stage: Production\n")
    write(root / "models" / "net" / "aliases" / "champion", "1")
    return root


def test_a_file_store(lake, spool, store):
    """Parameters, tags, note, name, history, artifacts by reference, registry, parent and end; the deleted counted."""
    done = imported(lake, spool, "mlflow", store)
    assert (done.runs, done.skipped, done.refused) == ([f"one-{A[:8]}", f"two-{B[:8]}"], {"deleted in MLflow": 2}, {})
    rows = ask(lake, "SELECT run, metric, step, value, value_flag f FROM scalars ORDER BY run, metric, step")
    assert [tuple(row.values())[1:] for row in rows] == [
        ("acc", 0, 0.5, None),
        ("train/loss", 0, 2.5, None), ("train/loss", 1, None, "nan"), ("train/loss", 2, 1.5, None),
        ("loss", 0, None, "+inf"),
    ]  # fmt: skip
    first, second = ask(lake, 'SELECT run, job, "user" u, config, labels, git_commit FROM runs ORDER BY run')
    assert (first["job"], first["u"], first["git_commit"]) == ("digits", "ann", "c0ffee")
    assert json.loads(first["config"]) == {
        "lr": 0.001, "depth": 4, "name": "007", "opt/flag": True, "api_key": "[redacted]",
    }  # fmt: skip
    assert json.loads(second["labels"])["parent_run"] == first["run"]
    texts = ask(lake, f"SELECT kind, key, value, text FROM annotations WHERE run = '{first['run']}' ORDER BY kind")
    assert [tuple(row.values()) for row in texts] == [
        ("name", None, "one", None), ("note", None, None, "first try"), ("tag", "team", "vision", None),
    ]  # fmt: skip
    files = ask(lake, "SELECT name, kind, action, bytes, tag, uri FROM artifacts ORDER BY action, name, tag")
    assert [tuple(row.values())[:5] for row in files] == [
        ("last.ckpt", "checkpoint", "created", 7, None), ("net/MLmodel", "model", "created", 12, None),
        ("net", "model", "tagged", None, "Production"), ("net", "model", "tagged", None, "champion"),
        ("net", "model", "tagged", None, "version 1"),
    ]  # fmt: skip
    assert files[-1]["uri"] == "s3://b/net"
    run_rollups(lake, ["goodput"])
    status = ask(lake, "SELECT run, status FROM goodput ORDER BY run")
    assert [row["status"] for row in status] == ["finished", "failed"]


def test_again_and_moved_and_grown(lake, spool, store):
    """What came is known by the run's id, wherever the store lies; a new run comes, one that went on is named."""
    imported(lake, spool, "mlflow", store)
    moved = store.parent / "project" / "mlruns"
    shutil.move(store, moved)
    again = imported(lake, spool, "mlflow", moved.parent)
    assert (again.again, again.rows, again.segments) == (2, {}, 0)
    run(moved / "1", "e" * 32, run_name="new", metrics={"loss": f"{BEGIN_MS} 1.0 0\n"})
    with (moved / "1" / A / "metrics" / "acc").open("a") as file:
        file.write(f"{BEGIN_MS + 9} 0.75 1\n")
    grown = imported(lake, spool, "mlflow", moved)
    assert (grown.again, grown.rows["scalars"], list(grown.nothing)) == (1, 1, [f"one-{A[:8]}"])
    assert "the file changed since it was imported" in grown.nothing[f"one-{A[:8]}"]
    only = imported(lake, spool, "mlflow", moved / "1" / A, run="longer")
    assert (only.runs, only.rows["scalars"]) == (["longer"], 5)


def test_tables(lake, spool, tmp_path):
    """The SQL store of the same form: NaN has its flag, infinity its value, and what is no number is refused."""
    artifacts = tmp_path / "mlruns" / "1" / A / "artifacts"
    write(artifacts / "a.txt", "hello")
    common = {"experiment_id": 1, "lifecycle_stage": "active", "start_time": BEGIN_MS, "status": "KILLED"}
    point = {"timestamp": BEGIN_MS + 5, "run_uuid": A}
    path = tables(tmp_path / "mlflow.db", {
        "experiments": [{"experiment_id": 1, "name": "digits", "lifecycle_stage": "active"},
                        {"experiment_id": 2, "name": "old", "lifecycle_stage": "deleted"}],
        "runs": [{**common, "run_uuid": A, "name": "one", "artifact_uri": f"/gone/mlruns/1/{A}/artifacts"},
                 {**common, "run_uuid": B, "experiment_id": 2},
                 {**common, "run_uuid": C, "lifecycle_stage": "deleted"}],
        "params": [{"key": "lr", "value": "1e-05", "run_uuid": A}],
        "tags": [{"key": "k", "value": "v", "run_uuid": A}],
        "metrics": [{**point, "key": "loss", "value": 2.5, "step": 3}, {**point, "key": "m", "value": 0, "is_nan": 1},
                    {**point, "key": "i", "value": -1.7976931348623157e308}, {**point, "key": "t", "value": "words"},
                    {**point, "key": "n", "value": 1.0, "step": -1},
                    {**point, "key": "z", "value": 1.0, "timestamp": 0}],
        "model_versions": [{"name": "net", "version": 2, "run_id": A, "source": "/x", "current_stage": "None"}],
        "registered_model_aliases": [{"alias": "best", "version": 2, "name": "net"}],
    })  # fmt: skip
    done = imported(lake, spool, "mlflow", path)
    assert done.skipped == {"deleted in MLflow": 2}
    assert done.refused == {
        "the row needs time, value and step": 1, "the step is below 0 or above 64 bits": 1,
    }  # fmt: skip
    rows = ask(lake, "SELECT metric, step, value, value_flag f FROM scalars ORDER BY metric")
    assert [tuple(row.values()) for row in rows] == [
        ("i", 0, None, "-inf"), ("loss", 3, 2.5, None), ("m", 0, None, "nan"), ("z", 0, 1.0, None),
    ]  # fmt: skip
    (of,) = ask(lake, "SELECT config, labels FROM runs")
    assert json.loads(of["config"]) == {"lr": 1e-05}
    assert json.loads(of["labels"])["times"] == "1 values without a time have the run's start"
    files = ask(lake, "SELECT name, action, bytes, tag FROM artifacts ORDER BY action, tag")
    assert [tuple(row.values()) for row in files] == [
        ("a.txt", "created", 5, None), ("net", "tagged", None, "best"), ("net", "tagged", None, "version 2"),
    ]  # fmt: skip
    assert [row["event"] for row in ask(lake, "SELECT event FROM events")] == ["preemption"]
    assert "words" in str(rejects(lake))


def test_damaged_and_hostile(lake, spool, store):
    """A run that cannot be read is named with file and line, the rest comes; links are not followed round."""
    write(store / "1" / A / "metrics" / "acc", f"{BEGIN_MS} 0.5 0\nx y z\n{BEGIN_MS} 0.5 -3\n" + "9" * 9_000)
    (store / "1" / A / "metrics" / "round").symlink_to(store)
    (store / "1" / A / "artifacts" / "round").symlink_to(store.parent)
    (store / "1" / "round").symlink_to(store)
    write(store / "1" / B / "meta.yaml", "run_id: [1\n")
    markup = "<script>alert(1)</script>\n\x1b[31m"
    run(store / "1", "f" * 32, run_name=json.dumps(markup), start_time=1 << 70, tags={"t": markup},
        params={"p": b"\xff"}, metrics={"loss": f"{BEGIN_MS} 1 0\n", "m" * 200: f"{1 << 80} 1 0\n"})  # fmt: skip
    done = imported(lake, spool, "mlflow", store)
    assert list(done.nothing) == [f"1/{B}/meta.yaml:2"]
    assert done.refused == {
        "the line needs time, value and step": 4, "the step is below 0 or above 64 bits": 1, "not UTF-8": 1,
    }  # fmt: skip
    assert done.first_refused[0] == f"one-{A[:8]}:2: the line needs time, value and step"
    assert all(name.isprintable() and "<" not in name for name in done.runs)
    assert len(done.runs) == 2


def test_what_is_no_store(spool, tmp_path):
    """One line says what was meant; a store whose runs are all deleted is no error."""
    write(tmp_path / "x.db", b"SQLite format 3\0" + b"\xff" * 5_000)
    write(tmp_path / "y" / "meta.yaml", "a: 1\n")
    tables(tmp_path / "none.db", {})
    for place, words in (
        (tmp_path / "x.db", "cannot be read"), (tmp_path / "y", "no store of MLflow"), (tmp_path, "no store of MLflow"),
        (tmp_path / "none.db", "has no runs"), (tmp_path / "gone", "no such file"),
    ):  # fmt: skip
        with pytest.raises(SourceError, match=words) as error:
            import_files("mlflow", [str(place)], str(spool))
        assert len(str(error.value).splitlines()) == 1
    run(experiment(tmp_path / "m", "1", "digits"), A, stage="deleted")
    done = import_files("mlflow", [str(tmp_path / "m")], str(spool))
    assert (done.files, done.skipped) == (0, {"deleted in MLflow": 1})
