"""Runs of wandb's API: by the script that the docs have, and histories that were saved otherwise."""

import json
import re
import runpy
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from importing import ask, imported

from ranklake.capture.assets.image_file import png
from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError
from ranklake.lake.ingest.status.liveness import liveness

DOCS = Path(__file__).parents[3] / "docs" / "coming-over.md"
AT = 1_795_980_684.5
PICTURE = png(np.zeros((4, 5, 3), np.uint8)).raw
HISTORY = [  # as wandb 0.31 wrote it; names of files shortened
    {"acc": 0, "_timestamp": AT, "_runtime": 1.2, "_step": 0, "loss": 2.5},
    {"_step": 1, "loss": 1.5, "acc": float("nan"), "_timestamp": AT + 1, "_runtime": 2.2},
    {
        "_step": 3, "grad": {"_type": "histogram", "values": [3, 2, 2, 3], "bins": [0, 2.25, 4.5, 6.75, 9]},
        "pic": {"width": 5, "height": 4, "caption": "c", "_type": "image-file", "path": "media/images/pic_3.png"},
        "lost": {"_type": "image-file", "path": "media/images/lost.png", "size": 69, "sha256": "be" * 32},
        "t": {"_type": "table-file", "path": "media/table/t.json", "ncols": 1, "nrows": 1},
        "out": {"_type": "image-file", "path": "../../../etc/passwd"},
        "words": "hello", "flag": True, "_timestamp": AT + 2, "_runtime": 3.5,
    },
    {"late": 1, "_timestamp": AT + 3, "_runtime": 4.5, "_step": 10},
]  # fmt: skip
EVENTS = [{"_timestamp": AT + 1, "_wandb": True, "_runtime": 2, "system.gpu.0.powerWatts": 61.5, "system.cpu": 7}]


class StoredFile(SimpleNamespace):
    """A file as `run.files()` yields it."""

    def download(self, root, exist_ok):
        """Write the file below a folder."""
        assert exist_ok
        (Path(root) / self.name).parent.mkdir(parents=True, exist_ok=True)
        (Path(root) / self.name).write_bytes(PICTURE)


class StoredRun(SimpleNamespace):
    """A run as `Api.runs` yields it: what a server answered, recorded."""

    def scan_history(self):
        """Yield each row."""
        return iter(HISTORY)

    def history(self, *, stream, samples, pandas):
        """Return rows of a stream, at most so many."""
        return EVENTS if stream == "system" and samples > 500 and not pandas else []

    def files(self):
        """Return what was uploaded."""
        return [StoredFile(name="media/images/pic_3.png"), StoredFile(name="output.log")]


def run_script(beginning, module, argument, place, monkeypatch):
    """Run the script of the docs that begins so, with a stand-in for the tracker's module."""
    (script,) = (text for text in re.findall(r"```python\n(.*?)```", DOCS.read_text(), re.DOTALL) if beginning in text)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(sys, "argv", ["export.py", argument])
    monkeypatch.chdir(place)
    (place / "export.py").write_text(script)
    runpy.run_path("export.py", run_name="__main__")


class AimRun(SimpleNamespace):
    """A run of Aim's, with what its SDK 3.29 answered for a public store."""

    def metrics(self):
        """Yield a metric of a context, and one of the machine."""
        numbers = np.array([0, 5]), (np.array([2.5, np.inf]), np.array([1, 1]), np.array([AT, AT + 1]))
        for name, context in (("loss", {"subset": "train"}), ("__system__gpu_temp", {"gpu": 0})):
            data = SimpleNamespace(numpy=lambda: numbers)
            yield SimpleNamespace(name=name, context=SimpleNamespace(to_dict=lambda found=context: found), data=data)

    def __getitem__(self, key):
        assert key is ...
        return {"hparams": {"lr": 0.1}, "__system_params": {"env": "secret"}}


def test_the_script_for_aim(lake, spool, tmp_path, monkeypatch):
    """Metrics with their contexts, steps and times; system metrics; parameters without Aim's own."""
    run = AimRun(hash="4f3556a113a2", name="first", experiment="digits", tags=["x"], description=None)
    aim = ModuleType("aim")
    repo = SimpleNamespace(iter_runs=lambda: iter([run]), list_all_runs=lambda: [run.hash, "not indexed"])
    aim.Repo = lambda path: repo if path == "." else None
    with pytest.raises(SystemExit, match=r"1 runs are not in Aim's index: run 'aim storage --repo \. reindex'"):
        run_script("from aim import Repo\n", aim, ".", tmp_path, monkeypatch)
    repo.list_all_runs = lambda: [run.hash]
    run_script("from aim import Repo\n", aim, ".", tmp_path, monkeypatch)
    done = imported(lake, spool, "tracker_export", tmp_path / "aim-export")
    assert (done.runs, done.refused) == (["first-4f3556a1"], {})
    rows = ask(lake, "SELECT metric, step, value, value_flag FROM scalars ORDER BY ts, metric")
    assert [tuple(row.values()) for row in rows] == [
        ("0/system/gpu_temp", 0, 2.5, None), ("train/loss", 0, 2.5, None), ("0/system/gpu_temp", 5, None, "+inf"),
        ("train/loss", 5, None, "+inf"),
    ]  # fmt: skip
    assert ask(lake, "SELECT job, config FROM runs") == [{"job": "digits", "config": '{"hparams":{"lr":0.1}}'}]


