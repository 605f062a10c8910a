"""Comet and ClearML: archives that their own libraries wrote, whole, in parts, unpacked, moved, and damaged."""

import io
import json
import os
import shutil
import zipfile
from pathlib import Path

import pytest
from importing import ask, imported, rejects

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

STORES = Path(__file__).parents[2] / "support" / "offline"
CURVES = [("loss/val", s, 3.0 / (s + 1)) for s in (0, 5)], [("loss/train", s, 2.0 / (s + 1)) for s in range(10)]


def values(lake):
    """Return metric, step, and value or flag of all scalars but those of the machine."""
    rows = ask(lake, "SELECT metric, step, value, value_flag f FROM scalars WHERE metric NOT LIKE 'system/%'")
    return sorted(((r["metric"], r["step"], r["f"] or r["value"]) for r in rows), key=repr)


def packed(path, **files):
    """Write an archive with files by their names, dots as two underscores; return its path."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "."), content)
    return path


def test_an_experiment_of_comet(lake, spool):
    """Values, NaN and infinity as they are, contexts, files by their kind, output in lines; no credential."""
    done = imported(lake, spool, "comet", STORES / "comet.zip")
    assert (done.runs, done.refused) == (["digits-c1416acc"], {})
    assert values(lake) == sorted(
        [("train/loss", s, 2.0 / (s + 1)) for s in range(10)]
        + [("validate_loss", s, 3.0 / (s + 1)) for s in (0, 5)]
        + [("bad", 3, "nan"), ("bad", 4, "+inf"), ("process duration", 9, 0.0)],
        key=repr,
    )
    gpu = ask(lake, "SELECT value FROM scalars WHERE metric = 'system/gpu.0.gpu_utilization'")
    assert gpu == [{"value": 97.0}]
    run = ask(lake, "SELECT job, config, labels, ts FROM runs")[0]
    assert json.loads(run["config"]) == {
        "lr": 0.0003, "batch": 32, "opt|name": "adam", "opt|betas": [0.9, 0.95], "amp": True, "api_key": "[redacted]",
    }  # fmt: skip
    assert json.loads(run["labels"])["not_imported"] == "1 messages html, 1 values that are not numbers"
    assert run["job"] == "digits"
    notes = ask(lake, "SELECT kind, key, value, number FROM annotations ORDER BY kind, key")
    assert [tuple(row.values()) for row in notes] == [
        ("name", None, "lr 3e-4", None), ("summary", "best_acc", "0.75", 0.75), ("tag", "baseline", None, None),
        ("tag", "v2", None, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT kind, name, step, row_count h FROM media ORDER BY kind") == [
        {"kind": "image", "name": "pic", "step": 6, "h": 8},
        {"kind": "text", "name": "text-sample", "step": 6, "h": None},
    ]
    spread = ask(lake, "SELECT step, count, zero_count, min, max FROM distributions")[0]
    assert (spread["step"], spread["count"], spread["zero_count"]) == (5, 1000, 2)
    assert spread["min"] == pytest.approx(-3, rel=0.1)
    assert spread["max"] == pytest.approx(3, rel=0.1)
    files = ask(lake, "SELECT name, kind, bytes, uri FROM artifacts ORDER BY name")
    assert [tuple(row.values()) for row in files] == [
        ("roc", "other", 34, None), ("w.bin", "model", 3, None), ("weights.txt", "other", 3, None),
        ("x.bin", "other", None, "s3://bucket/x.bin"),
    ]  # fmt: skip
    output = [row["message"] for row in ask(lake, "SELECT message FROM logs WHERE stream = 'stdout' ORDER BY ts, slot")]
    assert output[0] == "out line"
    assert output[1].startswith("token=")
    assert "abcdefghij" not in output[1]


def test_a_task_of_clearml(lake, spool, tmp_path):
    """Values, one that it has once, its files wherever the session moved; packed and unpacked are the same."""
    folder = tmp_path / "moved"
    with zipfile.ZipFile(STORES / "clearml.zip") as archive:
        archive.extractall(folder)
    done = imported(lake, spool, "clearml", folder)
    assert (len(done.runs), done.refused) == (1, {})
    assert values(lake) == sorted([*CURVES[0], *CURVES[1], ("acc", 9, 0.5), ("Summary/best", None, 0.25)], key=repr)
    gpu = ask(lake, "SELECT step, value FROM scalars WHERE metric = 'system/gpu_0_utilization'")
    assert gpu == [{"step": None, "value": 97.0}]
    run = ask(lake, "SELECT job, config, labels FROM runs")[0]
    assert json.loads(run["config"]) == {
        "General/lr": 0.0003, "General/batch": 32, "General/opt/name": "adam", "General/betas": [0.9, 0.95],
        "General/amp": True, "General/none": "", "General/api_key": "[redacted]", "Model/depth": 3,
        "configuration/data": "a = [1, 2]",
    }  # fmt: skip
    assert (run["job"], json.loads(run["labels"])["not_imported"]) == ("team/digits", "1 events plot")
    notes = ask(lake, "SELECT kind, key, value, text FROM annotations ORDER BY kind, key")
    assert [tuple(row.values()) for row in notes] == [
        ("name", None, "lr 3e-4", None), ("note", None, None, "why"), ("tag", "baseline", None, None),
        ("tag", "v2", None, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT name, step FROM media") == [{"name": "pic/a", "step": 6}]
    files = ask(lake, "SELECT name, bytes, uri, length(sha256) n FROM artifacts ORDER BY name")
    assert [(row["name"], row["bytes"], row["n"]) for row in files] == [("clip/b", 1, None), ("weights", 14, 64)]
    assert all(str(folder) in row["uri"] for row in files)
    output = [row["message"] for row in ask(lake, "SELECT message FROM logs")]
    assert "out line" in output
    assert not any("abcdefghij" in line for line in output)
    again = import_files("clearml", [str(STORES / "clearml.zip"), str(folder / "metrics.jsonl")], str(spool))
    assert (again.again, again.rows) == (1, {})


def test_an_experiment_that_went_on(lake, spool, tmp_path):
    """Its archives are one run, one that lies there unpacked as well being no other part."""
    for name in ("comet-first", "comet-resumed"):
        shutil.copy(STORES / f"{name}.zip", tmp_path)
    with zipfile.ZipFile(tmp_path / "comet-first.zip") as archive:
        archive.extractall(tmp_path / "unpacked")
    assert imported(lake, spool, "comet", tmp_path).runs == ["digits-bbbbbbbb"]
    assert [row for row in values(lake) if row[0] == "x"] == [("x", step, float(step)) for step in range(6)]


def test_a_task_that_a_script_fetched(lake, spool, tmp_path):
    """`export_task()` and `get_all_reported_scalars()`: values have the time of the task's end."""
    task = {"id": "ab12", "name": "t", "project_name": "p", "status": "failed", "hyperparams": {}, "script": {
        "repository": "https://ann:secret-0123456789@git.example/r", "version_num": "c0ffee"},
        "started": "2026-03-01T12:00:00+00:00", "completed": "2026-03-01T13:00:00+00:00",
        "models": {"output": [{"name": "best", "model": "77"}]},
        "execution": {"artifacts": [{"key": "w", "uri": "https://files.example/w.bin", "mode": "input"}]}}  # fmt: skip
    series = {"loss": {"train": {"name": "train", "x": [0, 1], "y": [2.5, 1.5]}, "odd": {"x": [0], "y": ["no"]}}}
    (tmp_path / "task.json").write_text(json.dumps(task))
    (tmp_path / "scalars.json").write_text(json.dumps(series))
    done = imported(lake, spool, "clearml", tmp_path)
    assert (done.runs, done.refused) == (["t-ab12"], {"the value has no number, name or time": 1})
    rows = ask(lake, "SELECT metric, step, value, CAST(ts AS TEXT) at FROM scalars ORDER BY step")
    assert [(r["metric"], r["step"], r["value"], r["at"][11:16]) for r in rows] == [
        ("loss/train", 0, 2.5, "13:00"), ("loss/train", 1, 1.5, "13:00"),
    ]  # fmt: skip
    run = ask(lake, "SELECT git_commit, git_remote FROM runs")[0]
    assert (run["git_commit"], "secret" in run["git_remote"]) == ("c0ffee", False)
    files = ask(lake, "SELECT name, kind, action, uri FROM artifacts ORDER BY name")
    assert [tuple(row.values()) for row in files] == [
        ("best", "model", "created", None), ("w", "other", "loaded", "https://files.example/w.bin"),
    ]  # fmt: skip
    assert ask(lake, "SELECT severity FROM events WHERE event = 'failure'") == [{"severity": "error"}]


