"""Findings made by hand, and incidents of them."""

import hashlib
from datetime import timedelta

from rollup_inputs import NOON

from ranklake.lake.plans.workers import InProcess
from ranklake.lake.rollups.inputs import InputTables
from ranklake.lake.rollups.lineage import Lineage
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.rollups.runner import _Round

MINUTE = timedelta(minutes=1)
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


def rolled_up(lake):
    """Bring incidents up to date, and leave alone the findings that a test made: their rollups know no inputs."""
    (rollup,) = (one for one in ROLLUPS if one.name == "incidents")
    with Lineage(lake.tables) as lineage:
        _Round(InputTables(lake), lineage, InProcess(), full=False).bring_up_to_date([rollup], None)