def test_what_the_documented_script_writes(lake, spool, tmp_path, monkeypatch):
    """The script of the docs, and the import of what it writes: rows with gaps, media, system metrics, summary."""
    run = StoredRun(
        id="3b61qi0x", name="first", project="digits", state="failed", created_at="2026-11-29T19:31:23Z",
        tags=["a b", "x"], notes="n", config={"lr": 0.1, "opt": {"name": "adam"}, "api_key": "sk-live-0123456789abc"},
        summary_metrics={"best": 0.25, "loss": 1.5, "_step": 10, "pic": {"_type": "image-file"}, "_wandb": {}},
    )  # fmt: skip
    wandb = ModuleType("wandb")
    wandb.Api = lambda: SimpleNamespace(runs=lambda path: [run] if path == "team/digits" else [])
    run_script("import json, pathlib, sys, wandb\n", wandb, "team/digits", tmp_path, monkeypatch)
    done = imported(lake, spool, "tracker_export", tmp_path / "wandb-export")
    assert (done.runs, done.refused) == (["first-3b61qi0x"], {})
    rows = ask(lake, "SELECT metric, step, value, value_flag FROM scalars ORDER BY ts, metric")
    assert [tuple(row.values()) for row in rows] == [
        ("acc", 0, 0.0, None), ("loss", 0, 2.5, None), ("acc", 1, None, "nan"), ("loss", 1, 1.5, None),
        ("system/cpu", None, 7.0, None), ("system/gpu.0.powerWatts", None, 61.5, None),
        ("best", None, 0.25, None), ("late", 10, 1.0, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT metric, step, count FROM distributions") == [{"metric": "grad", "step": 3, "count": 10}]
    assert ask(lake, "SELECT name, step, row_count h FROM media") == [{"name": "pic", "step": 3, "h": 4}]
    files = ask(lake, "SELECT name, bytes, sha256 IS NOT NULL s FROM artifacts ORDER BY name")
    assert [tuple(row.values()) for row in files] == [("lost", 69, True), ("t", None, False)]
    facts = ask(lake, "SELECT job, config, labels FROM runs")[0]
    assert facts["job"] == "digits"
    assert json.loads(facts["config"]) == {"lr": 0.1, "opt": {"name": "adam"}, "api_key": "[redacted]"}
    assert json.loads(facts["labels"])["not_imported"] == "3 values that are not numbers"
    ended_at = ask(lake, "SELECT max(ts) AS ts FROM events WHERE event = 'failure'")[0]["ts"]
    assert [rank.state for rank in liveness(lake, now=ended_at)] == ["failed"]
    notes = ask(lake, "SELECT kind, key, value, text FROM annotations ORDER BY kind, key")
    assert [tuple(row.values()) for row in notes] == [
        ("name", None, "first", None), ("note", None, None, "n"), ("tag", "a b", None, None),
        ("tag", "x", None, None),
    ]  # fmt: skip
    assert ask(lake, "SELECT event FROM events WHERE event <> 'gap'") == [{"event": "failure"}]
    assert imported(lake, spool, "tracker_export", tmp_path / "wandb-export").again == 1


def test_histories_alone(lake, spool, tmp_path):
    """CSV with an index, Parquet and a JSON list, each a run; a file of another kind beside them is none."""
    text = ",_step,loss,_runtime,_timestamp\n0,0,2.5,1.2,1795980684.5\n1,5,,2.0,1795980685.5\n2,6,x,3.0,\n"
    (tmp_path / "a.csv").write_text(text)
    table = pa.table({"_step": [0, 1], "loss": [2.5, None], "_timestamp": [AT, AT + 1]})
    pq.write_table(table, tmp_path / "b.parquet")
    (tmp_path / "c.json").write_text(json.dumps(HISTORY[:2], indent=1))
    (tmp_path / "other.csv").write_text("epoch,loss\n1,2\n")
    (tmp_path / "other.parquet").write_bytes(b"PAR1 and no more")
    done = imported(lake, spool, "tracker_export", tmp_path)
    assert (done.runs, done.refused) == (["a", "b", "c"], {"the row has no time": 1})
    rows = ask(lake, "SELECT run, step, value FROM scalars WHERE metric = 'loss' ORDER BY run, step")
    assert [tuple(row.values()) for row in rows] == [("a", 0, 2.5), ("b", 0, 2.5), ("c", 0, 2.5), ("c", 1, 1.5)]


def test_what_is_no_export(spool, tmp_path):
    """A folder without one is refused; a flawed row and a flawed run.json are named."""
    (tmp_path / "x").mkdir()
    with pytest.raises(SourceError, match=r"no export of a tracker.*run\.json"):
        import_files("tracker_export", [str(tmp_path / "x")], str(spool))
    (tmp_path / "x" / "run.json").write_text("[1]")
    with pytest.raises(SourceError, match="not a run of a tracker"):
        import_files("tracker_export", [str(tmp_path / "x")], str(spool))
    (tmp_path / "x" / "run.json").write_text('{"id": "a", "config": {}, "summary": {"best": 1}}')
    (tmp_path / "x" / "history.jsonl").write_text('{"_step": 0, "_timestamp": 1795980684, "loss": 1}\n{"_step\n[]\n')
    done = import_files("tracker_export", [str(tmp_path / "x")], str(spool))
    assert (done.rows["scalars"], done.refused) == (2, {"the row has no time": 1})
