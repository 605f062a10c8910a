"""Each format's file given to every other importer: the refusal names the right one, in a line."""

import json
import os
import sqlite3
import struct
from pathlib import Path

import pytest
from foreign_bytes import log, record, sub

from ranklake.capture.importers.formats import formats
from ranklake.capture.importers.imports import import_files
from ranklake.errors import RanklakeError

STORES = Path(__file__).parents[2] / "support" / "offline"
ITERATION = (
    " iteration {:8d}/ 9 | elapsed time per iteration (ms): 1120.0 | global batch size: 8 | lm loss: 2.5E+00 |\n"
)
FILES = {
    "mlperf": ("result.txt", ':::MLLOG {"time_ms": 1727896395561, "key": "init_start"}\n'),
    "sacct": ("jobs.txt", "JobID|State|Start|End\n1|COMPLETED|2024-05-01T10:00:00|2024-05-01T10:01:30\n"),
    "pbs": ("20201207", "12/07/2020 01:00:41;E;8.srv;user=bob queue=c ctime=1607291960 start=1607291970\n"),
    "sge": ("accounting", "# Version: 8.1.9\ngpu.q:n1:users:ann:train:22947:sge:0:1310761621:1311095354:1311095414:"
            + ":".join(["0"] * 40) + "\n"),
    "lsf": ("lsb.acct", '"JOB_FINISH" "10.1" 1700000100 7 1000 33 1 1700000000 0 0 1700000010 "ann" "gpu" "" ""\n'),
    "swf": ("trace.swf", "; Version: 2.2\n     1 0 10 100 64 90.5 -1  64  200 -1 1 7 1 -1 2 -1 -1 -1\n"),
    "kubernetes": ("pods.json", json.dumps({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "a", "uid": "1"}}]}, indent=1)),
    "megatron": ("train.log", "".join(map(ITERATION.format, (1, 2, 3)))),
    "torchtitan": ("titan.log", "[titan] 2025-06-16 22:00:04,000 - root - INFO - step:  1  loss: 10.0  tps: 5,856\n"),
    "nanotron": ("out.log", "10/17/2025 16:31:56 [INFO|DP=0|PP=0|TP=0]: iteration: 7 / 90 | lm_loss: 2.38\n"),
    "maxtext": ("out.log", "completed step: 9, seconds: 5.667, TFLOP/s/device: 134.924, loss: 10.374\n"),
    "olmo": ("out.log", "2024-08-06 10:00:05.520 h:0  olmo.train:908  INFO  [step=2/39,epoch=0]\n    optim/a=0.0002\n"),
    "kineto": ("trace.json", json.dumps({"schemaVersion": 1, "traceEvents": [
        {"ph": "X", "name": "a", "ts": 1, "dur": 2, "pid": 1, "tid": 1}]})),
    "prometheus": ("page.prom", '# HELP up Up.\n# TYPE up gauge\nup 1\nother{a="b"} 2\n'),
    "nvidia_smi": ("gpu.csv", "timestamp, index, utilization.gpu [%]\n2026/03/01 10:00:00.000, 0, 97 %\n"),
    "faults": ("faults.json", json.dumps([{"node_id": "n1", "event_time": 1.5, "event_type": "fault_start",
               "fault_type": {"Class": "GPU"}}])),
    "nccl": ("nccl.n-0.980", "n-0:980:1265 [0] NCCL INFO Using network IB\n"),
    "nccl_inspector": ("n-0-pid1.log", json.dumps({"header": {"id": "0x1"}, "metadata": {
        "inspector_output_format_version": "v4.0"}, "coll_perf": {"coll": "AllReduce"}}) + "\n"),
    "nccl_ras": ("ras.json", json.dumps({"nccl_version": "2.30.3", "communicators_count": 1}, indent=2)),
    "otlp": ("traces.jsonl", json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [{"name": "x"}]}]}]}) + "\n"),
    "wandb": ("run-a.wandb", log(b"\x0a\x00")),
    "tensorboard": ("events.out.tfevents.1", record(b"\x09" + struct.pack("<d", 1.7e9) + sub(3, b"brain.Event:2"))),
    "trainer_state": ("trainer_state.json", json.dumps({"epoch": 1.0, "global_step": 1, "log_history": [
        {"step": 1, "loss": 2.5}]}, indent=2)),
    "trainer_log": ("trainer_log.jsonl", json.dumps({"current_steps": 1, "total_steps": 2, "loss": 2.5}) + "\n"),
    "lightning": ("metrics.csv", "epoch,step,train_loss\n0,1,2.5\n"),
    "ultralytics": ("results.csv", "epoch,time,train/box_loss,metrics/precision(B)\n1,2.0,1.0,0.5\n"),
    "tracker_export": ("history.jsonl", json.dumps({"_step": 0, "_timestamp": 1.7e9, "loss": 2.5}) + "\n"),
    "mlflow": ("meta.yaml", "artifact_uri: ''\nrun_id: b7c4\nstatus: 3\nlifecycle_stage: active\nstart_time: 17\n"),
    "trackio": ("a.db", ""),
    "comet": ("c1416acc.zip", (STORES / "comet.zip").read_bytes()),
    "clearml": ("offline-813ddac5.zip", (STORES / "clearml.zip").read_bytes()),
    "dvclive": ("metrics.json", json.dumps({"step": 1, "loss": 2.5}, indent=4)),
}  # fmt: skip
"""A file of each format, named as its tool names it."""


