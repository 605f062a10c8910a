"""Downsampling: finds the dates that are due, and computes the interval aggregates that replace their rows.

Rules with ``downsample`` apply to whole tables. The most specific rule decides; of equally specific rules, the one with
the longest time. Every legal minimum that can apply to rows of the table delays downsampling. Every legal hold that can
apply to them prevents it.

Rows of one date are aggregated batch by batch, and the batches are added up at the end:

    batch ─▶ stretches of rows of one series and interval ─▶ counts, extremes, sums, buckets by column (`Fold.add`)
          ─▶ ... ─▶ one row per series, interval and column                                           (`Fold.rows`)

Rows with the same values in the columns `series` of a contract are a series. The result does not depend on the order of
the rows or on their files.
"""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
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
from ranklake.retention.plans.histograms import (
    Counts,
    concatenate,
    count_values,
    exact_sum_parts,
    histogram_columns,
    round_sums,
)
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
"""Series columns that are columns of `DOWNSAMPLED`, as ``metric`` is. Its column ``series`` has the others as JSON."""
_LOW: Final = (1 << 32) - 1
_SHORT_STRETCH: Final = 4
"""If stretches of equal rows are shorter than this on average, the batch is sorted first."""


def value_columns(contract: "Contract") -> tuple[str, ...]:
    """Return the columns of a table that are aggregated: operational numbers with a unit, and the step."""
    keys = {*contract.series, *contract.grain, "date", "ts"}
    return tuple(
        column.name
        for column in contract.columns
        if column.is_number and column.type != "decimal" and column.class_ == "operational" and column.name not in keys
        if column.unit != "none" or column.name == "step"
    )


