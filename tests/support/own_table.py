"""A table of an overlay, and rows of it."""

import pyarrow as pa
from segments import DAY

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

TABLE = """table: rollouts
version: 1
kind: fact
owner: rl-team
steward: rl-team
summary: "One row per rollout."
grain: [incarnation, segment, slot]
envelope: true
partition: [date]
sort: [run, attempt, rank]
retention: raw
columns:
  - {id: 20, name: reward, type: float64, unit: "1", class: operational, doc: "Reward."}
  - {id: 21, name: wait_ms, type: float64, unit: ms, class: operational, doc: "Wait."}
  - {id: 22, name: note, type: string, class: operational, doc: "Words."}
"""


def rows(folder, count, segment=0):
    """Return rows of ``rollouts`` as the folder has it."""
    schema = arrow_schema(contract("rollouts", folder), segment=True)
    values = {"reward": 0.5, "score": 0.5, "wait_ms": 250.0, "wait_s": 0.25, "note": "good"}
    found = [
        dict.fromkeys(schema.names)
        | {"run": "r1", "attempt": 0, "rank": 0, "incarnation": 7, "segment": segment, "slot": slot, "ts": DAY}
        | {name: value for name, value in values.items() if name in schema.names}
        for slot in range(count)
    ]
    return pa.Table.from_pylist(found, schema=schema)
