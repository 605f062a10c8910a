"""A lake of four runs, of which a role does not see one, which left something in every table that pages read."""

from datetime import timedelta

from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append

from ranklake.lake.contracts.load import load_contracts

PLANTED = ("beta", "canary", "pc-lovelace", "/home/lovelace", "node-of-ada", "evil")
"""Parts of what the role must not see: a run, its settings, series, artifacts and labels; names of people and hosts."""
TABLES = sorted(load_contracts())
READER = {"classes": ["operational"], "tables": TABLES, "runs": "run LIKE 'alpha%'"}


def lake_with_a_hidden_run(folder):
    """Return the lake."""
    made = lake_of_runs(folder)
    hidden = {"run": "beta", "incarnation": 13, "ts": NOON + timedelta(hours=3)}
    append(made, "scalars", [
        {**hidden, "metric": "canary/metric", "value": 1.0, "step": 0},
        *({"run": "alpha-1", "incarnation": 10, "ts": NOON, "metric": "own/metric", "value": 2.0, "step": step}
          for step in range(3)),
    ])  # fmt: skip
    append(made, "artifacts", [{**hidden, "name": "canary-artifact", "kind": "checkpoint", "action": "saved"}])
    append(made, "datasets", [{**hidden, "name": "canary-set"}])
    append(made, "annotations", [{**hidden, "kind": "tag", "key": "canary-tag", "value": "canary"}])
    append(made, "logs", [
        {**hidden, "severity_text": "CANARY", "severity_number": 9, "message": "canary line"},
        {"run": "alpha-1", "incarnation": 10, "ts": NOON, "severity_text": "INFO", "message": "mail node-of-ada"},
    ])  # fmt: skip
    append(made, "gpu_hourly", [
        {"hour": NOON, "host": "node-of-ada", "device_uuid": "GPU-1", "sample_count": 1, "observed_s": 1.0,
         "busy_observed_s": 1.0, "busy_s": 0.5, "energy_observed_s": 0.0, "date": NOON.date(), "holder_run": "beta"},
    ])  # fmt: skip
    return made
