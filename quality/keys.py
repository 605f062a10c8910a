"""Detection of repeated keys in a partition, in bounded memory: larger data spill to disk.

Keys rarely repeat. Keys of captured rows end in a counter: slots of a segment, steps of a rank. Rows that
share a counter are a series. If the rows of each series are adjacent, `_Ranges` marks their numbers in a bitmap and
keeps the ranges of marked numbers. Other keys are hashed: if all 64-bit hashes differ, all keys differ. `Hashes` does
this during the scan of the rows. Only if ranges overlap or a hash repeats does `count_repeats` count the keys
themselves.
"""

from contextlib import ExitStack, contextmanager
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.series import group_starts
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
"""Maximum number of repeated keys that are returned."""
_ROWS: Final = 2**15  # hashed at a time, so that they fit in the processor's cache
_MIX: Final = ((np.uint64(32), np.uint64(0xD6E8FEB86659FD93)), (np.uint64(29), np.uint64(0x9E3779B97F4A7C15)))

_FEW: Final = 1024  # series, ranges or numbers that are always marked
_SPARSE: Final = 4  # rows per series, and per range, above which marking is cheaper than hashing

_LEAST, _MOST = -(2**63), 2**63 - 1
_SECOND_US: Final = 1_000_000

_LEAST_SHORT, _MOST_SHORT = -(2**31), 2**31 - 1
_NUMBER_BYTES: Final = 4

_Words = npt.NDArray[np.uint64]
_Numbers = npt.NDArray[np.int64] | npt.NDArray[np.int32]
_Series = tuple[_Words, npt.NDArray[np.int64], npt.NDArray[np.int64]]
"""Hash, minimum and maximum of each series."""


