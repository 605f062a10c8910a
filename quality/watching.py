"""Watches: checks of a partition as a whole, which sum up batches where the rows are and judge where others are known.

A scan calls `watch` for each batch, perhaps on a worker; the driver calls `judge_watched` for one partition after
another, in the order of their dates, so that each is compared with those before it.
"""

from typing import TYPE_CHECKING, Final

from ranklake.lake.contracts.checks.series import Batch

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pyarrow as pa

    from ranklake.lake.contracts.model import Contract
    from ranklake.quality.neighbours import Neighbours
    from ranklake.quality.partition import Partition, Tally
    from ranklake.quality.suite import Expectation, Suite

    Watched = tuple[Expectation, Tally, tuple[str, ...]]

_FORMED: Final = ("matches", "in_set")
"""Kinds of checks that give a text a form, so that nothing else can stand in it."""


def watched_columns(contract: "Contract", one: "Expectation") -> tuple[str, ...]:
    """Return the columns that a watch reads, as far as the table has them."""
    assert one.watch is not None, f"{one.check.kind} watches nothing"
    names = {*one.check.columns, *one.check.by, *one.watch.also}
    if one.watch.reads_text:
        names |= {
            column.name
            for column in contract.columns
            if column.type == "string"
            and column.class_ == "operational"
            and not any(check.kind in _FORMED for check in column.checks)
        }
    return tuple(name for name in contract.names if name in names)


def watch(rows: "pa.Table", watched: "Sequence[Watched]") -> None:
    """Sum up a batch of rows for each watch."""
    batch = Batch(rows)
    for one, tally, names in watched:
        if tally.error or one.watch is None or not names:
            continue
        seen = Batch(rows.select(names)) if one.watch.reads_text else batch
        try:
            part = one.watch.part(one.check, seen)
        except Exception as error:  # noqa: BLE001 - one watch must not take the others with it; no text: it may quote a value
            tally.error = f"could not be computed ({type(error).__name__})"
        else:
            if part is not None:
                tally.parts.append(part)


def judge_watched(
    contract: "Contract", suite: "Suite", part: "Partition", tallies: "list[Tally]", neighbours: "Neighbours"
) -> None:
    """Judge a partition by what its batches came to; the parts are dropped."""
    for one, tally in zip(suite.expectations, tallies, strict=True):
        if one.watch is None or tally.absent or tally.error:
            continue
        try:
            found = one.watch.judge(one.check, tally.parts, neighbours.of(contract, part, one.check))
        except Exception as error:  # noqa: BLE001 - as above
            tally.error = f"could not be computed ({type(error).__name__})"
            continue
        finally:
            tally.parts = []
        tally.checked, tally.failed, tally.unknown = found.checked, found.failed, found.unknown
        tally.expected, tally.measured, tally.again = found.expected, found.measured, found.again
        tally.seen = [found.observed] if found.observed and not one.classified else []
        if found.measured is not None:
            neighbours.remember(contract.table, one.check.id, part.day, found.measured)
