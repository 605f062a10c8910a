"""Downsampling: which dates are due, by which rule, and the interval aggregates that replace their rows.

Rules with ``downsample`` are about whole tables. The most specific decides, of equals the one that waits longest. No
date is downsampled before every legal minimum has passed that can be about rows of its table, and none that a legal
hold can be about.

Rows of one date become interval aggregates: batch by batch, and added up at the end.

    batch ─▶ runs of rows of one series and interval ─▶ per column counts, extremes, exact sums, buckets   (`Fold.add`)
          ─▶ ... ─▶ one row per series, interval and column                                               (`Fold.rows`)

A series is what a contract's `series` tells apart. Neither the order of rows nor how they lie in files changes a
figure.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.cores import usable_cores
from ranklake.lake.contracts.arrow import arrow_schema, value_codes
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.tables.live_files import files, refuse_damaged
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_batches
from ranklake.lake.tables.tables import latest
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import rules_on
from ranklake.retention.plans.due import DuePartition, ages, of_day, planned_item
from ranklake.retention.plans.histograms import Counts, concatenate, count_values, histogram_columns, parts, round_sums
from ranklake.retention.policies.order import cutoff, more_specific
from ranklake.retention.proposals.retention_plans import DOWNSAMPLE, DOWNSAMPLED

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.policies.model import Rule


Indices = npt.NDArray[np.int64]

DAY_S: Final = 86_400
_OF_ALL: Final = ("run", "attempt", "rank")
"""Series columns that are columns of `DOWNSAMPLED`, with ``metric``; others stand in its ``series``."""
_LOW: Final = (1 << 32) - 1
_UNSORTED: Final = 4
"""With fewer rows than that to a run of equal ones, rows are sorted first."""


def value_columns(contract: "Contract") -> tuple[str, ...]:
    """Return the columns of a table that are aggregated: what it measures, and its step."""
    known = {*contract.series, *contract.grain, "date", "ts"}
    return tuple(
        column.name
        for column in contract.columns
        if column.is_number and column.type != "decimal" and column.class_ == "operational" and column.name not in known
        if column.unit != "none" or column.name == "step"
    )


@dataclass(slots=True)
class _Column:
    """Sums over batches of one column; groups are numbers of the fold."""

    is_whole: bool
    group: list[Indices] = field(default_factory=list)
    count: list[Indices] = field(default_factory=list)
    nan: list[Indices] = field(default_factory=list)
    infinite: list[Indices] = field(default_factory=list)
    zero: list[Indices] = field(default_factory=list)
    least: list[npt.NDArray[Any]] = field(default_factory=list)
    most: list[npt.NDArray[Any]] = field(default_factory=list)
    part_group: list[Indices] = field(default_factory=list)
    part: list[npt.NDArray[Any]] = field(default_factory=list)
    high: list[Indices] = field(default_factory=list)
    low: list[Indices] = field(default_factory=list)
    counts: list[Counts] = field(default_factory=list)


class Fold:
    """Aggregates of one date of a table.

    Parameters
    ----------
    interval_s
        Length of the intervals; they divide the day.
    plan
        Numbered plan that writes the aggregates.
    """

    def __init__(self, contract: "Contract", day: date, interval_s: int, plan: int) -> None:
        self.contract, self.day, self.interval_s, self.plan = contract, day, interval_s, plan
        self.series, self.values = contract.series, value_columns(contract)
        self.columns = tuple(dict.fromkeys([*self.series, "ts", *self.values]))
        self._begin_us = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
        self._intervals = DAY_S // interval_s
        self._known: dict[tuple[Any, ...], int] = {}
        self._groups: list[Indices] = []
        self._rows: list[Indices] = []
        types = {column.name: column.type for column in contract.columns}
        self._columns = {name: _Column(types[name].startswith("int")) for name in self.values}

    def add(self, batch: pa.Table) -> None:
        """Take in rows with `columns`, text with dictionaries."""
        if not batch.num_rows:
            return
        coded = [value_codes(batch[name]) for name in self.series]
        moments = batch["ts"].combine_chunks().cast(pa.int64()).to_numpy()
        codes = [one for one, _ in coded]
        codes.append((moments - self._begin_us) // (self.interval_s * 1_000_000))
        starts = _group_starts(codes)
        if len(starts) * _UNSORTED > batch.num_rows:
            order = np.lexsort(codes[::-1])
            batch = batch.take(pa.array(order))
            codes = [code[order] for code in codes]
            starts = _group_starts(codes)
        lengths = np.diff(np.append(starts, batch.num_rows))
        group = self._group([one[starts] for one in codes[:-1]], [words for _, words in coded]) * self._intervals
        group += codes[-1][starts]
        self._groups.append(group)
        self._rows.append(lengths)
        run_of: Indices | None = None
        for name, column in self._columns.items():
            values = batch[name]
            if values.null_count == batch.num_rows:
                continue
            if values.null_count or run_of is None:
                run_of = np.repeat(np.arange(len(starts), dtype=np.int64), lengths) if run_of is None else run_of
            _take_in(column, values, run_of, starts, group)

    def rows(self) -> pa.Table:
        """Return the rows of `DOWNSAMPLED`: of each series and interval one that counts rows, and one a column."""
        schema = arrow_schema(packaged(DOWNSAMPLED))
        groups = np.unique(np.concatenate([np.zeros(0, np.int64), *self._groups]))
        if not len(groups):
            return schema.empty_table()
        rows = _sum_by_group(groups, self._groups, self._rows)
        tables = [self._table(schema, groups, {"rows": pa.array(rows)})]
        for name, column in self._columns.items():
            if column.group:
                tables.append(self._of_column(schema, name, column, groups, rows))
        return pa.concat_tables(tables)

    def _group(self, codes: Sequence[Indices], words: Sequence[list[Any]]) -> Indices:
        """Return the number of the series of each run of rows."""
        starts = _group_starts(codes)
        numbers = []
        for at in starts.tolist():
            key = tuple(known[int(one[at])] for one, known in zip(codes, words, strict=True))
            numbers.append(self._known.setdefault(key, len(self._known)))
        return np.repeat(np.array(numbers, np.int64), np.diff(np.append(starts, len(codes[0]))))

    def _of_column(self, schema: pa.Schema, name: str, column: _Column, groups: Indices, rows: Indices) -> pa.Table:
        mine = np.unique(np.concatenate(column.group))
        place, size = np.concatenate([np.searchsorted(mine, one) for one in column.group]), len(mine)
        count, nan, infinite, zero = (
            _sums_by_place(place, some, size) for some in (column.count, column.nan, column.infinite, column.zero)
        )
        every = rows[np.searchsorted(groups, mine)]
        facts = {
            "count": pa.array(count),
            "null_count": pa.array(every - count - nan - infinite),
            "nan_count": pa.array(nan),
            "infinite_count": pa.array(infinite),
            "zero_count": pa.array(zero),
        }
        none = count == 0
        kind = np.int64 if column.is_whole else np.float64
        info = np.iinfo(np.int64) if column.is_whole else np.finfo(np.float64)
        least, most = np.full(size, info.max, kind), np.full(size, info.min, kind)
        np.minimum.at(least, place, np.concatenate(column.least))
        np.maximum.at(most, place, np.concatenate(column.most))
        if column.is_whole:
            high, low = (
                _sums_by_place(place, column.high, size).tolist(),
                _sums_by_place(place, column.low, size).tolist(),
            )
            sums = [(one << 32) + other for one, other in zip(high, low, strict=True)]
            facts["sum_whole"] = pa.array(sums, pa.decimal128(38, 0)).cast(pa.decimal128(38, 9))
            facts |= {"min_whole": pa.array(least, mask=none), "max_whole": pa.array(most, mask=none)}
            total = np.array([float(whole) for whole in sums])
        else:
            of = np.concatenate([np.zeros(0, np.int64), *column.part_group])
            total = round_sums(np.searchsorted(mine, of), np.concatenate([np.zeros(0), *column.part]), size)
        facts["sum"] = pa.array(total, mask=none | np.isnan(total))
        facts |= {
            "min": pa.array(least.astype(np.float64), mask=none),
            "max": pa.array(most.astype(np.float64), mask=none),
        }
        counts = concatenate(column.counts)
        facts |= histogram_columns(
            Counts(np.searchsorted(mine, counts.group), counts.negative, counts.bucket, counts.count), size
        )
        return self._table(schema, mine, {**facts, "column": pa.repeat(pa.scalar(name), size)})

    def _table(self, schema: pa.Schema, groups: Indices, facts: dict[str, pa.Array]) -> pa.Table:
        keys = list(self._known)
        series = groups // self._intervals
        moments = self._begin_us + groups % self._intervals * self.interval_s * 1_000_000
        columns: dict[str, pa.Array] = {
            "plan": pa.repeat(pa.scalar(self.plan, pa.int64()), len(groups)),
            "table": pa.repeat(pa.scalar(self.contract.table), len(groups)),
            "interval_ns": pa.repeat(pa.scalar(self.interval_s * 1_000_000_000, pa.int64()), len(groups)),
            "ts": pa.array(moments).cast(pa.timestamp("us")).cast(schema.field("ts").type),
            "date": pa.repeat(pa.scalar(self.day, pa.date32()), len(groups)),
        }
        own = [name for name in self.series if name not in {*_OF_ALL, "metric"}]
        for name in (*_OF_ALL, "metric"):
            if name in self.series:
                words = pa.array([key[self.series.index(name)] for key in keys], schema.field(name).type)
                columns[name] = words.take(pa.array(series))
        if own:
            places = [self.series.index(name) for name in own]
            words = pa.array([_text(own, [key[place] for place in places]) for key in keys], pa.string())
            columns["series"] = words.take(pa.array(series))
        columns |= facts
        arrays = [
            columns[one.name].cast(one.type) if one.name in columns else pa.nulls(len(groups), one.type)
            for one in schema
        ]
        return pa.table(arrays, schema=schema)


def _text(names: Sequence[str], values: Sequence[Any]) -> str | None:
    values_by_name = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return json.dumps(values_by_name, sort_keys=True) if values_by_name else None


def _group_starts(codes: Sequence[Indices]) -> Indices:
    """Return where rows differ from the one before in any of some numbers."""
    new = np.ones(len(codes[0]), bool)
    new[1:] = codes[0][1:] != codes[0][:-1]
    for code in codes[1:]:
        new[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(new)


def _take_in(column: _Column, values: pa.ChunkedArray, run_of: Indices, starts: Indices, group: Indices) -> None:
    """Take in a column of a batch, of which row i is of run ``run_of[i]``, and run r of group ``group[r]``."""
    runs = run_of
    if values.null_count:
        runs = run_of[pc.is_valid(values).combine_chunks().to_numpy(zero_copy_only=False)]
        values = values.drop_null()
    numbers = values.combine_chunks().to_numpy().astype(np.int64 if column.is_whole else np.float64)
    whole_size = len(starts)
    nan = infinite = np.zeros(whole_size, np.int64)
    if not column.is_whole and not (finite := np.isfinite(numbers)).all():
        nan = np.bincount(runs[np.isnan(numbers)], minlength=whole_size)
        infinite = np.bincount(runs[np.isinf(numbers)], minlength=whole_size)
        numbers, runs = numbers[finite], runs[finite]
    begins = starts if len(numbers) == len(run_of) else _group_starts([runs]) if len(runs) else np.zeros(0, np.int64)
    mine = runs[begins]
    ends = np.append(begins[1:], len(numbers)) if len(begins) else begins
    zero = np.bincount(runs[numbers == 0], minlength=whole_size) if len(runs) else np.zeros(whole_size, np.int64)
    unusual = np.union1d(mine, np.flatnonzero(nan + infinite))
    count = np.zeros(whole_size, np.int64)
    count[mine] = ends - begins
    kind = np.int64 if column.is_whole else np.float64
    info = np.iinfo(np.int64) if column.is_whole else np.finfo(np.float64)
    least, most = np.full(whole_size, info.max, kind), np.full(whole_size, info.min, kind)
    column.group.append(group[unusual])
    for counts, added in ((column.count, count), (column.nan, nan), (column.infinite, infinite), (column.zero, zero)):
        counts.append(added[unusual])
    if len(begins):
        least[mine] = np.minimum.reduceat(numbers, begins)
        most[mine] = np.maximum.reduceat(numbers, begins)
        column.counts.append(_in_groups(count_values(runs, numbers.astype(np.float64), whole_size), group))
    column.least.append(least[unusual])
    column.most.append(most[unusual])
    if column.is_whole:
        high, low = np.zeros(whole_size, np.int64), np.zeros(whole_size, np.int64)
        if len(begins):
            high[mine] = np.add.reduceat(numbers >> 32, begins)
            low[mine] = np.add.reduceat(numbers & _LOW, begins)
        column.high.append(high[unusual])
        column.low.append(low[unusual])
    elif len(begins):
        place, sums = parts(numbers, begins)
        column.part_group.append(group[mine[place]])
        column.part.append(sums)


def _in_groups(counts: Counts, group: Indices) -> Counts:
    return Counts(group[counts.group], counts.negative, counts.bucket, counts.count)


def _sum_by_group(groups: Indices, places: Sequence[Indices], numbers: Sequence[Indices]) -> Indices:
    return _sums_by_place(np.concatenate([np.searchsorted(groups, one) for one in places]), numbers, len(groups))


def _sums_by_place(place: Indices, counts: Sequence[Indices], size: int) -> Indices:
    """Return sums of whole numbers by place."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, place, np.concatenate(counts))
    return sums


