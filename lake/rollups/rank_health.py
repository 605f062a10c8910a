"""Compares ranks with their peers for `rank_health`; `rank_health.sql` has the grain, the formula and the verdict.

    rank_health.sql: own ─▶ rows ─┬─ in order of steps ─▶ Peers ─┐
                                  └─ in order of ranks ──────────┴─▶ compared ─▶ rank_health.sql: the verdict

Medians over a date need all of its rows, so new rows have the whole date computed again, each minute of a run. In SQL,
the join of each row with its step and the medians took 2 to 3 times the CPU time. Sums are of integers, so the order of
rows changes no digit. A row takes 34 bytes, and up to 18 more while rows are put in order; the rest is done in blocks.
"""

import inspect
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from numpy.lib.stride_tricks import sliding_window_view

from ranklake.lake.rollups.declaration import Query, SqlBody, replace_table

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

Values = npt.NDArray[Any]
Columns = dict[str, Values]

_SELF: Final = ("run", "attempt", "step", "self_ns", "has_collective")
_COMPARED: Final[Mapping[str, tuple[pa.DataType, Collection[str]]]] = {
    "run": (pa.string(), ("run",)),
    "attempt": (pa.int32(), ("attempt",)),
    "rank": (pa.int32(), ("rank",)),
    "ranks": (pa.int64(), ()),
    "steps": (pa.int64(), ()),
    "is_mixed": (pa.bool_(), ("has_collective",)),
    "has_collectives": (pa.bool_(), ("has_collective",)),
    "self_time_median_s": (pa.float64(), ("self_ns",)),
    "steps_compared": (pa.int64(), _SELF),
    "steps_slower": (pa.int64(), _SELF),
    "steps_slowest": (pa.int64(), _SELF),
    "excess_ratio": (pa.float64(), _SELF),
    "deviation": (pa.float64(), _SELF),
    "sum_excess_ns": (pa.int64(), _SELF),
    "sum_peer_ns": (pa.int64(), _SELF),
    "sum_data_excess_ns": (pa.int64(), (*_SELF, "data_ns")),
    "steps_beyond": (pa.int64(), (*_SELF, "rank")),
    "episodes": (pa.int64(), (*_SELF, "rank")),
    "burst_ratio": (pa.float64(), (*_SELF, "rank")),
    "burst_excess_ns": (pa.int64(), (*_SELF, "rank")),
    "burst_data_excess_ns": (pa.int64(), (*_SELF, "rank", "data_ns")),
}
"""Columns of the table `compared`, one row per rank: type, and the columns of `own` that it is computed from."""
_ROW: Final = {
    "attempt": np.int32,
    "rank": np.int32,
    "step": np.int64,
    "self_ns": np.int64,
    "data_ns": np.int64,
    "has_collective": np.int8,
    "day": np.int8,
}
"""Types of the columns of `own` in memory; `attempt` is a place in the list of attempts."""
_COUNT: Final = "SELECT count(*) FROM steps WHERE date BETWEEN $date - 1 AND $date + 1"
_PAIR: Final = 2
BLOCK_ROWS: Final = 1 << 17
"""Rows that are compared at once; more only if a rank has more."""
_MOST: Final = 9.2e18
"""Sums of integers beyond it are NULL, as those of ``exact_sum``."""


