"""A lake with hostile text in every text column of every table: markup, escape sequences, Markdown, forged lines."""

import pyarrow as pa
from recorded_runs import lake_of_runs
from rollup_inputs import NOON, append

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import load_contracts
from ranklake.lake.rollups.runner import run_rollups

MARKER = "pwnd"
HOSTILE = (
    f"</script></code></td><script>{MARKER}(1)</script><img src=x onerror={MARKER}(2)>"
    f"\"' onmouseover={MARKER}(3) \u202e\x1b]0;{MARKER}\x07\x1b[2J\x9b31m\r\n{MARKER} forged line\n"
    f"| a | [x](javascript:{MARKER}(4)) ![y](https://{MARKER}.example/z) {{{{ {MARKER} }}}} `code` \\ %s {{}} \x00"
)
"""Ends elements, attributes, code, cells and templates; moves a cursor, turns text around, forges lines."""

LEDGERS = {"audit", "ingest_plans", "archives"}
"""What ranklake keeps of its own work: digests, counts and URIs, which other tests forge."""
RUNS = ("alpha-1", "beta")


def hostile_lake(folder):
    """Return a lake of runs to each of whose tables rows of hostile text were committed, before and after rollups."""
    lake = lake_of_runs(folder)
    contracts = [one for one in load_contracts().values() if one.table not in LEDGERS]
    for contract in contracts:
        if contract.kind == "fact":
            append(lake, contract.table, _rows(contract))
    run_rollups(lake)
    for contract in contracts:
        if contract.kind != "fact":
            append(lake, contract.table, _rows(contract))
    return lake


def _rows(contract):
    schema = arrow_schema(contract)
    return pa.Table.from_pylist([_row(schema, run, slot) for slot, run in enumerate(RUNS)], schema=schema)


def _row(schema, run, slot):
    own = {"run": run, "attempt": 0, "rank": 0, "incarnation": 90, "segment": 0, "slot": slot, "date": NOON.date()}
    return {field.name: own.get(field.name, _value(field.type)) for field in schema}


def _value(kind):
    if pa.types.is_list(kind):
        return [_value(kind.value_type)]
    simple = {
        pa.types.is_timestamp: NOON,
        pa.types.is_date: NOON.date(),
        pa.types.is_boolean: False,
        pa.types.is_binary: HOSTILE.encode(),
        pa.types.is_string: HOSTILE,
    }
    return next((value for is_kind, value in simple.items() if is_kind(kind)), 1)