_BATCH_ROWS: Final = 1 << 20


def downsampling_rule(contract: "Contract", rules: Sequence["Rule"]) -> tuple["Rule | None", int]:
    """Return which rule downsamples a table, and after how many days; None where none does."""
    mine = [one for one in rules if one.may_match(contract)]
    winner: Rule | None = None
    for matching_rule in mine:
        if DOWNSAMPLE not in matching_rule.action_days or not contract.series:
            continue
        if winner is None or more_specific(matching_rule, winner):
            winner = matching_rule
        elif not more_specific(winner, matching_rule):
            winner = max(winner, matching_rule, key=lambda rule: (rule.action_days[DOWNSAMPLE], rule.name))
    if winner is None:
        return None, 0
    return winner, max([winner.action_days[DOWNSAMPLE], *(one.minimum_days or 0 for one in mine)])


def due_partitions(
    tables: "Tables",
    contract: "Contract",
    rules: Sequence["Rule"],
    holds: Sequence[Hold],
    as_of: date,
    skip: Collection[date],
) -> Iterator[DuePartition]:
    """Yield the partitions of a table that are due to be downsampled, except for some dates."""
    rule, period_days = downsampling_rule(contract, rules)
    handle = latest(tables, contract.table) if rule is not None else None
    until = cutoff(period_days, as_of)
    if rule is None or handle is None or until is None:
        return
    assert rule.interval_s is not None
    live = files(handle)
    for day, age in sorted(ages(live).items()):
        if day in skip or not age < until:
            continue
        if any(one.may_match(contract) for one in rules_on(holds, day)):
            continue
        partition = of_day(live, day)
        item = planned_item(
            contract,
            day,
            partition,
            as_of,
            period_days,
            reason=rule.reason,
            rule=rule.name,
            action=DOWNSAMPLE,
            interval_s=rule.interval_s,
        )
        yield DuePartition(
            item, partition, partition, aggregates=_aggregates(tables, contract, partition, day, rule.interval_s)
        )