def test_messages_that_nobody_wrote(lake, spool, tmp_path):
    """A script killed in the middle leaves no experiment.json; lines that are cut, strange, or of old releases."""
    old = {"metric": {"metricName": "old", "metricValue": 1.5, "step": -1}, "local_timestamp": 1_700_000_000_000,
           "param": None, "params": None, "stdout": None, "log_other": None}  # fmt: skip
    lines = [
        json.dumps({"type": "ws_msg", "payload": old}),
        json.dumps({"type": "ws_msg", "payload": {"params": {"paramName": "p", "paramValue": [1]}, "param": None}}),
        json.dumps({"type": "ws_msg", "payload": {"log_other": {"key": "k", "val": 2}}}),
        *(json.dumps(line) for line in (
            {"payload": {"metric": {"metricName": "", "metricValue": 1}}}, [], {"payload": 3},
            {"payload": {"file_path": "../out", "upload_type": "histogram3d", "additional_params": []}},
            {"payload": {"file_path": "/etc/hostname", "upload_type": "visualization", "local_timestamp": True}},
            {"payload": {"metric": {"metricName": "big", "metricValue": 10**400}, "local_timestamp": 10**30}},
            {"payload": {"metric": {"metricName": "flag", "metricValue": True}, "local_timestamp": 1_700_000_001_000}},
        )),
        '{"payload":{"metric":{"metricNa',
    ]  # fmt: skip
    folder = tmp_path / "killed"
    folder.mkdir()
    (tmp_path / "out").write_text(json.dumps({"index_values": [[10**9, 1]], "start": 1, "stop": 2, "step": 1.1}))
    (folder / "messages.json").write_text("\n".join(lines))
    done = imported(lake, spool, "comet", folder)
    assert (done.runs, values(lake)) == (["experiment-killed"], [("old", None, 1.5)])
    assert done.refused == {"the name is empty or too long": 1, "not a message of Comet": 3}
    assert len(rejects(lake)) == 4
    assert [row["uri"] for row in ask(lake, "SELECT uri FROM artifacts")] == [None]
    labels = json.loads(ask(lake, "SELECT labels FROM runs")[0]["labels"])
    assert labels["not_imported"] == "1 histograms that cannot be read, 2 values that are not numbers"


