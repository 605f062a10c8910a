"""Which rows of a partition fail a check, in batches: those that are in the table, and those that were taken out."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.masks import failures
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.contracts.row_text import row_values
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_batches, read_some
from ranklake.lake.tables.tables import latest
from ranklake.quality.keys import MOST_REPEATED, repeated_keys
from ranklake.quality.rejected import REJECTS

if TYPE_CHECKING:
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.quality.partition import Partition
    from ranklake.quality.suite import Expectation, Suite

BATCH_ROWS: Final = 250_000
_KEYED: Final = ("unique", "duplicates")

Judged = tuple[pa.Table, pa.ChunkedArray]


class TooManyKeysError(Exception):
    """So many keys repeat that they are not held."""


def is_known(one: "Expectation") -> bool:
    """Say whether single rows fail a check, so that it can be told which."""
    return one.is_scanned and (one.per_row or one.check.kind in _KEYED)


def stored_rows(
    lake: "Lake", contract: "Contract", suite: "Suite", part: "Partition", one: "Expectation", columns: Sequence[str]
) -> Iterator[Judged]:
    """Yield the rows of a partition, some columns of them, with a mask of those that fail.

    A check counts all but one of the rows that share a key as failing. Here all of them are, since nobody knows which
    is the right one.

    Raises
    ------
    TooManyKeysError
        More than `MOST_REPEATED` keys repeat.
    """
    keyed = one.check.kind in _KEYED
    judged = [name for name in one.check.columns if not keyed or name not in contract.partition]
    about = () if one.where is None else one.where.columns
    names = [name for name in contract.names if name in {*judged, *about, *columns}]
    types = arrow_schema(contract)
    keys = repeated_keys(lake, contract, part.files, judged) if keyed else None
    if keys is not None and keys.num_rows > MOST_REPEATED:
        raise TooManyKeysError
    for rows in read_batches(lake, contract, part.files, names, batch_rows=BATCH_ROWS, dictionaries=True):
        plain = pa.table({name: rows[name].cast(types.field(name).type) for name in judged})
        failed = failures(one.check, plain, suite.ranges) if keys is None else _among(plain, keys)
        yield rows, failed if one.where is None else pc.and_(failed, one.where.mask(rows))


def taken_out(
    lake: "Lake", contract: "Contract", day: "date", one: "Expectation", columns: Sequence[str]
) -> Iterator[Judged]:
    """Yield rows of a date that were sent to ``rejects`` for a check, some columns of them; all of them fail.

    What cannot be read back as a row of the table is left out, as is what no longer stands there.
    """
    types = arrow_schema(contract)
    names = ["table", "reason", "row"]
    wanted = f"{one.check.id.partition(':')[0]}: "
    handle = latest(lake, REJECTS)
    for _, rows in () if handle is None else read_some(lake, packaged(REJECTS), files(handle), names):
        mine = pc.and_(pc.equal(rows["table"], contract.table), pc.starts_with(rows["reason"], wanted))
        found = [row_values(contract, text) for text in rows.filter(mine)["row"].to_pylist()]
        there = [values for values in found if values is not None and values.get("date") == day]
        if there:
            given = pa.Table.from_pylist(there, schema=types).select(list(columns))
            yield given, pa.chunked_array([pa.repeat(pa.scalar(value=True), given.num_rows)])


def _among(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows whose key is among some."""
    if not keys.num_rows:
        return pa.chunked_array([pa.repeat(pa.scalar(value=False), rows.num_rows)])
    numbered = rows.append_column("_row", pa.array(range(rows.num_rows)))
    found = numbered.join(keys, keys.column_names, join_type="left semi")["_row"]
    return pc.is_in(numbered["_row"], value_set=found.combine_chunks())