class Hashes:
    """Hashes of the keys of a partition. A context manager, which deletes its spill files at exit.

    Parameters
    ----------
    columns
        Columns of the key.
    rows
        Expected number of rows.
    held_bytes
        Bytes of hashes that are sorted at a time. More hashes spill to files, each with a range of hashes.
    """

    def __init__(self, columns: "Sequence[str]", rows: int, held_bytes: int = HELD_BYTES) -> None:
        self.columns = columns
        self._bits = max(0, (rows * 8 - 1) // held_bytes).bit_length()
        self._held: list[_Words] = []
        self._folder: Path | None = None
        self._stack = ExitStack()
        self._can_tell = bool(columns)
        self._ranges: _Ranges | None = _Ranges(held_bytes // _NUMBER_BYTES)

    def __enter__(self) -> Self:
        if self._bits:
            self._folder = self._stack.enter_context(scratch("keys"))
        return self

    def __exit__(self, *_: object) -> None:
        self._stack.close()

    def add(self, rows: pa.Table) -> int:
        """Add the keys of rows with dictionary-encoded text. Return the number of rows whose key has no NULL.

        Rows with NULL in the key are left out.
        """
        self._can_tell = self._can_tell and all(_hashable(rows[name].type) for name in self.columns)
        if not self._can_tell:
            return 0
        keys = rows.select(list(self.columns))
        if any(column.null_count for column in keys.columns):
            keys = keys.drop_null()
        if self._ranges is None or not self._ranges.add(keys):
            self._hash_ranges()
            self._keep(_hashes(np.zeros(keys.num_rows, np.uint64), [_words(column) for column in keys.columns]))
        return int(keys.num_rows)

    def end_file(self) -> None:
        """Mark the end of a file: series rarely continue in the next one."""
        if self._ranges is not None and not self._ranges.mark():
            self._hash_ranges()

    def _hash_ranges(self) -> None:
        """Hash the keys that are held as ranges, and all later keys."""
        if self._ranges is not None:
            for hashes in self._ranges.hashes():
                self._keep(hashes)
        self._ranges = None

    def _keep(self, hashes: _Words) -> None:
        try:
            self._hold_or_spill(hashes)
        except OSError:  # the disk is full; `count_repeats` reports it
            self._can_tell = False

    def _hold_or_spill(self, hashes: _Words) -> None:
        if self._folder is None:
            self._held.append(hashes)
            return
        hashes.sort()
        ends = np.arange(1, 2**self._bits, dtype=np.uint64) << np.uint64(64 - self._bits)
        for index, in_range in enumerate(np.split(hashes, np.searchsorted(hashes, ends))):
            with (self._folder / str(index)).open("ab") as file:
                in_range.tofile(file)

    def distinct(self) -> bool:
        """Return True if all keys differ; False also if that is uncertain."""
        self.end_file()
        if self._ranges is not None:
            return self._can_tell and self._ranges.distinct()
        if self._folder is None:
            return self._can_tell and _all_differ(np.concatenate([np.empty(0, np.uint64), *self._held]))
        files = sorted(self._folder.iterdir())
        return self._can_tell and all(_all_differ(np.fromfile(file, np.uint64)) for file in files)


class _Ranges:
    """Keys as ranges of their last column, a number, for each series: the rows with equal values in the other columns.

    Parameters
    ----------
    most_rows
        Number of rows whose numbers are held before they are marked. A quarter as many ranges are kept.
    """

    def __init__(self, most_rows: int) -> None:
        self._most_rows = most_rows
        self._rows = 0
        self._held_series: list[_Series] = []  # hash, minimum, maximum of adjacent rows of one series, not yet marked
        self._numbers: list[tuple[_Numbers, _Numbers]] = []  # for each of them: counts of rows, and their numbers
        self._filled: list[_Series] = []
        self._is_distinct = True

    def add(self, keys: pa.Table) -> bool:
        """Add keys without NULL. Return False, without adding, if hashing is cheaper."""
        *before, last = keys.columns
        if not keys.num_rows:
            return True
        if not pa.types.is_integer(last.type):
            return False
        is_head = group_starts(before, keys.num_rows)
        heads = np.flatnonzero(is_head)
        if len(heads) > keys.num_rows // _SPARSE + _FEW:
            return False
        if self._rows + keys.num_rows > self._most_rows and not self.mark():
            return False
        numbers: _Numbers = last.cast(pa.int64()).to_numpy()
        low, high = (reduce.reduceat(numbers, heads) for reduce in (np.minimum, np.maximum))
        first = keys.select(range(len(before))).filter(pa.array(is_head))
        series = _hashes(np.zeros(len(heads), np.uint64), [_words(column) for column in first.columns])
        if low.min() >= _LEAST_SHORT and high.max() <= _MOST_SHORT:
            numbers = numbers.astype(np.int32)
        self._held_series.append((series, low, high))
        self._numbers.append((np.diff(heads, append=len(numbers)), numbers))
        self._rows += len(numbers)
        return True

    def mark(self) -> bool:
        """Convert the held numbers to ranges. Return False if hashing is cheaper."""
        if not self._rows:
            return True
        series, low, high = (np.concatenate(parts) for parts in zip(*self._held_series, strict=True))
        distinct, index = np.unique(series, return_inverse=True)
        least, most = np.full(len(distinct), _MOST), np.full(len(distinct), _LEAST)
        np.minimum.at(least, index, low)
        np.maximum.at(most, index, high)
        sizes = most.view(np.uint64) - least.view(np.uint64)  # size minus one; always fits the type
        if float(sizes.sum(dtype=float)) > 2 * self._rows + _FEW * _FEW:
            return False
        begins = np.append(1, np.cumsum(sizes.astype(np.int64) + 2) + 1)  # with a gap between series
        marked = np.zeros(begins[-1], bool)
        shift = (begins[:-1] - least)[index]
        at = 0
        for counts, numbers in self._numbers:
            marked[numbers + np.repeat(shift[at : at + len(counts)], counts)] = True
            at += len(counts)
        starts, ends = np.flatnonzero(marked[1:] != marked[:-1]).reshape(-1, 2).T + 1
        kept = sum(len(of_series) for of_series, _, _ in self._filled)
        if len(starts) > self._rows // _SPARSE + _FEW or kept + len(starts) > self._most_rows // _SPARSE + _FEW:
            return False
        self._is_distinct &= int(np.count_nonzero(marked)) == self._rows
        owner = np.searchsorted(begins, starts, side="right") - 1
        self._filled.append(
            (distinct[owner], starts - begins[owner] + least[owner], ends - begins[owner] + least[owner] - 1)
        )
        self._held_series, self._numbers, self._rows = [], [], 0
        return True

    def distinct(self) -> bool:
        """Return True if all marked keys differ; False also if that is uncertain."""
        if not self._filled or not self._is_distinct:
            return self._is_distinct
        series, low, high = (np.concatenate(parts) for parts in zip(*self._filled, strict=True))
        order = np.lexsort((low, series))
        series, low, high = series[order], low[order], high[order]
        return not bool(np.any((series[1:] == series[:-1]) & (low[1:] <= high[:-1])))

    def hashes(self) -> "Iterator[_Words]":
        """Yield the hashes of all keys, as `_hashes` computes them. If a key repeats, one is yielded twice."""
        for (series, _, _), (counts, numbers) in zip(self._held_series, self._numbers, strict=True):
            yield _hashes(np.repeat(series, counts), [numbers.astype(np.int64).view(np.uint64)])
        for series, low, high in self._filled:
            lengths = high - low + 1
            shift = low - np.cumsum(lengths) + lengths
            filled = np.arange(int(lengths.sum())) + np.repeat(shift, lengths)
            yield _hashes(np.repeat(series, lengths), [filled.view(np.uint64)])
        if not self._is_distinct:
            yield np.zeros(2, np.uint64)


def near_files(files: pa.Table, columns: "Sequence[str]", distinct: "frozenset[str]") -> pa.Table:
    """Return the files whose keys have to be read, given that the files in `distinct` together repeat no key.

    These are all files outside `distinct`, and those in it that may share a key with a file outside. Two files share no
    key if their ranges of a key column in the Delta log do not overlap, as in files of different minutes.
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
    """Return minimum and maximum of a column in each file, from the Delta log; None if the log has no exact ones.

    A file without statistics gets the widest range. A log may truncate text and floats, so these types have none.
    Ranges of times are extended by a second on each side, as a log may omit fractions.
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
    """Whether values of a type are equal exactly if their bits are equal."""
    return bool(pa.types.is_integer(kind) or pa.types.is_temporal(kind) or pa.types.is_dictionary(kind))


def _words(column: pa.ChunkedArray) -> _Words:
    """Return 64 bits for each value of a column without NULL; equal values have equal bits."""
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


def _hashes(hashes: _Words, columns: list[_Words]) -> _Words:
    """Hash columns into `hashes`, in place, and return it."""
    for start in range(0, len(hashes), _ROWS):
        _mix(hashes[start : start + _ROWS], [column[start : start + _ROWS] for column in columns])
    return hashes


def _mix(hashes: _Words, columns: list[_Words]) -> None:
    """Hash a key's columns into `hashes`, in place. Each change of the bits of one column changes the hash."""
    spare = np.empty_like(hashes)
    for column in columns:
        np.bitwise_xor(hashes, column, out=hashes)
        for shift, factor in _MIX:
            np.multiply(hashes, factor, out=hashes)
            np.right_shift(hashes, shift, out=spare)
            np.bitwise_xor(hashes, spare, out=hashes)


def count_repeats(store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]") -> tuple[int, int]:
    """Return the number of rows whose key has no NULL, and how many of them repeat an earlier key, in one partition.

    NULLs are not equal, as in SQL's UNIQUE. The constant column ``date`` is left out.
    """
    with _key_counts(store, contract, files, columns) as (session, keys):
        sums = session.sql(f"SELECT sum(n), sum(n - 1) FROM ({keys})").to_arrow_table()  # noqa: S608
    total, surplus = (sums.column(index)[0].as_py() or 0 for index in (0, 1))
    return int(total), int(surplus)


def repeated_keys(store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]") -> pa.Table:
    """Return the keys that repeat in the files of one partition, each once; at most `MOST_REPEATED` + 1 keys."""
    names = ", ".join(f'"{name}"' for name in columns if name not in contract.partition)
    with _key_counts(store, contract, files, columns) as (session, keys):
        query = f"SELECT {names} FROM ({keys}) WHERE n > 1 LIMIT {MOST_REPEATED + 1}"  # noqa: S608
        return session.sql(query).to_arrow_table()


@contextmanager
def _key_counts(
    store: "Store", contract: "Contract", files: pa.Table, columns: "Sequence[str]"
) -> "Iterator[tuple[SessionContext, str]]":
    """Yield a session and the SQL of each key without NULL and its count ``n``.

    Spill files are deleted at exit; after a kill, the next context deletes them.
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
    complete = " AND ".join(f'"{name}" IS NOT NULL' for name in names)
    with scratch("keys") as folder:
        runtime = RuntimeEnvBuilder().with_disk_manager_specified(folder).with_fair_spill_pool(MEMORY_BYTES)
        session = SessionContext(SessionConfig().with_target_partitions(2), runtime)
        session.register_dataset("rows", rows)
        # Names are column names of a contract, which consist of letters, digits and underscores.
        yield session, f"SELECT {quoted}, count(*) AS n FROM rows WHERE {complete} GROUP BY {quoted}"  # noqa: S608
