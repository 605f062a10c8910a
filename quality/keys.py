"""Whether keys repeat in a partition, in bounded memory: what is too large to hold is spilled to disk.

Keys hardly ever repeat. If no two rows have the same 64 bits of hash, no two have the same key: `Hashes` finds that out
along with the scan of the rows. Only if a hash comes twice are the keys themselves counted, by `count_repeats`.
"""

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.store.scratch import scratch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from datafusion import SessionContext

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store

MEMORY_BYTES: Final = 512 * 2**20
HELD_BYTES: Final = 128 * 2**20
MOST_REPEATED: Final = 100_000
"""Keys that are named, where several rows have one."""
_ROWS: Final = 2**15  # whose hashes are computed at a time, so that they stay in the processor's cache
_MIX: Final = ((np.uint64(32), np.uint64(0xD6E8FEB86659FD93)), (np.uint64(29), np.uint64(0x9E3779B97F4A7C15)))

_LEAST, _MOST = -(2**63), 2**63 - 1
_SECOND_US: Final = 1_000_000

_Words = npt.NDArray[np.uint64]


class Hashes:
    """Hashes of the keys of a partition, as a context: files on disk, if there are any, are gone when it is left.

    Parameters
    ----------
    columns
        What makes the key.
    rows
        How many rows will come, about.
    held_bytes
        Hashes that are held and sorted at a time; more are kept in files, each with its own range of hashes.
    """

    def __init__(self, columns: "Sequence[str]", rows: int, held_bytes: int = HELD_BYTES) -> None:
        self.columns = columns
        self._bits = max(0, (rows * 8 - 1) // held_bytes).bit_length()
        self._held: list[_Words] = []
        self._folder: Path | None = None
        self._stack = ExitStack()
        self._able = bool(columns)

    def __enter__(self) -> Self:
        if self._bits:
            self._folder = self._stack.enter_context(scratch("keys"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, rows: pa.Table) -> int:
        """Add the keys of some rows; return the number of rows whose key has no NULL. Other rows are left out.

        Text is dictionary-typed.
        """
        self._able = self._able and all(_hashable(rows[name].type) for name in self.columns)
        if not self._able:
            return 0
        keys = rows.select(list(self.columns))
        if any(column.null_count for column in keys.columns):
            keys = keys.drop_null()
        columns = [_words(column) for column in keys.columns]
        hashes = np.zeros(keys.num_rows, np.uint64)
        for start in range(0, len(hashes), _ROWS):
            _mix(hashes[start : start + _ROWS], [column[start : start + _ROWS] for column in columns])
        try:
            self._keep(hashes)
        except OSError:  # a disk that is full: `count_repeats` may say so
            self._able = False
        return len(hashes)

    def _keep(self, hashes: _Words) -> None:
        if self._folder is None:
            self._held.append(hashes)
            return
        hashes.sort()
        ends = np.arange(1, 2**self._bits, dtype=np.uint64) << np.uint64(64 - self._bits)
        for index, in_range in enumerate(np.split(hashes, np.searchsorted(hashes, ends))):
            with (self._folder / str(index)).open("ab") as file:
                in_range.tofile(file)

    def distinct(self) -> bool:
        """Whether all keys differ; False where that is not sure."""
        if self._folder is None:
            return self._able and _all_differ(np.concatenate([np.empty(0, np.uint64), *self._held]))
        files = sorted(self._folder.iterdir())
        return self._able and all(_all_differ(np.fromfile(file, np.uint64)) for file in files)


def near_files(files: pa.Table, columns: "Sequence[str]", distinct: "frozenset[str]") -> pa.Table:
    """Files whose keys have to be read, given that the files in `distinct` together repeat no key.

    These are all files outside `distinct`, and those in it that may share a key with one outside. Two files share none
    if their ranges of a key's column in the Delta log do not overlap, as those of different minutes mostly do not.
    """
    known = pc.is_in(files["path"], value_set=pa.array(sorted(distinct), pa.string()))
    ranges = [_ranges(files, name) for name in columns]
    others = np.flatnonzero(~known.to_numpy())
    chosen = ~known.to_numpy()
    for at in np.flatnonzero(known.to_numpy()):
        apart = np.zeros(len(others), bool)
        for low, high in filter(None, ranges):
            apart |= (high[at] < low[others]) | (high[others] < low[at])
        chosen[at] = not apart.all()
    return files.filter(pa.array(chosen))


def _ranges(files: pa.Table, name: str) -> tuple[npt.NDArray[Any], npt.NDArray[Any]] | None:
    """Least and greatest value of a column in each file, from the Delta log; None if the log has no exact ones.

    A file without such values has the widest range. A log may cut text and floats short, so these have none; ranges of
    times are wider by a second on each side, as a log may leave out fractions.
    """
    ends = []
    for side, unknown, more in (("min", _LEAST, -_SECOND_US), ("max", _MOST, _SECOND_US)):
        column = files[f"{side}.{name}"] if f"{side}.{name}" in files.column_names else None
        if column is None or not (pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type)):
            return None
        is_time = pa.types.is_timestamp(column.type)
        values = column.cast(pa.timestamp("us", column.type.tz)) if is_time else column
        values = pc.fill_null(pc.add(values.cast(pa.int64()), more if is_time else 0), unknown)
        ends.append(values.to_numpy())
    return ends[0], ends[1]


def _all_differ(hashes: _Words) -> bool:
    hashes.sort()
    return not bool(np.any(hashes[1:] == hashes[:-1]))


def _hashable(kind: pa.DataType) -> bool:
    """Whether values of a type are equal if and only if their bits are."""
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_dictionary(kind))