class RankHealth(SqlBody):
    """The body of the rollup ``rank_health``."""

    @property
    def source(self) -> str:
        """Text of the SQL file and of this module."""
        return f"{self.sql}\n{inspect.getsource(sys.modules[__name__])}"

    @property
    def queries(self) -> list[Query]:
        """Queries of the SQL file, with one for the table `compared` that only column lineage reads."""
        own, *verdict = super().queries
        columns = [f"{' || '.join(read) or 'count(*)'} AS {name}" for name, (_, read) in _COMPARED.items()]
        return [own, Query("python", "compared", f"SELECT {', '.join(columns)} FROM own"), *verdict]  # noqa: S608

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Compare the ranks, then run the queries of the verdict."""
        own, _, *verdict = self.queries
        count = ctx.sql(_COUNT, param_values={"date": values["date"]}).to_arrow_table()[0][0].as_py()
        stream = ctx.sql(own.text, param_values=dict(values)).execute_stream()
        replace_table(ctx, "compared", compare((batch.to_pyarrow() for batch in stream), count, values))
        result = self.run(ctx, verdict, values)
        ctx.deregister_table("compared")
        return result


class Peers(NamedTuple):
    """The steps, sorted by attempt and number, and what their ranks have in common.

    Attributes
    ----------
    step, ranks
        Number of the step, and number of ranks that recorded it.
    self_ns, max_self_ns
        Self time to compare with (of two ranks the sum, else the median), NaN if the step is not compared; the longest.
    data_ns, has_data
        Sum of the time spent waiting for input, and whether it fits into 64 bits.
    recorded
        Whether ranks recorded collectives: 0 none, 1 all, 2 some.
    """

    step: Values
    ranks: Values
    self_ns: Values
    max_self_ns: Values
    data_ns: Values
    has_data: Values
    recorded: Values


def compare(batches: Iterable[pa.RecordBatch], most_rows: int, values: Mapping[str, Any]) -> pa.Table:
    """Return one row per rank with steps on the date, with the columns `_COMPARED`.

    Parameters
    ----------
    batches
        Rows of the query `own`, in any order.
    most_rows
        Most rows that there may be.
    values
        Thresholds of the rollup.
    """
    schema = pa.schema([(name, kind) for name, (kind, _) in _COMPARED.items()])
    attempts, rows = _read(batches, most_rows)
    if not attempts:
        return schema.empty_table()
    peers, rows["place"], is_on_date = _peers(rows, int(values["warmup_steps"]))
    if not is_on_date.all():
        of_date = is_on_date[rows["place"]]
        rows = {name: column[of_date] for name, column in rows.items()}
    least = float(values["min_burst_ratio"]), float(values["burst_deviations"])
    blocks = [
        _compare_block({name: column[block] for name, column in rows.items()}, starts, peers, *least)
        for block, starts in _blocks(*_groups(rows["rank"], rows["attempt"]))
    ]
    if not blocks:
        return schema.empty_table()
    ranks, bursts = (_join_parts(parts) for parts in zip(*blocks, strict=True))
    ranks |= _bursts(ranks, bursts, *least, float(values["burst_gap_steps"]))
    names = np.array(attempts, object)[ranks["attempt"]]
    ranks |= {"run": names[:, 0], "attempt": names[:, 1]}
    return pa.table([pa.array(ranks[field.name], field.type, from_pandas=True) for field in schema], schema=schema)


def _read(batches: Iterable[pa.RecordBatch], most_rows: int) -> tuple[list[tuple[str, int]], Columns]:
    """Return the attempts (run, number), and the rows; their `attempt` is the place in this list."""
    places: dict[tuple[str, int], int] = {}
    rows: Columns = {name: np.empty(most_rows, kind) for name, kind in _ROW.items()}
    end = 0
    for batch in filter(len, batches):
        begin, end = end, end + len(batch)
        run, attempt = batch["run"], batch["attempt"]
        is_new = pc.or_(*(pc.not_equal(each[1:], each[:-1]) for each in (run, attempt)))
        starts = np.flatnonzero(np.append(True, is_new.to_numpy(zero_copy_only=False)))
        keys = [(run[place].as_py(), attempt[place].as_py()) for place in starts.tolist()]
        numbers = [places.setdefault(key, len(places)) for key in keys]
        rows["attempt"][begin:end] = np.repeat(numbers, _sizes(starts, len(batch)))
        for name in list(rows)[1:]:
            rows[name][begin:end] = batch[name].to_numpy()
    return list(places), {name: column[:end] for name, column in rows.items()}


def _peers(rows: Columns, warmup_steps: int) -> tuple[Peers, Values, Values]:
    """Return the peers of each step, the place of each row's step among them, and which steps the date has.

    Takes away the columns of rows that are not needed any more.
    """
    order, starts = _groups(rows["step"], rows["attempt"])
    ranks, firsts = _sizes(starts, len(order)), order[starts]
    place = np.empty(len(order), np.int32)
    parts, done = [], 0
    for block, begins in _blocks(order, starts):
        own, sizes = rows["self_ns"][block], _sizes(begins, len(block))
        place[block] = np.repeat(np.arange(done, done + len(begins), dtype=np.int32), sizes)
        done += len(begins)
        part = {
            "sum": np.add.reduceat(own, begins),
            "max": np.maximum.reduceat(own, begins),
            "median": _medians(own, sizes),
            "data": _sums(rows["data_ns"][block], sizes),
            "recorders": _sum_groups(rows["has_collective"][block], sizes),
            "day": np.minimum.reduceat(rows["day"][block], begins),
        }
        parts.append(part)
    steps = _join_parts(parts)
    data = np.ma.getdata(steps["data"]), ~np.ma.getmaskarray(steps["data"])
    step, attempt = rows.pop("step")[firsts], rows["attempt"][firsts]
    del rows["has_collective"], rows["day"]
    _, firsts = _groups(attempt)
    number = np.arange(len(starts)) - np.repeat(firsts, _sizes(firsts, len(starts)))
    recorded = np.where(steps["recorders"] == 0, 0, np.where(steps["recorders"] == ranks, 1, 2)).astype(np.int8)
    is_compared = (number >= warmup_steps) & (recorded <= 1) & (ranks > 1)
    peer = np.where(ranks == _PAIR, steps["sum"], steps["median"])
    peers = Peers(
        step,
        ranks,
        np.where(is_compared, peer, np.nan),
        steps["max"],
        *data,
        recorded,
    )
    return peers, place, steps["day"] == 1


def _blocks(order: Values, starts: Values) -> Iterator[tuple[Values, Values]]:
    """Yield blocks of whole groups from an order of rows, and where each group begins in the block."""
    _, firsts = np.unique(starts // BLOCK_ROWS, return_index=True)
    for first, last in pairwise([*firsts.tolist(), len(starts)]):
        begin, end = starts[first], starts[last] if last < len(starts) else None
        yield order[begin:end], starts[first:last] - begin


def _compare_block(
    rows: Columns, starts: Values, peers: Peers, min_burst_ratio: float, burst_deviations: float
) -> tuple[Columns, Columns]:
    """Return columns of some ranks, and the steps that are far beyond what is usual for the rank itself."""
    own, data, place = rows["self_ns"], rows["data_ns"], rows["place"]
    sizes, ranks = _sizes(starts, len(own)), peers.ranks[place]
    recorded = np.bitwise_or.reduceat(peers.recorded[place], starts)
    columns = {
        "attempt": rows["attempt"][starts],
        "rank": rows["rank"][starts],
        "ranks": np.maximum.reduceat(ranks, starts),
        "steps": sizes,
        "is_mixed": recorded >= 2,  # noqa: PLR2004 - some
        "has_collectives": recorded > 0,
        "self_time_median_s": _medians(own, sizes) / 1e9,
    }
    peer = peers.self_ns[place] - np.where(ranks == _PAIR, own, 0)
    is_compared = peer > 0
    counts = np.add.reduceat(is_compared, starts, dtype=np.int64)
    own, data, place, ranks, peer = (each[is_compared] for each in (own, data, place, ranks, peer))
    excess, excess_ns = own / peer - 1, _round(own - peer)
    data_excess_ns = _round(data - (peers.data_ns[place] - data) / (ranks - 1))
    has_data = peers.has_data[place]
    ratio = _medians(excess, counts)
    beyond = excess - np.repeat(ratio, counts)
    deviation = 1.4826 * _medians(np.abs(beyond), counts)
    columns |= {
        "steps_compared": counts,
        "steps_slower": _sum_groups(excess > 0, counts),
        "steps_slowest": _sum_groups(own == peers.max_self_ns[place], counts),
        "excess_ratio": ratio,
        "deviation": deviation,
        "sum_excess_ns": _sums(excess_ns, counts),
        "sum_peer_ns": _sums(_round(peer), counts),
        "sum_data_excess_ns": _sums(data_excess_ns, counts, has_data),
    }
    is_burst = beyond > np.repeat(np.fmax(min_burst_ratio, burst_deviations * deviation), counts)
    columns["bursts"] = _sum_groups(is_burst, counts)
    bursts = {"step": peers.step[place], "excess": beyond, "excess_ns": excess_ns, "data_excess_ns": data_excess_ns}
    return columns, {name: each[is_burst] for name, each in {**bursts, "has_data": has_data}.items()}


def _bursts(
    ranks: Columns, bursts: Columns, min_burst_ratio: float, burst_deviations: float, gap_steps: float
) -> Columns:
    """Return columns about the steps far beyond what is usual for the rank, and for the ranks of its attempt."""
    deviation, (_, attempts) = ranks["deviation"], _groups(ranks["attempt"])
    sizes, is_known = _sizes(attempts, len(deviation)), ~np.isnan(deviation)
    pooled = np.repeat(_medians(deviation[is_known], _sum_groups(is_known, sizes)), sizes)
    least = np.fmax(min_burst_ratio, burst_deviations * np.fmax(deviation, pooled))
    owner = np.repeat(np.arange(len(deviation)), ranks["bursts"])
    is_burst = bursts["excess"] > least[owner]
    order = np.flatnonzero(is_burst)
    order = order[_groups(bursts["step"][order], owner[order])[0]]
    owner, bursts = owner[order], {name: each[order] for name, each in bursts.items()}
    counts = np.bincount(owner, minlength=len(deviation))
    is_new = np.append(True, (np.diff(owner) > 0) | (np.diff(bursts["step"]) > gap_steps))[: len(owner)]
    return {
        "steps_beyond": np.ma.array(counts, mask=counts == 0),
        "episodes": np.ma.array(_sum_groups(is_new, counts), mask=counts == 0),
        "burst_ratio": _medians(bursts["excess"], counts),
        "burst_excess_ns": _sums(bursts["excess_ns"], counts),
        "burst_data_excess_ns": _sums(bursts["data_excess_ns"], counts, bursts["has_data"]),
    }


def _join_parts(parts: Sequence[Columns]) -> Columns:
    """Return columns in parts as whole columns; `numpy.concatenate` would lose masks."""
    modules = {name: np.ma if isinstance(column, np.ma.MaskedArray) else np for name, column in parts[0].items()}
    return {name: module.concatenate([part[name] for part in parts]) for name, module in modules.items()}


def _groups(*keys: Values) -> tuple[Values, Values]:
    """Return an order of rows in which those with equal keys are adjacent, and where each such group begins in it.

    The order is stable and by the last key first, like that of `numpy.lexsort`. It takes a fraction of the time, since
    NumPy sorts 16 bits by radix, and merges what is in order already, as the rows of a file are.

    >>> [each.tolist() for each in _groups(np.array([5, 5, 4]), np.array([0, 1, 0]))]
    [[2, 0, 1], [0, 1, 2]]
    """
    order, narrow = None, []
    for key in keys:
        low, high = (key.min(), key.max()) if len(key) else (0, 0)
        if low < high:
            kind = np.min_scalar_type(int(high) - int(low))
            narrow.append(np.subtract(key, low, dtype=kind, casting="unsafe"))  # modulo the range of the type
            by_key = np.argsort(narrow[-1] if order is None else narrow[-1][order], kind="stable")
            order = by_key if order is None else order[by_key]
    if order is None:
        order = np.arange(len(keys[0]))
    is_new = np.zeros(len(order), bool)
    is_new[:1] = True
    for key in narrow:
        in_order = key[order]
        is_new[1:] |= in_order[1:] != in_order[:-1]
    return order, np.flatnonzero(is_new)


def _sizes(starts: Values, rows: int) -> Values:
    return np.diff(starts, append=rows)


def _sum_groups(values: Values, sizes: Values, kind: type = np.int64) -> Values:
    """Return the sum of each group of adjacent values; 0 for a group without any."""
    result: Values = np.zeros(len(sizes), kind)
    full = sizes > 0
    if full.any():
        result[full] = np.add.reduceat(values, (np.cumsum(sizes) - sizes)[full], dtype=kind)
    return result


def _sums(values: Values, sizes: Values, is_known: Values | None = None) -> "np.ma.MaskedArray[Any, Any]":
    """Return the sum of each group of integers; masked if there is none, or if it does not fit into 64 bits.

    >>> _sums(np.array([3, 4, 2**62, 2**62]), np.array([2, 0, 2])).tolist()
    [7, None, None]
    """
    if is_known is not None:
        values = np.where(is_known, values, 0)
    counts = sizes if is_known is None else _sum_groups(is_known, sizes)
    is_too_big = np.abs(_sum_groups(values, sizes, np.float64)) >= _MOST
    return np.ma.array(_sum_groups(values, sizes), mask=(counts == 0) | is_too_big)


def _medians(values: Values, sizes: Values) -> Values:
    """Return the median of each group of adjacent values; NaN for a group without any.

    >>> _medians(np.array([3, 1, 5, 4, 2, 9]), np.array([3, 0, 2, 1])).tolist()
    [3.0, nan, 3.0, 9.0]
    """
    result, starts = np.full(len(sizes), np.nan), np.cumsum(sizes) - sizes
    for size in np.unique(sizes[sizes > 0]).tolist():  # groups of one size are rows of a matrix
        (groups,) = np.nonzero(sizes == size)
        for few in np.array_split(groups, -(-len(groups) * size // BLOCK_ROWS)):
            matrix = sliding_window_view(values, size)[starts[few]]
            matrix.partition(size // 2, axis=1)
            high = matrix[:, size // 2]
            low = high if size % 2 else matrix[:, : size // 2].max(axis=1)
            result[few] = (low + high) / 2
    return result


def _round(values: Values) -> Values:
    """Return times in ns, below 2**52, rounded half away from zero like SQL's ``round``."""
    return (values + np.copysign(0.5, values)).astype(np.int64)
