"""Findings made by hand, and incidents of them."""

import hashlib
import json
from datetime import timedelta

from rollup_inputs import NOON

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.incidents import id_of
from ranklake.lake.rollups.inputs import InputTables
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import _Round

MINUTE = timedelta(minutes=1)
EVIL = "<b>\u202eevil\x1b[2J"
WORDS = {"severity": "warning", "message": "something", "evidence_sql": "SELECT 1", "runbook": "loss-spike"}


def finding(detector="loss_spike", minutes=0, lasts=0, **more):
    """Return a finding of run r1 that begins some minutes after noon, and lasts some; None while it lasts."""
    start = NOON + minutes * MINUTE
    subject = [more.get(name, "") for name in ("run", "host", "device_uuid")]
    key = "\n".join(map(str, [detector, *subject, start]))
    row = {
        **WORDS, "finding_id": hashlib.sha256(key.encode()).hexdigest()[:16], "detector": detector, "run": "r1",
        "attempt": 0, "rank": None, "start_ts": start, "end_ts": None if lasts is None else start + lasts * MINUTE,
        "computed_ts": start + 5 * MINUTE, "date": start.date(), "host": None, "device_uuid": None, "step": None,
    }  # fmt: skip
    return {**row, **more}


def on_node(detector, minutes=0, lasts=0, **more):
    """Return a finding of a host outside of runs."""
    return finding(detector, minutes, lasts, **{"run": None, "attempt": None, "host": "n1", **more})


def evidence_row(detector, finding, minutes=0, **more):
    """Return a finding as evidence has it."""
    start = (NOON + minutes * MINUTE).isoformat()
    facts = {"finding_id": finding, "detector": detector, "severity": "error", "start_ts": start, "runbook": None}
    sql = "SELECT step, loss FROM steps"
    return {**facts, "message": f"{detector} {EVIL}", "value": 9.0, "baseline": 2.0, "evidence_sql": sql, **more}


def incident_row(name, kind="loss_spike", run="r1", minutes=0, lasts=10, **more):
    """Return an incident of one finding, in whose id its name stands."""
    start = NOON + minutes * MINUTE
    end = None if lasts is None else start + lasts * MINUTE
    return {
        "incident_id": id_of(("run", run or ""), name), "kind": kind, "severity": "error", "title": f"{kind} {EVIL}",
        "run": run, "job": "gpt", "start_ts": start, "end_ts": end, "last_ts": end or start,
        "detected_ts": start + 5 * MINUTE, "time_to_detect_s": 300.0, "device_count": 8, "affected_device_s": 4800.0,
        "time_to_recover_s": None if lasts is None else lasts * 60.0, "causes": '["loss-spike"]', "cause": "loss-spike",
        "status": "open" if lasts is None else "closed", "findings": 1, "detectors": json.dumps({kind: 1}),
        "evidence": json.dumps([evidence_row(kind, name, minutes)]), "date": start.date(), **more,
    }  # fmt: skip


def rolled_up(lake):
    """Bring incidents up to date, and leave alone the findings that a test made: their rollups know no inputs."""
    (rollup,) = (one for one in ROLLUPS if one.name == "incidents")
    with Lineage(lake.tables) as lineage:
        _Round(InputTables(lake), lineage, InProcess(), full=False).bring_up_to_date([rollup], None)
