"""Dates are downsampled side by side: what takes time in one, NumPy and Arrow, lets the threads of others go on.

A date is one thread's alone, so no figure depends on how many there are. Each holds a batch of rows and the aggregates
of its date; no more than `MOST_AT_ONCE` dates are held at a time, however many are due.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Final

from ranklake.cores import usable_cores
from ranklake.lake.tables.parquet import append_files
from ranklake.retention.proposals.retention_plans import DOWNSAMPLED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ranklake.lake.store.store import Lake
    from ranklake.lake.tables.data_file import DataFile
    from ranklake.retention.due import Due

MOST_AT_ONCE: Final = 4


def write_aggregates(
    lake: "Lake", some: "Sequence[Due]", number: int, at_once: int | None = None
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

    def written(one: "Due") -> "list[DataFile]":
        assert one.aggregates is not None
        return append_files(lake, target, one.aggregates(number), number)

    with ThreadPoolExecutor(at_once or min(MOST_AT_ONCE, usable_cores())) as pool:
        waiting = [pool.submit(written, one) for one in some]
        try:
            return [one.result() for one in waiting]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