def _words(column: pa.ChunkedArray) -> _Words:
    """Return 64 bits for each value of a column without NULL; equal values have the same."""
    if pa.types.is_dictionary(column.type):
        from pandas.util import hash_array  # type: ignore[import-untyped]

        chunks = [
            hash_array(chunk.dictionary.to_numpy(zero_copy_only=False), categorize=False)[chunk.indices.to_numpy()]
            for chunk in column.chunks
        ]
        return np.concatenate([np.empty(0, np.uint64), *chunks])
    if pa.types.is_date32(column.type):
        column = column.cast(pa.int32())
    words: _Words = column.cast(pa.int64()).to_numpy().view(np.uint64)
    return words


def _mix(hashes: _Words, columns: list[_Words]) -> None:
    """Hash a key's columns into `hashes`, in place. Of one column's bits each change changes the hash."""
    spare = np.empty_like(hashes)
    for column in columns:
        np.bitwise_xor(hashes, column, out=hashes)
        for shift, factor in _MIX:
            np.multiply(hashes, factor, out=hashes)
            np.right_shift(hashes, shift, out=spare)
            np.bitwise_xor(hashes, spare, out=hashes)


def count_repeats(store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]") -> tuple[int, int]:
    """Return (rows whose key has no NULL, those of them that repeat a key) in the files of one partition.

    NULLs are not equal to one another, as in SQL's UNIQUE. ``date`` is the same in all rows, so it is left out.
    """
    with _key_counts(store, contract, files, columns) as (session, keys):
        sums = session.sql(f"SELECT sum(n), sum(n - 1) FROM ({keys})").to_arrow_table()  # noqa: S608
    total, surplus = (sums.column(index)[0].as_py() or 0 for index in (0, 1))
    return int(total), int(surplus)


def repeated_keys(store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]") -> pa.Table:
    """Return the keys that repeat in the files of one partition, each once; one more than `MOST_REPEATED` at most."""
    names = ", ".join(f'"{name}"' for name in columns if name not in contract.partition)
    with _key_counts(store, contract, files, columns) as (session, keys):
        query = f"SELECT {names} FROM ({keys}) WHERE n > 1 LIMIT {MOST_REPEATED + 1}"  # noqa: S608
        return session.sql(query).to_arrow_table()


@contextmanager
def _key_counts(
    store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]"
) -> "Iterator[tuple[SessionContext, str]]":
    """Give a session and its query of each key without NULL and its count ``n``.

    What it spills goes with the context, and where the process is killed, with the next one's.
    """
    from datafusion import RuntimeEnvBuilder, SessionConfig, SessionContext

    names = [name for name in columns if name not in contract.partition]
    stored = arrow_schema(contract)
    paths = [store.path("tables", contract.table, path) for path in files["path"].to_pylist()]
    rows = ds.dataset(
        paths,
        schema=pa.schema([stored.field(name) for name in names]),
        format=ds.ParquetFileFormat(
            default_fragment_scan_options=ds.ParquetFragmentScanOptions(page_checksum_verification=True)
        ),
        filesystem=store.arrow_filesystem(),
    )
    quoted = ", ".join(f'"{name}"' for name in names)
    there = " AND ".join(f'"{name}" IS NOT NULL' for name in names)
    with scratch("keys") as folder:
        runtime = RuntimeEnvBuilder().with_disk_manager_specified(folder).with_fair_spill_pool(MEMORY_BYTES)
        session = SessionContext(SessionConfig().with_target_partitions(2), runtime)
        session.register_dataset("rows", rows)
        # Names are a contract's column names, which hold letters, digits and underscores only.
        yield session, f"SELECT {quoted}, count(*) AS n FROM rows WHERE {there} GROUP BY {quoted}"  # noqa: S608
