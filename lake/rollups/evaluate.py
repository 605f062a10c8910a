"""Runs one rollup over registered tables; no table is opened or written here."""

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import conform
from ranklake.lake.rollups.declaration import AFFECTED, SETTLED, replace_table

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup

PIECE_COST: Final = 8_000_000
"""What a piece may cost, in rows: a group weighs as much as `GROUP_COST` rows, since it has as many results."""
LEAST_COST: Final = 1_000_000
"""What a piece must cost to be computed beside others: below it, planning a query costs more than is saved."""
GROUP_COST: Final = 8
WHOLE_RANGE: Final = (-(2**63), 2**63 - 1)

AT_ONCE: Final = 4
"""Most pieces that are computed side by side, so that memory has a limit on machines of many cores."""

Range = tuple[int, int]
"""First and last value, both included."""


def ranges(live: pa.Table, column: str, cost: int = PIECE_COST, at_once: int = 1) -> list[Range]:
    """Return ranges of a column that cover all integers, in order, each with about as much to do.

    Parameters
    ----------
    live
        Files as `ranklake.lake.tables.live_files.files` returns them, with bounds of `column` and of ``rank``.
    cost
        How much a piece may cost.
    at_once
        How many are computed side by side: a date that is worth it gives each of them something to do.

    Rows are taken to lie evenly between a file's bounds, and each rank of it to have all of its groups. One range where
    bounds are missing: cutting is never needed for the result.
    """
    names = [f"min.{column}", f"max.{column}", "min.rank", "max.rank"]
    if not live.num_rows or not set(names) <= set(live.column_names) or any(live[name].null_count for name in names):
        return [WHOLE_RANGE]
    low, high, first, last = (live[name].to_numpy().astype(np.float64) for name in names)
    rows = live["num_records"].to_numpy()
    weights = rows * (1 + GROUP_COST / (last - first + 1))
    total = float(weights.sum())
    count = math.ceil(total / cost)
    if total >= at_once * LEAST_COST:
        count = math.ceil(count / at_once) * at_once
    if count <= 1:
        return [WHOLE_RANGE]
    density = weights / (high - low + 1)
    points = np.concatenate([low, high + 1])
    changes = np.concatenate([density, -density])
    order = np.argsort(points, kind="stable")
    points, changes = points[order], changes[order]
    done = np.concatenate([[0], np.cumsum(np.cumsum(changes)[:-1] * np.diff(points))])
    size = total / count
    cuts = size * np.arange(1, count)
    # a file that begins is the best place: what a cut goes through is read on both sides of it
    marks = np.interp(np.unique(low), points, done)
    nearest = marks[[np.abs(marks - cut).argmin() for cut in cuts]]
    cuts = np.where(np.abs(nearest - cuts) <= size / 3, nearest, cuts)
    places = sorted({round(float(place)) for place in np.interp(cuts, done, points)})
    places = [place for place in places if WHOLE_RANGE[0] < place <= WHOLE_RANGE[1]]
    begins = [WHOLE_RANGE[0], *places]
    return list(zip(begins, [*(begin - 1 for begin in places), WHOLE_RANGE[1]], strict=True))


_LONGEST: Final = 300


class RollupError(RanklakeError):
    """A rollup cannot be computed from its inputs."""


def evaluate_day(
    ctx: "SessionContext",
    rollup: "Rollup",
    day: date,
    pieces: Sequence[Range] = (WHOLE_RANGE,),
    at_once: int = 1,
    settled: Collection[tuple[str, int]] = (),
) -> pa.Table:
    """Compute one date of a partition rollup, under its contract's Arrow schema; `evaluate_days` computes several.

    `pieces` are ranges of the rollup's column `cut`, of which so many are computed `at_once`; `settled` are attempts
    (run, number) of which the session's tables have some groups alone. Raises `ContractMismatchError` if it does not
    give what the contract promises.
    """
    if rollup.in_a_row:
        return evaluate_days(ctx, rollup, day, day)
    values = _of_day(day)
    if not rollup.cut:
        return _evaluate(ctx, rollup, values)

    def piece(part: Range) -> pa.Table:
        return _evaluate(ctx, rollup, {**values, "first": pa.scalar(part[0]), "last": pa.scalar(part[1])})

    _register_lookups(ctx, rollup)  # once, before pieces that share the session
    runs, attempts = ([one[place] for one in settled] for place in (0, 1))
    settled_rows = {"run": pa.array(runs, pa.string()), "attempt": pa.array(attempts, pa.int32())}
    replace_table(ctx, SETTLED, pa.table(settled_rows))
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


def _register_lookups(ctx: "SessionContext", rollup: "Rollup") -> None:
    for name, make in rollup.lookups.items():
        if not ctx.table_exist(name):
            replace_table(ctx, name, make())


def _evaluate(ctx: "SessionContext", rollup: "Rollup", values: dict[str, Any]) -> pa.Table:
    _register_lookups(ctx, rollup)
    try:
        rows = rollup.transform.rows(ctx, {**rollup.parameters, **values})
    except RanklakeError:
        raise
    except Exception as error:  # DataFusion raises plain Exception, such as for a number that fits no type
        message = f"cannot be computed: {' '.join(str(error).split())[:_LONGEST]}"
        hint = "an input has a value that no job records: find it, and have a check of its contract take it out"
        raise RollupError(message, where=f"rollup {rollup.name} of {values.get('date', 'runs')}", hint=hint) from error
    return conform(rows, rollup.contract)