@dataclass(slots=True)
class _Column:
    """Results of all batches for one column, one array per batch. `group` numbers a series and interval of the fold."""

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
    """Computes the aggregates of one date of a table.

    Parameters
    ----------
    interval_s
        Length of the intervals; a day is a multiple of it.
    plan
        Number of the plan that writes the aggregates.
    """

    def __init__(self, contract: "Contract", day: date, interval_s: int, plan: int) -> None:
        self.contract, self.day, self.interval_s, self.plan = contract, day, interval_s, plan
        self.series, self.values = contract.series, value_columns(contract)
        self.columns = tuple(dict.fromkeys([*self.series, "ts", *self.values]))
        self._begin_us = int(datetime(day.year, day.month, day.day, tzinfo=UTC).timestamp()) * 1_000_000
        self._intervals = DAY_S // interval_s
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._groups: list[Indices] = []
        self._rows: list[Indices] = []
        types = {column.name: column.type for column in contract.columns}
        self._columns = {name: _Column(types[name].startswith("int")) for name in self.values}

    def add(self, batch: pa.Table) -> None:
        """Add rows with the columns `columns`; text columns are dictionary encoded."""
        if not batch.num_rows:
            return
        coded = [value_codes(batch[name]) for name in self.series]
        moments = batch["ts"].combine_chunks().cast(pa.int64()).to_numpy()
        codes = [code for code, _ in coded]
        codes.append((moments - self._begin_us) // (self.interval_s * 1_000_000))
        starts = _group_starts(codes)
        if len(starts) * _SHORT_STRETCH > batch.num_rows:
            order = np.lexsort(codes[::-1])
            batch = batch.take(pa.array(order))
            codes = [code[order] for code in codes]
            starts = _group_starts(codes)
        lengths = np.diff(np.append(starts, batch.num_rows))
        series = self._series_numbers([code[starts] for code in codes[:-1]], [words for _, words in coded])
        group = series * self._intervals + codes[-1][starts]
        self._groups.append(group)
        self._rows.append(lengths)
        stretch_of: Indices | None = None
        for name, column in self._columns.items():
            values = batch[name]
            if values.null_count == batch.num_rows:
                continue
            if stretch_of is None:
                stretch_of = np.repeat(np.arange(len(starts), dtype=np.int64), lengths)
            _add_values(column, values, stretch_of, starts, group)

    def rows(self) -> pa.Table:
        """Return rows of `DOWNSAMPLED`: for each series and interval one with the row count, and one per column."""
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

    def _series_numbers(self, codes: Sequence[Indices], words: Sequence[list[Any]]) -> Indices:
        """Return the number of the series of each stretch of rows."""
        starts = _group_starts(codes)
        numbers = []
        for start in starts.tolist():
            key = tuple(column_words[int(code[start])] for code, column_words in zip(codes, words, strict=True))
            numbers.append(self._numbers.setdefault(key, len(self._numbers)))
        return np.repeat(np.array(numbers, np.int64), np.diff(np.append(starts, len(codes[0]))))

    def _of_column(self, schema: pa.Schema, name: str, column: _Column, groups: Indices, rows: Indices) -> pa.Table:
        column_groups = np.unique(np.concatenate(column.group))
        index = np.concatenate([np.searchsorted(column_groups, group) for group in column.group])
        size = len(column_groups)
        count, nan, infinite, zero = (
            _sums_by_index(index, counts, size) for counts in (column.count, column.nan, column.infinite, column.zero)
        )
        facts = {
            "count": pa.array(count),
            "null_count": pa.array(rows[np.searchsorted(groups, column_groups)] - count - nan - infinite),
            "nan_count": pa.array(nan),
            "infinite_count": pa.array(infinite),
            "zero_count": pa.array(zero),
        }
        is_empty = count == 0
        kind = np.int64 if column.is_whole else np.float64
        info = np.iinfo(np.int64) if column.is_whole else np.finfo(np.float64)
        least, most = np.full(size, info.max, kind), np.full(size, info.min, kind)
        np.minimum.at(least, index, np.concatenate(column.least))
        np.maximum.at(most, index, np.concatenate(column.most))
        if column.is_whole:
            high, low = (_sums_by_index(index, halves, size).tolist() for halves in (column.high, column.low))
            sums = [(high_half << 32) + low_half for high_half, low_half in zip(high, low, strict=True)]
            facts["sum_whole"] = pa.array(sums, pa.decimal128(38, 0)).cast(pa.decimal128(38, 9))
            facts |= {"min_whole": pa.array(least, mask=is_empty), "max_whole": pa.array(most, mask=is_empty)}
            total = np.array([float(whole) for whole in sums])
        else:
            part_groups = np.concatenate([np.zeros(0, np.int64), *column.part_group])
            sum_parts = np.concatenate([np.zeros(0), *column.part])
            total = round_sums(np.searchsorted(column_groups, part_groups), sum_parts, size)
        facts["sum"] = pa.array(total, mask=is_empty | np.isnan(total))
        facts |= {
            "min": pa.array(least.astype(np.float64), mask=is_empty),
            "max": pa.array(most.astype(np.float64), mask=is_empty),
        }
        counts = concatenate(column.counts)
        counts_by_index = replace(counts, group=np.searchsorted(column_groups, counts.group))
        facts |= histogram_columns(counts_by_index, size)
        return self._table(schema, column_groups, {**facts, "column": pa.repeat(pa.scalar(name), size)})

    def _table(self, schema: pa.Schema, groups: Indices, facts: dict[str, pa.Array]) -> pa.Table:
        keys = list(self._numbers)
        series = groups // self._intervals
        moments = self._begin_us + groups % self._intervals * self.interval_s * 1_000_000
        columns: dict[str, pa.Array] = {
            "plan": pa.repeat(pa.scalar(self.plan, pa.int64()), len(groups)),
            "table": pa.repeat(pa.scalar(self.contract.table), len(groups)),
            "interval_ns": pa.repeat(pa.scalar(self.interval_s * 1_000_000_000, pa.int64()), len(groups)),
            "ts": pa.array(moments).cast(pa.timestamp("us")).cast(schema.field("ts").type),
            "date": pa.repeat(pa.scalar(self.day, pa.date32()), len(groups)),
        }
        json_columns = [name for name in self.series if name not in {*_OF_ALL, "metric"}]
        for name in (*_OF_ALL, "metric"):
            if name in self.series:
                words = pa.array([key[self.series.index(name)] for key in keys], schema.field(name).type)
                columns[name] = words.take(pa.array(series))
        if json_columns:
            indices = [self.series.index(name) for name in json_columns]
            words = pa.array([_json(json_columns, [key[index] for index in indices]) for key in keys], pa.string())
            columns["series"] = words.take(pa.array(series))
        columns |= facts
        arrays = [
            columns[field.name].cast(field.type) if field.name in columns else pa.nulls(len(groups), field.type)
            for field in schema
        ]
        return pa.table(arrays, schema=schema)


def _json(names: Sequence[str], values: Sequence[Any]) -> str | None:
    values_by_name = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return json.dumps(values_by_name, sort_keys=True) if values_by_name else None


def _group_starts(codes: Sequence[Indices]) -> Indices:
    """Return the indices of rows that differ from the row before in any of the code arrays."""
    is_start = np.ones(len(codes[0]), bool)
    is_start[1:] = codes[0][1:] != codes[0][:-1]
    for code in codes[1:]:
        is_start[1:] |= code[1:] != code[:-1]
    return np.flatnonzero(is_start)


def _add_values(column: _Column, values: pa.ChunkedArray, stretch_of: Indices, starts: Indices, group: Indices) -> None:
    """Add the values of one column of a batch.

    Row i is in stretch ``stretch_of[i]``; stretch s begins at row ``starts[s]`` and is of group ``group[s]``.
    """
    stretches = stretch_of
    if values.null_count:
        stretches = stretch_of[pc.is_valid(values).combine_chunks().to_numpy(zero_copy_only=False)]
        values = values.drop_null()
    numbers = values.combine_chunks().to_numpy().astype(np.int64 if column.is_whole else np.float64)
    size = len(starts)
    nan = infinite = np.zeros(size, np.int64)
    if not column.is_whole and not (finite := np.isfinite(numbers)).all():
        nan = np.bincount(stretches[np.isnan(numbers)], minlength=size)
        infinite = np.bincount(stretches[np.isinf(numbers)], minlength=size)
        numbers, stretches = numbers[finite], stretches[finite]
    if len(numbers) == len(stretch_of):
        begins = starts
    else:
        begins = _group_starts([stretches]) if len(stretches) else np.zeros(0, np.int64)
    finite_stretches = stretches[begins]
    ends = np.append(begins[1:], len(numbers)) if len(begins) else begins
    zero = np.bincount(stretches[numbers == 0], minlength=size) if len(stretches) else np.zeros(size, np.int64)
    present = np.union1d(finite_stretches, np.flatnonzero(nan + infinite))
    count = np.zeros(size, np.int64)
    count[finite_stretches] = ends - begins
    kind = np.int64 if column.is_whole else np.float64
    info = np.iinfo(np.int64) if column.is_whole else np.finfo(np.float64)
    least, most = np.full(size, info.max, kind), np.full(size, info.min, kind)
    column.group.append(group[present])
    for counts, added in ((column.count, count), (column.nan, nan), (column.infinite, infinite), (column.zero, zero)):
        counts.append(added[present])
    if len(begins):
        least[finite_stretches] = np.minimum.reduceat(numbers, begins)
        most[finite_stretches] = np.maximum.reduceat(numbers, begins)
        by_stretch = count_values(stretches, numbers.astype(np.float64), size)
        column.counts.append(replace(by_stretch, group=group[by_stretch.group]))
    column.least.append(least[present])
    column.most.append(most[present])
    if column.is_whole:
        high, low = np.zeros(size, np.int64), np.zeros(size, np.int64)
        if len(begins):
            high[finite_stretches] = np.add.reduceat(numbers >> 32, begins)
            low[finite_stretches] = np.add.reduceat(numbers & _LOW, begins)
        column.high.append(high[present])
        column.low.append(low[present])
    elif len(begins):
        index, sums = exact_sum_parts(numbers, begins)
        column.part_group.append(group[finite_stretches[index]])
        column.part.append(sums)


def _sum_by_group(groups: Indices, batch_groups: Sequence[Indices], numbers: Sequence[Indices]) -> Indices:
    """Return the sum of the numbers of each group; `groups` is sorted, and the other arguments are by batch."""
    index = np.concatenate([np.searchsorted(groups, batch) for batch in batch_groups])
    return _sums_by_index(index, numbers, len(groups))


def _sums_by_index(index: Indices, counts: Sequence[Indices], size: int) -> Indices:
    """Return the sums of integers by index, from 0 to below `size`."""
    sums = np.zeros(size, np.int64)
    np.add.at(sums, index, np.concatenate(counts))
    return sums


_BATCH_ROWS: Final = 1 << 20


def downsampling_rule(contract: "Contract", rules: Sequence["Rule"]) -> tuple["Rule | None", int]:
    """Return the rule that downsamples a table, and after how many days; None if no rule does."""
    matching = [rule for rule in rules if rule.may_match(contract)]
    winner: Rule | None = None
    for candidate in matching:
        if DOWNSAMPLE not in candidate.action_days or not contract.series:
            continue
        if winner is None or more_specific(candidate, winner):
            winner = candidate
        elif not more_specific(winner, candidate):
            winner = max(winner, candidate, key=lambda rule: (rule.action_days[DOWNSAMPLE], rule.name))
    if winner is None:
        return None, 0
    return winner, max([winner.action_days[DOWNSAMPLE], *(rule.minimum_days or 0 for rule in matching)])


def due_partitions(
    tables: "Tables",
    contract: "Contract",
    rules: Sequence["Rule"],
    holds: Sequence[Hold],
    as_of: date,
    skip: Collection[date],
) -> Iterator[DuePartition]:
    """Yield the partitions of a table that are due to be downsampled, except for the dates to skip."""
    rule, period_days = downsampling_rule(contract, rules)
    handle = latest(tables, contract.table) if rule is not None else None
    limit = cutoff(period_days, as_of)
    if rule is None or handle is None or limit is None:
        return
    assert rule.interval_s is not None
    live = files(handle)
    for day, age in sorted(ages(live).items()):
        if day in skip or not age < limit:
            continue
        if any(hold_rule.may_match(contract) for hold_rule in rules_on(holds, day)):
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
    """Return a function that takes the number of a plan and returns the aggregates of a partition."""

    def aggregate(number: int) -> pa.Table:
        fold = Fold(contract, day, interval_s, number)
        for row in partition.select(["path", "date", "size_bytes", "num_records"]).to_pylist():
            refuse_damaged(tables, contract.table, [row])
        for batch in read_batches(
            tables.store, contract, partition, fold.columns, batch_rows=_BATCH_ROWS, dictionaries=True
        ):
            fold.add(batch)
        return fold.rows()

    return aggregate


MOST_AT_ONCE: Final = 4


def write_aggregates(
    lake: "Lake", partitions: "Sequence[DuePartition]", number: int, at_once: int | None = None
) -> "list[list[DataFile]]":
    """Write the aggregates of partitions without a commit; return the files of each partition, in their order.

    Parameters
    ----------
    number
        The plan that replaces the rows.
    at_once
        Number of dates in parallel; default one per core, at most `MOST_AT_ONCE`.

    Raises the first error of reading or writing. Dates that are not started by then are not started.
    """
    target = lake.contract(DOWNSAMPLED)

    def write(partition: "DuePartition") -> "list[DataFile]":
        assert partition.aggregates is not None
        return append_files(lake.store, target, partition.aggregates(number), number)

    with ThreadPoolExecutor(at_once or min(MOST_AT_ONCE, usable_cores())) as pool:
        futures = [pool.submit(write, partition) for partition in partitions]
        try:
            return [future.result() for future in futures]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
