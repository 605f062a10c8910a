"""Computes one rollup from registered tables. It does not open or write tables."""

import math
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.arrow import arrow_schema, conform
from ranklake.lake.rollups.declaration import AFFECTED, EARLIER, SETTLED, replace_table
from ranklake.lake.rollups.inputs import begin_of

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext
    from ranklake.lake.rollups.declaration import Rollup

PIECE_COST: Final = 8_000_000
"""Most cost of a piece, in rows. Each group costs as much as `GROUP_COST` rows, for its results."""
LEAST_COST: Final = 1_000_000
"""Least cost of a piece that is computed in parallel. For smaller pieces, planning takes longer than is saved."""
GROUP_COST: Final = 8
WHOLE_RANGE: Final = (-(2**63), 2**63 - 1)

AT_ONCE: Final = 4
"""Most pieces that are computed in parallel, which limits memory on machines with many cores."""

Range = tuple[int, int]
"""First and last value, both included."""


def ranges(live: pa.Table, column: str, cost: int = PIECE_COST, at_once: int = 1) -> list[Range]:
    """Return ranges of a column that cover all integers, in order, with about equal cost.

    The cost is estimated: rows are assumed to be evenly distributed between a file's bounds, and each rank to have all
    groups. Without bounds, there is one range. The result of a rollup does not depend on the ranges.

    Parameters
    ----------
    live
        Files as `ranklake.lake.tables.live_files.files` returns them, with bounds of `column` and of ``rank``.
    cost
        Most cost of a range.
    at_once
        Number of ranges that are computed in parallel. A date with enough rows gets a multiple of it.
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
    # the begin of a file is the best place for a cut, since a file with a cut inside is read twice
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
    since: datetime | None = None,
    earlier: pa.Table | None = None,
) -> pa.Table:
    """Compute one date of a partition rollup, with its contract's Arrow schema.

    Parameters
    ----------
    pieces
        Ranges of the rollup's column `cut`.
    at_once
        Number of pieces that are computed in parallel.
    settled
        Attempts (run, number) of which the session's tables have only some groups.
    since
        First hour or minute to compute, for a rollup with `Rollup.lookback_s`; by default the date's first.
    earlier
        Stored rows of the time before it, with the columns `Rollup.earlier`.

    Raises `RollupError`, and `ContractMismatchError` if the result does not match the contract.
    """
    if rollup.in_a_row:
        return evaluate_days(ctx, rollup, day, day)
    values = _of_day(day, since)
    if rollup.earlier:
        none = arrow_schema(rollup.contract).empty_table().select(rollup.earlier)
        replace_table(ctx, EARLIER, none if earlier is None else earlier)
    if not rollup.cut:
        return _evaluate(ctx, rollup, values)

    def piece(part: Range) -> pa.Table:
        return _evaluate(ctx, rollup, {**values, "first": pa.scalar(part[0]), "last": pa.scalar(part[1])})

    _register_lookups(ctx, rollup)  # once, since the pieces share the session
    runs, attempts = ([one[place] for one in settled] for place in (0, 1))
    settled_rows = {"run": pa.array(runs, pa.string()), "attempt": pa.array(attempts, pa.int32())}
    replace_table(ctx, SETTLED, pa.table(settled_rows))
    with ThreadPoolExecutor(at_once) as pool:
        return pa.concat_tables(pool.map(piece, pieces))


def evaluate_days(ctx: "SessionContext", rollup: "Rollup", first: date, last: date) -> pa.Table:
    """Compute several consecutive dates of a partition rollup with `in_a_row`; see `evaluate_day`."""
    days = (last - first).days + 1
    return _evaluate(ctx, rollup, {**_of_day(first), "last": pa.scalar(last, pa.date32()), "days": pa.scalar(days)})


def _of_day(day: date, since: datetime | None = None) -> dict[str, Any]:
    begin = begin_of(day)
    moments = {"begin": begin, "since": since or begin}
    kind = pa.timestamp("us", tz="UTC")
    return {"date": pa.scalar(day, pa.date32()), **{name: pa.scalar(at, kind) for name, at in moments.items()}}


def evaluate_runs(ctx: "SessionContext", rollup: "Rollup", runs: dict[str, date]) -> pa.Table:
    """Compute whole runs of a run rollup. `runs` are their output dates, by run. Raises as `evaluate_day`."""
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
    except Exception as error:  # DataFusion raises Exception, for example for a number that is too large
        message = f"cannot be computed: {' '.join(str(error).split())[:_LONGEST]}"
        hint = "an input has a value that no job records: find it, and have a check of its contract take it out"
        raise RollupError(message, where=f"rollup {rollup.name} of {values.get('date', 'runs')}", hint=hint) from error
    return conform(rows, rollup.contract)
