"""A lake of runs as people have them: failed, finished, going on; with settings, labels, and text that plays tricks."""

import base64
import json
from datetime import timedelta
from itertools import product

import numpy as np
from rollup_inputs import NOON, append

from ranklake.capture.assets.image_file import png
from ranklake.lake.rollups.runner import run_rollups
from ranklake.lake.store.lake import Lake

SCRIPT = '<script>alert(1)</script>"\u202e'
PICTURE = base64.b64encode(png(np.eye(8)).raw).decode()
EVIL = "<b>\u202eevil\x1b[2J"
RUNS = {
    "alpha-1": {"config": {"lr": 0.001, "opt": {"name": "adam"}}, "labels": {"kind": "base"}, "team": "vision"},
    "alpha-2": {"config": {"lr": 0.002, "opt": {"name": "adam"}}, "labels": {"kind": "base"}, "team": "vision"},
    "alpha-3": {"config": {"lr": 0.001, "opt": {"name": "sgd"}}, "labels": {"größe": "x"}, "team": "text"},
    "beta": {"config": {"lr": True}, "labels": {}, "team": None},
}


def _runs():
    for number, (name, told) in enumerate(RUNS.items()):
        yield {
            "run": name,
            "incarnation": 10 + number,
            "ts": NOON + timedelta(hours=number),
            "world_size": 2,
            "job": EVIL if name == "beta" else "gpt",
            "team": told["team"],
            "device_name": "a CPU",
            "config": json.dumps(told["config"]),
            "labels": json.dumps(told["labels"]),
            "user": "lovelace",
            "host": "pc-lovelace",
        }


def _steps():
    for number, name in enumerate(RUNS):
        for rank, step in product(range(2), range(30 if name != "beta" else 1)):
            if name != "beta" or rank == 0:  # of beta, one step of one rank of two
                yield {
                    "run": name,
                    "incarnation": 10 + number,
                    "rank": rank,
                    "step": step,
                    "tokens": 100,
                    "ts": NOON + timedelta(hours=number, seconds=step),
                    "loss": 5 - 0.01 * step + rank + number,
                    "step_time_s": 0.9 + number / 100,
                    "collective_time_s": 0.1 if rank else 0.5,
                }


def media_of(run):
    """Return a row of each kind, in the column of its class; of one name four steps."""
    matrix = json.dumps({"labels": ["cat", SCRIPT], "counts": [[3, 1], [0, 4]]})
    table = json.dumps({"columns": ["who", SCRIPT], "rows": [["lovelace@example.org", 1.5], [None, True]]})
    held = [
        ("confusion", "confusion_matrix", "content", matrix),
        ("plot", "image", "content", PICTURE),
        ("samples", "table", "content", json.dumps({"columns": ["prompt", "score"], "rows": [["a", 0.5], ["b", 1]]})),
        ("face", "image", "personal_image", PICTURE),
        ("people", "table", "personal_text", table),
        (SCRIPT, "text", "personal_text", f"mail lovelace@example.org {SCRIPT}\nsecond line"),
        *(("loss", "text", "content", f"at {step}") for step in range(4)),
    ]
    return [
        {"run": run, "incarnation": 10, "segment": 0, "slot": slot, "ts": NOON + timedelta(seconds=slot), "name": name,
         "kind": kind, "step": slot, "bytes": len(text), "caption": "by lovelace@example.org", column: text}
        for slot, (name, kind, column, text) in enumerate(held)
    ]  # fmt: skip


def lake_of_runs(folder):
    """Return a lake of four runs: one failed, two finished, one that goes on with one step of one rank of two."""
    lake = Lake.create(str(folder / "lake"))
    append(lake, "runs", list(_runs()))
    append(lake, "steps", list(_steps()))
    ends = [("alpha-1", "failure", "error"), ("alpha-2", "run_end", "info"), ("alpha-3", "run_end", "info")]
    append(lake, "events", [
        {"run": name, "event": event, "severity": severity, "step": 29, "message": "/home/lovelace",
         "ts": NOON + timedelta(hours=number, seconds=40)}
        for number, (name, event, severity) in enumerate(ends)
    ])  # fmt: skip
    run_rollups(lake)
    return lake
