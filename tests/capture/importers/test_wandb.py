"""Offline runs of wandb, written here after the descriptions of their format."""

import json

import numpy as np
import pytest
from foreign_bytes import log, sub, varint
from hypothesis import given, settings
from hypothesis import strategies as st
from importing import ask, imported, refused_as_another_run

from ranklake.capture.assets.image_file import png
from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.rollups.runner import run_rollups

BEGIN = 1_700_000_000


def item(key, value):
    return sub(1, key.encode()) + sub(16, json.dumps(value).encode())


def stamp(seconds):
    return b"\x08" + varint(seconds)


def history(step, at, **values):
    items = {"_step": step, "_timestamp": at, **values}
    return sub(2, b"".join(sub(1, item(key, value)) for key, value in items.items()))


RUN = sub(17, sub(1, b"abc") + sub(3, b"project") + sub(4, sub(1, item("lr", 0.5))) + sub(17, stamp(BEGIN)))
RECORDS = [
    RUN,
    history(0, BEGIN + 0.5, loss=2.5, note="words"),
    sub(7, sub(2, stamp(BEGIN + 1)) + sub(3, item("gpu.0.gpu", 87.0))),
    history(1, BEGIN + 2, loss=float("nan"), text="x" * 70_000),
    history(2, BEGIN + 3, loss=1.5),
    sub(18, b"\x08\x01"),
]