def _aggregates(
    tables: "Tables", contract: "Contract", partition: pa.Table, day: date, interval_s: int
) -> Callable[[int], pa.Table]:
    def of(number: int) -> pa.Table:
        fold = Fold(contract, day, interval_s, number)
        for row in partition.select(["path", "date", "size_bytes", "num_records"]).to_pylist():
            refuse_damaged(tables, contract.table, [row])
        for batch in read_batches(
            tables.store, contract, partition, fold.columns, batch_rows=_BATCH_ROWS, dictionaries=True
        ):
            fold.add(batch)
        return fold.rows()

    return of


MOST_AT_ONCE: Final = 4


def write_aggregates(
    lake: "Lake", partitions: "Sequence[DuePartition]", number: int, at_once: int | None = None
) -> "list[list[DataFile]]":
    """Write what partitions become, and commit nothing; return the files of each, in their order.

    Parameters
    ----------
    number
        The plan that takes their rows.
    at_once
        Dates at a time; default one a core, at most `MOST_AT_ONCE`.

    Raises what reading and writing raise, for the first that fails; dates that were not begun are not begun then.
    """
    target = lake.contract(DOWNSAMPLED)

    def written(partition: "DuePartition") -> "list[DataFile]":
        assert partition.aggregates is not None
        return append_files(lake.store, target, partition.aggregates(number), number)

    with ThreadPoolExecutor(at_once or min(MOST_AT_ONCE, usable_cores())) as pool:
        waiting = [pool.submit(written, one) for one in partitions]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
