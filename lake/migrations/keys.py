"""Looks whether each row of a table has its key alone, over any number of files, with 8 bytes a row at most."""

from collections import Counter
from collections.abc import Iterator, Sequence
from hashlib import blake2b
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from ranklake.lake.contracts.arrow import arrow_schema, with_default
from ranklake.lake.migrations.steps.step import MigrationError

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake

AT_ONCE: Final = 32_000_000
"""Rows whose keys are held at a time; of more, the files are read as many times as it takes."""

_ODD: Final = np.uint64(0x9E3779B97F4A7C15)
_NULL: Final = np.uint64(0x6E756C6C6E756C6C)
_LEAST: Final = 1000

Hashes = npt.NDArray[np.uint64]


def refuse_repeated(lake: "Lake", target: "Contract", paths: Sequence[str]) -> None:
    """Raise `MigrationError` where two rows of some files have the same key."""
    rows = sum(pq.ParquetFile(_open(lake, target, path)).metadata.num_rows for path in paths)
    rounds = -(-rows // AT_ONCE) or 1
    again = np.empty(0, np.uint64)
    for turn in range(rounds):
        parts = [_share(hashes, turn, rounds) for path in paths for hashes in map(_hashed, _keys(lake, target, path))]
        every = np.sort(np.concatenate(parts)) if parts else again
        again = np.union1d(again, every[1:][every[1:] == every[:-1]])
    if len(again) and (found := _really(lake, target, paths, again[:_LEAST])):
        least = "at least " if len(again) > _LEAST else ""
        what = f"{least}{found} rows share {', '.join(target.grain)} with another"
        hint = "nothing was changed; choose a key that each row has alone, or take the rows out first"
        raise MigrationError(what, where=target.table, hint=hint)


def _really(lake: "Lake", target: "Contract", paths: Sequence[str], hashes: Hashes) -> int:
    """Return how many rows with some hashes share a key with another: keys that differ may have the same hash."""
    found: Counter[tuple[object, ...]] = Counter()
    for path in paths:
        for keys in _keys(lake, target, path):
            some = keys.filter(pa.array(np.isin(_hashed(keys), hashes)))
            found.update(tuple(row.values()) for row in some.to_pylist())
    return sum(count for count in found.values() if count > 1)


def _share(hashes: Hashes, turn: int, rounds: int) -> Hashes:
    return hashes if rounds == 1 else hashes[hashes % np.uint64(rounds) == turn]


def _keys(lake: "Lake", target: "Contract", path: str) -> Iterator[pa.Table]:
    """Yield the key's columns of a file, a row group at a time, as readers see them."""
    schema = arrow_schema(target)
    fields = [schema.field(name) for name in target.grain]
    file = pq.ParquetFile(_open(lake, target, path))
    stored = [field.name for field in fields if field.name in file.schema_arrow.names]
    day = pa.scalar(path.partition("date=")[2][:10]).cast(pa.date32())
    for group in range(file.metadata.num_row_groups):
        rows = file.read_row_group(group, columns=stored, use_threads=False)
        count = file.metadata.row_group(group).num_rows
        columns = {}
        for field in fields:
            if field.name == "date":
                columns["date"] = pa.chunked_array([pa.repeat(day, count)])
            else:
                found = rows[field.name].cast(field.type) if field.name in stored else None
                columns[field.name] = with_default(found, field, count)
        yield pa.table(columns)


def _open(lake: "Lake", target: "Contract", path: str) -> pa.NativeFile:
    return lake.open_file(lake.path("tables", target.table, path))


def _hashed(keys: pa.Table) -> Hashes:
    """Return a hash of each row."""
    total = np.zeros(keys.num_rows, np.uint64)
    for column in keys.columns:
        total = _mixed(total + _ODD) ^ _of_column(column)
    return _mixed(total)


def _of_column(column: pa.ChunkedArray) -> Hashes:
    whole = column.combine_chunks().dictionary_encode()
    words = np.array([_word(value) for value in whole.dictionary.to_pylist()], np.uint64)
    codes = whole.indices.fill_null(0).to_numpy(zero_copy_only=False)
    found = words[codes] if len(words) else np.zeros(len(codes), np.uint64)
    return np.where(whole.indices.is_null().to_numpy(zero_copy_only=False), _NULL, found)


def _word(value: object) -> int:
    return int.from_bytes(blake2b(repr(value).encode(), digest_size=8).digest(), "little")


def _mixed(values: Hashes) -> Hashes:
    """Return 64 bits that depend on all of 64 bits (SplitMix64's finalizer)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))
