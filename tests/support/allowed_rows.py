"""Rows of any values that a contract allows, by column and table: the least, the most, NULL, odd text."""

import itertools
import math
import random
from datetime import UTC, datetime, timedelta
from decimal import Decimal

import pyarrow as pa
from segments import put_segment

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import load_contracts, load_metrics

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
RUNS = ("r1", "r2", "sweep-3")
TEXTS = (
    "",
    " ",
    "a",
    "é",
    "\u202e",
    "x" * 5000,
    "{}",
    "[1]",
    '{"a": null}',
    "null",
    "NaN",
    "'; --",
    "<b>",
    "a\nb",
    "\x00",
)
EXTREMES = {
    "bool": (True, False),
    "int32": (0, 1, -1, 7, 2**31 - 1, -(2**31)),
    "int64": (0, 1, -1, 7, 2**53 + 1, 2**63 - 1, -(2**63)),
    "float32": (0.0, -0.0, 1.5, -1.0, float("nan"), float("inf"), float("-inf"), 3e38, 1e-45),
    "float64": (0.0, -0.0, 1.5, -1.0, float("nan"), float("inf"), float("-inf"), 1e308, 5e-324),
    "decimal": (Decimal(0), Decimal("-0.000000001"), Decimal(10**28), Decimal("1.5")),
    "timestamp": (
        NOON,
        NOON + timedelta(microseconds=1),
        datetime(1970, 1, 1, tzinfo=UTC),
        datetime(2262, 1, 1, tzinfo=UTC),
    ),
    "date": (NOON.date(), datetime(1970, 1, 1, tzinfo=UTC).date(), datetime(9999, 12, 31, tzinfo=UTC).date()),
    "int64_list": ([], [0], [2**63 - 1, -(2**63)], [None]),
}
JSON = (
    "{}",
    "[]",
    "null",
    "1e999",
    '"a"',
    '{"a": null}',
    '{"a": {"b": [1, 12345678901234567890123]}}',
    "[" * 50 + "]" * 50,
)
METRICS = sorted(load_metrics())
FACTS = {name: one for name, one in load_contracts().items() if one.envelope and one.status == "active"}


def value(column, checks, dice):
    """Draw a value of a column: of its type, and nearly always one that its checks allow."""
    if not column.required and dice.random() < 0.25:
        return None
    is_any = dice.random() < 0.03
    mine = [check for check in checks if column.name in check.columns]
    allowed = [one for check in mine for one in check.values if isinstance(one, str) is not column.is_number]
    if column.name == "metric":
        allowed = METRICS
    if allowed and not is_any:
        return _typed(column, dice.choice(allowed))
    drawn = JSON if column.format == "json" and not is_any else EXTREMES.get(column.type, TEXTS)
    if column.is_number and not is_any:
        ends = [one for check in mine for one in (check.min, check.max) if isinstance(one, int | float)]
        drawn = [_typed(column, one) for one in ends] + [one for one in drawn if _fits(one, mine)]
    return dice.choice(drawn)


def _fits(number, checks):
    if not math.isfinite(number):
        return False
    least = max((one.min for one in checks if isinstance(one.min, int | float)), default=-math.inf)
    most = min((one.max for one in checks if isinstance(one.max, int | float)), default=math.inf)
    return least <= number <= most


def _typed(column, one):
    if column.type.startswith("int"):
        return int(one)
    if column.type.startswith("float"):
        return float(one)
    return Decimal(str(one)) if column.type == "decimal" else one


def rows(contract, count, dice, run, **stream):
    """Draw rows of a table, as one process of a run records them in a segment."""
    checks = list(contract.all_checks())
    drawn = []
    for slot in range(count):
        row = {column.name: value(column, checks, dice) for column in contract.segment_columns}
        moment = NOON + timedelta(seconds=dice.choice((0, slot, 43_199, 43_201, 90_000)))
        if dice.random() < 0.8:  # so that there are series
            row |= {name: slot for name in ("step", "seq") if name in row}
        drawn.append({**row, **stream, "run": run, "attempt": 0, "segment": 0, "slot": slot, "ts": moment})
    return pa.Table.from_pylist(drawn, schema=arrow_schema(contract, segment=True))


def spool_of(spool, seed, count=12):
    """Put segments of drawn rows of every table that ranks record into a spool, for two ranks of each of some runs."""
    dice, streams = random.Random(seed), itertools.count(1)
    for run, rank, (table, contract) in itertools.product(RUNS, (0, 1), FACTS.items()):
        put_segment(spool, rows(contract, count, dice, run, rank=rank, incarnation=next(streams)), table, world_size=2)
