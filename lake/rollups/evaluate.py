"""Runs one rollup over registered tables; no table is opened or written here."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import conform
from ranklake.lake.rollups.pieces import WHOLE_RANGE, Range
from ranklake.lake.rollups.session import AFFECTED, replace_table

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup

_LONGEST: Final = 300


class RollupError(RanklakeError):
    """A rollup cannot be computed of what is there."""


def evaluate_day(
    ctx: "SessionContext", rollup: "Rollup", day: date, pieces: Sequence[Range] = (WHOLE_RANGE,), at_once: int = 1
) -> pa.Table:
    """Compute one date of a partition rollup, under its contract's Arrow schema; `evaluate_days` computes several.

    `pieces` are ranges of the rollup's column `cut`, of which so many are computed `at_once`. Raises
    `ContractMismatchError` if it does not give what the contract promises.
    """
    if rollup.in_a_row:
        return evaluate_days(ctx, rollup, day, day)
    values = _of_day(day)
    if not rollup.cut:
        return _evaluate(ctx, rollup, values)

    def piece(one: Range) -> pa.Table:
        return _evaluate(ctx, rollup, {**values, "first": pa.scalar(one[0]), "last": pa.scalar(one[1])})

    with ThreadPoolExecutor(at_once) as pool:
        return pa.concat_tables(pool.map(piece, pieces))


def evaluate_days(ctx: "SessionContext", rollup: "Rollup", first: date, last: date) -> pa.Table:
    """Compute dates of a partition rollup that takes several in a row; as `evaluate_day` does."""
    days = (last - first).days + 1
    return _evaluate(ctx, rollup, {**_of_day(first), "last": pa.scalar(last, pa.date32()), "days": pa.scalar(days)})


def _of_day(day: date) -> dict[str, Any]:
    begin = pa.scalar(datetime(day.year, day.month, day.day, tzinfo=UTC), pa.timestamp("us", tz="UTC"))
    return {"date": pa.scalar(day, pa.date32()), "begin": begin}


def evaluate_runs(ctx: "SessionContext", rollup: "Rollup", runs: dict[str, date]) -> pa.Table:
    """Compute whole runs of a run rollup; `runs` gives each run's output date. Raises as `evaluate_day`."""
    affected = pa.table({"run": pa.array(list(runs), pa.string()), "date": pa.array(list(runs.values()), pa.date32())})
    replace_table(ctx, AFFECTED, affected)
    return _evaluate(ctx, rollup, {})


def _evaluate(ctx: "SessionContext", rollup: "Rollup", values: dict[str, Any]) -> pa.Table:
    for name, make in rollup.lookups.items():
        if not ctx.table_exist(name):
            replace_table(ctx, name, make())
    try:
        found = rollup.transform.rows(ctx, rollup.inputs, {**rollup.parameters, **values})
    except RanklakeError:
        raise
    except Exception as error:  # DataFusion raises plain Exception, such as for a number that fits no type
        what = f"cannot be computed: {' '.join(str(error).split())[:_LONGEST]}"
        hint = "an input has a value that no job records: find it, and have a check of its contract take it out"
        raise RollupError(what, where=f"rollup {rollup.name} of {values.get('date', 'runs')}", hint=hint) from error
    return conform(found, rollup.contract)