def test_a_run(lake, spool, tmp_path):
    """A folder's run: history and system figures are scalars, whatever blocks cut; its row of runs has the rest."""
    folder = tmp_path / "offline-run-1"
    folder.mkdir()
    (folder / "run-abc.wandb").write_bytes(log(*RECORDS))
    (folder / "debug.log").write_text("x")
    done = imported(lake, spool, "wandb", folder, run="r")
    assert (done.rows, done.refused) == ({"events": 1, "runs": 1, "scalars": 4}, {})
    rows = ask(lake, "SELECT metric, step, value, value_flag f FROM scalars ORDER BY ts")
    assert [(row["metric"], row["step"], row["value"], row["f"]) for row in rows] == [
        ("loss", 0, 2.5, None), ("system/gpu.0.gpu", None, 87.0, None),
        ("loss", 1, None, "nan"), ("loss", 2, 1.5, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT job, config FROM runs") == [{"job": "project", "config": '{"lr": 0.5}'}]
    assert ask(lake, "SELECT event, severity FROM events") == [{"event": "run_end", "severity": "error"}]
    run_rollups(lake, ["goodput"])
    assert ask(lake, "SELECT status FROM goodput") == [{"status": "failed"}]


def nested(key, value):
    return b"".join(sub(2, part.encode()) for part in key.split(".")) + sub(16, json.dumps(value).encode())


def test_objects_are_no_metrics(lake, spool, tmp_path):
    """Images and histograms, which wandb keeps as nested keys, are media and distributions, in the summary, too."""
    picture = png(np.zeros((2, 3), np.uint8)).raw
    files = tmp_path / "run-1" / "files" / "media" / "images"
    files.mkdir(parents=True)
    (files / "p.png").write_bytes(picture)
    parts = {
        "pic._type": "image-file", "pic.size": 69, "pic.path": "media/images/p.png", "grad._type": "histogram",
        "grad.values": [3, 2], "grad.bins": [0, 1, 2], "lr.group": 0.5,
    }  # fmt: skip
    items = [item("_step", 4), item("_timestamp", BEGIN), *(nested(key, value) for key, value in parts.items())]
    raw = [sub(2, b"".join(sub(1, each) for each in items)), sub(3, b"".join(sub(1, each) for each in items))]
    (tmp_path / "run-1" / "run-abc.wandb").write_bytes(log(RUN, *raw))
    done = imported(lake, spool, "wandb", tmp_path)
    assert (done.rows, done.refused) == ({"distributions": 1, "media": 1, "runs": 1, "scalars": 1}, {})
    assert ask(lake, "SELECT metric, step, value FROM scalars") == [{"metric": "lr.group", "step": 4, "value": 0.5}]
    assert ask(lake, "SELECT name, step, bytes b FROM media") == [{"name": "pic", "step": 4, "b": len(picture)}]


def test_not_wandb(spool, tmp_path):
    """Another file is refused."""
    (tmp_path / "x.wandb").write_bytes(b"\0" * 20)
    with pytest.raises(SourceError, match="not a file of wandb"):
        import_files("wandb", [str(tmp_path / "x.wandb")], str(spool))


@settings(max_examples=10, deadline=None)
@given(st.integers(7, 71_000), st.integers(0, 255))
def test_damage_is_counted(tmp_path_factory, at, byte):
    """One byte changed anywhere: what is whole in other blocks is there, and the damage is counted."""
    place = tmp_path_factory.mktemp("w")
    whole = bytearray(log(*RECORDS))
    damaged = at < len(whole) and whole[at] != byte
    if at < len(whole):
        whole[at] = byte
    (place / "r.wandb").write_bytes(whole)
    done = import_files("wandb", [str(place / "r.wandb")], str(place / "spool"), run="r")
    assert bool(done.refused) == damaged


def test_values_of_the_summary_alone(lake, spool, tmp_path):
    """What was set in the summary and never logged is a scalar at its time; texts and media there are counted."""
    summary = {"loss": 1.5, "best_acc": 0.875, "_timestamp": BEGIN + 9, "note": "words", "gone": 1.0}
    told = sub(3, b"".join(sub(1, item(key, value)) for key, value in summary.items()))
    gone = sub(3, sub(1, item("test/f1", 0.5)) + sub(2, sub(1, b"gone")))
    (tmp_path / "r.wandb").write_bytes(log(*RECORDS[:-1], told, gone, RECORDS[-1]))
    imported(lake, spool, "wandb", tmp_path / "r.wandb", run="r")
    found = ask(
        lake, "SELECT metric, value, CAST(ts AS BIGINT) / 1000000 at FROM scalars WHERE step IS NULL ORDER BY metric"
    )
    assert [(row["metric"], row["value"], row["at"] - BEGIN) for row in found if row["metric"][:6] != "system"] == [
        ("best_acc", 0.875, 9),
        ("test/f1", 0.5, 9),
    ]
    (row,) = ask(lake, "SELECT labels FROM runs")
    assert '"not_imported":"3 values that are not numbers"' in row["labels"]


def test_two_runs_do_not_become_one(tmp_path):
    """A run that has rows of one `.wandb` takes no other, by another command either."""
    files = [tmp_path / f"run-{name}.wandb" for name in "ab"]
    for step, file in enumerate(files):
        file.write_bytes(log(RUN, history(step, BEGIN + 0.5, loss=2.5)))
    refused_as_another_run("wandb", files, tmp_path / "spool")


def test_the_folder_that_wandb_makes(tmp_path):
    """`import wandb wandb/` finds the runs in it, each once though a link names the last; an empty one says so."""
    for number in (1, 2):
        folder = tmp_path / "wandb" / f"offline-run-{number}"
        folder.mkdir(parents=True)
        (folder / f"run-{number}.wandb").write_bytes(log(RUN, history(number, BEGIN + 1, loss=1.0)))
    (tmp_path / "wandb" / "latest-run").symlink_to("offline-run-2")
    done = import_files("wandb", [f"{tmp_path}/wandb/"], str(tmp_path / "spool"))
    assert (done.files, done.rows["scalars"], len(done.runs)) == (2, 2, 2)
    (tmp_path / "none").mkdir()
    with pytest.raises(SourceError, match="the folder has no file of this format"):
        import_files("wandb", [str(tmp_path / "none")], str(tmp_path / "spool"))


def test_what_people_gave_a_run(lake, spool, tmp_path):
    """Name, note, tags and group of the run's record come, without credentials; the last of a changed record counts."""
    hostile = "<b>wide</b>\n\x1b[31m"
    first = sub(8, b"old") + sub(9, b"call hf_" + b"a" * 34) + sub(10, b"night") + sub(10, "größe <i>".encode())
    begun = sub(17, sub(1, b"abc") + first + sub(17, stamp(BEGIN)))
    renamed = sub(17, sub(1, b"abc") + sub(6, b"third") + sub(12, b"s1") + sub(8, hostile.encode()))
    (tmp_path / "r.wandb").write_bytes(log(begun, *RECORDS[1:], renamed))
    imported(lake, spool, "wandb", tmp_path / "r.wandb", run="r")
    found = ask(lake, "SELECT kind, key, value, text FROM annotations ORDER BY kind, key")
    assert [(row["kind"], row["key"] or row["value"] or row["text"]) for row in found] == [
        ("name", "<b>wide</b> \x1b[31m"), ("note", "call [redacted]"), ("tag", "größe <i>"), ("tag", "night"),
    ]  # fmt: skip
    labels = json.loads(ask(lake, "SELECT labels FROM runs")[0]["labels"])
    assert (labels["tracker_group"], labels["sweep"], labels["sweep_by"]) == ("third", "s1", "wandb")


@pytest.mark.parametrize(("name", "told"), [("val/f1", 0), ("loss", 1), ("train/grad_norm", 1)])
def test_scores_that_are_nan_are_no_gradients(lake, spool, tmp_path, name, told):
    """A score without a value is logged as NaN: no incident. A loss or gradient norm that is NaN is one."""
    rows = [history(step, BEGIN + step, **{name: float("nan")}) for step in range(20)]
    (tmp_path / "r.wandb").write_bytes(log(RUN, *rows))
    imported(lake, spool, "wandb", tmp_path / "r.wandb", run="r")
    run_rollups(lake, ["run_findings"])
    assert len(ask(lake, "SELECT * FROM run_findings WHERE detector = 'non_finite'")) == told
