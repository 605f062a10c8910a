"""Dates that are due to be downsampled: by which rule, from when on, and what they become.

Rules with ``downsample`` are about whole tables. The most specific decides, of equals the one that waits longest. No
date is downsampled before every legal minimum has passed that can be about rows of its table, and none that a legal
hold can be about.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import date
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from ranklake.cores import usable_cores
from ranklake.lake.tables.live_files import files, refuse_damaged
from ranklake.lake.tables.parquet import append_files
from ranklake.lake.tables.read import read_batches
from ranklake.lake.tables.tables import latest
from ranklake.retention.holds.hold import Hold
from ranklake.retention.holds.holds import rules_on
from ranklake.retention.plans.aggregates import Fold
from ranklake.retention.plans.due import DuePartition, ages, of_day, planned_item
from ranklake.retention.policies.order import cutoff, more_specific
from ranklake.retention.proposals.retention_plans import DOWNSAMPLE, DOWNSAMPLED

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.lake.tables.live_files import DataFile
    from ranklake.retention.policies.model import Rule


_BATCH_ROWS: Final = 1 << 20


def downsampling_rule(contract: "Contract", rules: Sequence["Rule"]) -> tuple["Rule | None", int]:
    """Return which rule downsamples a table, and after how many days; None where none does."""
    mine = [one for one in rules if one.may_match(contract)]
    winner: Rule | None = None
    for matching_rule in mine:
        if DOWNSAMPLE not in matching_rule.waiting or not contract.series:
            continue
        if winner is None or more_specific(matching_rule, winner):
            winner = matching_rule
        elif not more_specific(winner, matching_rule):
            winner = max(winner, matching_rule, key=lambda rule: (rule.waiting[DOWNSAMPLE], rule.name))
    if winner is None:
        return None, 0
    return winner, max([winner.waiting[DOWNSAMPLE], *(one.minimum_days or 0 for one in mine)])


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