def test_archives_that_cannot_be_read(spool, tmp_path):
    """A cut or damaged archive, one without a time, and another tool's: each in a line."""
    whole = (STORES / "comet.zip").read_bytes()
    (tmp_path / "cut.zip").write_bytes(whole[:-40])
    with pytest.raises(SourceError, match=r"cut\.zip: the ZIP archive cannot be read; copy it again"):
        import_files("comet", [str(tmp_path / "cut.zip")], str(spool))
    at = whole.index(b"messages.json") + 200
    (tmp_path / "bad.zip").write_bytes(whole[:at] + bytes(byte ^ 255 for byte in whole[at : at + 9]) + whole[at + 9 :])
    with pytest.raises(SourceError, match=r"bad\.zip: the ZIP archive cannot be read"):
        import_files("comet", [str(tmp_path / "bad.zip")], str(spool))
    empty = packed(tmp_path / "empty.zip", messages__json="{}\n")
    with pytest.raises(SourceError, match=r"empty: the experiment has no time; restore its experiment\.json"):
        import_files("comet", [str(empty)], str(spool))
    other = packed(tmp_path / "other.zip", data__pkl="x")
    with pytest.raises(SourceError, match="no run of Comet; name a folder or a ZIP archive"):
        import_files("comet", [str(other)], str(spool))
    with pytest.raises(SourceError, match="it holds clearml: ranklake import clearml"):
        import_files("comet", [str(STORES / "clearml.zip")], str(spool))
    with pytest.raises(SourceError, match=r"it looks like comet: ranklake import comet comet\.zip"):
        import_files("wandb", [str(STORES / "comet.zip")], str(spool))
    text = io.BytesIO()
    with zipfile.ZipFile(text, "w") as archive:
        archive.writestr("task.json", json.dumps({"id": "1", "name": "t", "project_name": "p"}))
    (tmp_path / "untimed.zip").write_bytes(text.getvalue())
    with pytest.raises(SourceError, match=r"t: the task has no time; add events in metrics\.jsonl"):
        import_files("clearml", [str(tmp_path / "untimed.zip")], str(spool))


def test_damaged_archives_beside_whole_ones(spool, tmp_path):
    """An archive that is empty, all zeros, or a link to nothing is named; the whole one beside it comes."""
    shutil.copy(STORES / "comet.zip", tmp_path / "whole.zip")
    (tmp_path / "empty.zip").touch()
    (tmp_path / "zeros.zip").write_bytes(bytes(5_000))
    (tmp_path / "gone.zip").symlink_to(tmp_path / "nothing")
    done = import_files("comet", [str(tmp_path)], str(spool))
    assert (len(done.runs), sorted(done.nothing)) == (1, ["empty.zip", "gone.zip", "zeros.zip"])
    assert done.not_imported == {"messages html": 1, "values that are not numbers": 1}


@pytest.mark.parametrize("name", ["mlflow", "comet", "wandb", "tensorboard", "tracker_export", "megatron"])
def test_pipes_are_not_read(spool, tmp_path, name):
    """A pipe that is named is refused, and one in a folder passed over: to read it would wait for ever."""
    pipes = [tmp_path / "x", *(tmp_path / end for end in ("a.zip", "b.wandb", "tfevents", "run.json"))]
    for pipe in pipes:
        os.mkfifo(pipe)
    (tmp_path / "link.wandb").symlink_to(tmp_path / "x")
    with pytest.raises(SourceError, match="is a pipe or a device"):
        import_files(name, [str(pipes[0])], str(spool))
    with pytest.raises(SourceError):
        import_files(name, [str(tmp_path)], str(spool))
