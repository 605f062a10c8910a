"""Tallies of data files that earlier checks have read, so that a check reads only newer files.

    <lake>/tallies/<table>/<date>.msgpack    one tally per live file and expectation; and the files that, together,
                                             repeat no key

A scan adds up the tallies of files, whether they come from here or from the rows, so that both give the same result.
When a file leaves the table (merged, erased, quarantined), its tallies are dropped. Anything else that could change a
tally is in the record's key: the suite with its contract and ranges, the stored columns, the versions of
ranklake and Great Expectations. The record is a hint: lost, damaged or of another key, it costs one reading of the
date.

Series of a watch are named by operational columns alone (`is_storable`). Nothing is compressed, so that an erasure
finds a subject's names in it, and deletes it.
"""

import hashlib
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pyarrow.compute as pc

import ranklake
from ranklake.lake.contracts.checks.kind import empty_summary
from ranklake.lake.store.files import listed, put_hint
from ranklake.quality.engine import gx_version
from ranklake.quality.tally import Tally

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.quality.suite import Suite
    from ranklake.quality.tally import Partition

FOLDER: Final = "tallies"
LEAST_ROWS: Final = 1_000
"""Rows of a partition from which on a record is worth its file; fewer are read as fast."""
_DIGEST_BYTES: Final = 32
_ARRAY: Final = 1


@dataclass(slots=True)
class FileTallies:
    """Stored tallies of the files of one partition.

    Attributes
    ----------
    files
        Tallies of a data file by its path, one per expectation.
    distinct
        By check, paths of files whose rows together repeat no key; some may be gone.
    """

    files: dict[str, list[Tally]] = field(default_factory=dict)
    distinct: dict[str, frozenset[str]] = field(default_factory=dict)


def is_storable(contract: "Contract", suite: "Suite", part: "Partition") -> bool:
    """Whether tallies of a partition are kept: of many captured rows, and not where they would hold classified values.

    Tables that are computed are replaced file by file, so a record of them would not last.
    """
    return (
        contract.kind == "fact"
        and part.rows >= LEAST_ROWS
        and not any(
            each.classified and each.watch is not None and each.watch.part is not empty_summary
            for each in suite.expectations
        )
    )


def load(store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int) -> FileTallies:
    """Tallies of a partition's live files; empty where the record is missing, damaged, or of another key."""
    empty = FileTallies()
    try:
        raw = bytes(store.fs.cat_file(store.path(_name(contract.table, part.day))))
    except OSError:
        return empty
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return empty
    key, stored_batch_rows, files, distinct = _unpack(body)
    if key != _key(contract, suite):
        return empty
    # A watch sums up a file of several batches batch by batch: its tallies hold for that batch size alone.
    most_rows = min(stored_batch_rows, batch_rows) if stored_batch_rows != batch_rows else sys.maxsize
    live = set(part.files.filter(pc.less_equal(part.files["num_records"], most_rows))["path"].to_pylist())
    return FileTallies(
        {path: [_tally(facts) for facts in tallies] for path, tallies in files.items() if path in live},
        {check: frozenset(paths) for check, paths in distinct.items()},
    )


def save(
    store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int, known: FileTallies
) -> None:
    """Write the record of a partition, in place of an earlier one. A lake that cannot be written goes without."""
    live = set(part.files["path"].to_pylist())
    files = {
        path: [_facts(tally) for tally in tallies]
        for path, tallies in known.files.items()
        if path in live and not any(tally.error for tally in tallies)
    }
    distinct = {check: sorted(paths & live) for check, paths in known.distinct.items()}
    with suppress(TypeError, ValueError, OverflowError):  # a watch may name series by values that msgpack cannot pack
        facts = [_key(contract, suite), batch_rows, files, distinct]
        body = msgpack.packb(facts, default=_pack_array, datetime=True)
        put_hint(store, _name(contract.table, part.day), hashlib.sha256(body).digest() + body)


def prune(store: "Store", live: Mapping[str, set[date]]) -> None:
    """Delete the records of dates that a table of `live` no longer has: dates with rows, by table."""
    kept = {store.path(_name(table, day)) for table, days in live.items() for day in days}
    folders = tuple(f"{store.path(FOLDER, table)}/" for table in live)
    with suppress(OSError):
        for file in listed(store.fs, store.path(FOLDER)):
            if file.path.startswith(folders) and file.path not in kept:
                store.fs.rm_file(file.path)


def _name(table: str, day: date) -> str:
    return f"{FOLDER}/{table}/{day.isoformat()}.msgpack"


def _key(contract: "Contract", suite: "Suite") -> str:
    """Everything besides the file's rows that a tally depends on."""
    columns = [f"{column.name} {column.type} {column.class_}" for column in contract.columns]
    return "\n".join([suite.name, ranklake.__version__, gx_version(), *columns])


def _facts(tally: Tally) -> tuple[Any, ...]:
    return tally.checked, tally.failed, tally.seen, sorted(tally.runs), tally.parts


def _tally(facts: tuple[Any, ...]) -> Tally:
    checked, failed, seen, runs, parts = facts
    return Tally(checked, failed, list(seen), runs=set(runs), parts=list(parts))


def _unpack(body: bytes) -> Any:  # noqa: ANN401 - as packed, with lists as tuples
    return msgpack.unpackb(body, use_list=False, strict_map_key=False, ext_hook=_unpack_array, timestamp=3)


def _pack_array(value: object) -> Any:  # noqa: ANN401 - a value that msgpack can pack
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return msgpack.ExtType(_ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()]))
    raise TypeError(type(value).__name__)


def _unpack_array(code: int, raw: bytes) -> Any:  # noqa: ANN401 - an array
    if code != _ARRAY:
        raise ValueError(code)
    kind, shape, values = msgpack.unpackb(raw)
    return np.frombuffer(values, kind).reshape(shape)