def put(folder, kind):
    """Write a format's file, with what has to lie beside it; return it."""
    name, content = FILES[kind]
    place = folder / kind
    place.mkdir()
    if kind == "trackio":
        with sqlite3.connect(place / name) as store:
            store.execute(
                "CREATE TABLE metrics (id INTEGER, timestamp TEXT, run_name TEXT, step INTEGER, metrics TEXT)"
            )
            store.execute("CREATE TABLE system_metrics (id INTEGER, timestamp TEXT, run_name TEXT, metrics TEXT)")
            store.execute("INSERT INTO metrics VALUES (1, '2026-03-01T00:00:00', 'r', 0, '{\"loss\": 1}')")
        store.close()
    else:
        (place / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    if kind == "dvclive":
        (place / "plots" / "metrics").mkdir(parents=True)
        (place / "plots" / "metrics" / "loss.tsv").write_text("step\tloss\n1\t2.5\n")
    os.utime(place / name, (1_700_000_000, 1_700_000_000))
    return place / name


def refusal(asked, path, folder):
    """Return the line of a refusal."""
    with pytest.raises(RanklakeError) as refused:
        import_files(asked, [str(path)], str(folder / "spool"))
    (line,) = str(refused.value).splitlines()
    return line


@pytest.mark.parametrize("kind", FILES)
def test_the_right_format_is_named(tmp_path, kind):
    """Whatever was asked for, of the file and of the folder that it lies in; nothing is sent."""
    file = put(tmp_path, kind)
    for asked in formats().keys() - {kind, "table"}:  # a mapping says itself what a table is
        for path in (file, file.parent):
            assert f"import {kind} " in refusal(asked, path, tmp_path), (asked, path)
    assert not list(tmp_path.glob("spool/**/*.parquet"))


def test_all_formats_are_tried():
    """A new format has a file here; Neptune's needs a run's Parquet, and a table is anything."""
    assert formats().keys() - FILES.keys() == {"neptune", "table"}
    assert FILES.keys() <= formats().keys()


def test_a_folder_of_its_own_files(tmp_path):
    """A format that takes no folder says how to name its files, also where others lie beside them."""
    file = put(tmp_path, "kineto")
    (file.parent / "metrics.csv").write_text(FILES["lightning"][1])
    assert "is a folder; name its files" in refusal("kineto", file.parent, tmp_path)
    assert "it holds lightning and kineto: ranklake import lightning" in refusal("pbs", file.parent, tmp_path)
