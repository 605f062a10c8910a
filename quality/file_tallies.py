"""Tallies of data files that earlier checks have read, so that a check reads only the files that came since.

    <lake>/tallies/<table>/<date>.msgpack    of each live file: one tally per expectation; and which files, together,
                                             repeat no key

A scan tallies file by file and adds up, whether a tally is from here or from the rows. So both give the same result,
and of a file that left the table (merged, erased, quarantined) only its tallies are dropped. Anything else that could
change a tally is in the record's key: the suite with its contract and ranges, the stored columns, the versions of
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
    """What is known of the files of one partition.

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
            one.classified and one.watch is not None and one.watch.part is not empty_summary
            for one in suite.expectations
        )
    )


def load(store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int) -> FileTallies:
    """Tallies of a partition's live files; none where the record is missing, damaged, or of another key."""
    none = FileTallies()
    try:
        raw = bytes(store.fs.cat_file(store.path(_name(contract.table, part.day))))
    except OSError:
        return none
    digest, body = raw[:_DIGEST_BYTES], raw[_DIGEST_BYTES:]
    if hashlib.sha256(body).digest() != digest:
        return none
    key, before, files, distinct = _unpack(body)
    if key != _key(contract, suite):
        return none
    # a watch sums up a large file in batches
    most = min(before, batch_rows) if before != batch_rows else sys.maxsize
    live = set(part.files.filter(pc.less_equal(part.files["num_records"], most))["path"].to_pylist())
    return FileTallies(
        {path: [_tally(facts) for facts in tallies] for path, tallies in files.items() if path in live},
        {check: frozenset(paths) for check, paths in distinct.items()},
    )


def save(
    store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int, known: FileTallies
) -> None:
    """Write the record of a partition, in place of the one before. A lake that cannot be written goes without."""
    live = set(part.files["path"].to_pylist())
    files = {
        path: [_facts(tally) for tally in tallies]
        for path, tallies in known.files.items()
        if path in live and not any(tally.error for tally in tallies)
    }
    distinct = {check: sorted(paths & live) for check, paths in known.distinct.items()}
    with suppress(TypeError, ValueError, OverflowError):  # a watch may name series by what is not written down
        facts = [_key(contract, suite), batch_rows, files, distinct]
        body = msgpack.packb(facts, default=_array, datetime=True)
        put_hint(store, _name(contract.table, part.day), hashlib.sha256(body).digest() + body)


def prune(store: "Store", live: Mapping[str, set[date]]) -> None:
    """Delete the records of dates that some tables do not have any more."""
    kept = {store.path(_name(table, day)) for table, days in live.items() for day in days}
    folders = tuple(f"{store.path(FOLDER, table)}/" for table in live)
    with suppress(OSError):
        for file in listed(store.fs, store.path(FOLDER)):
            if file.path.startswith(folders) and file.path not in kept:
                store.fs.rm_file(file.path)


def _name(table: str, day: date) -> str:
    return f"{FOLDER}/{table}/{day.isoformat()}.msgpack"


def _key(contract: "Contract", suite: "Suite") -> str:
    """All that decides a tally beside the file's rows."""
    columns = [f"{column.name} {column.type} {column.class_}" for column in contract.columns]
    return "\n".join([suite.name, ranklake.__version__, gx_version(), *columns])


def _facts(tally: Tally) -> tuple[Any, ...]:
    return tally.checked, tally.failed, tally.seen, sorted(tally.runs), tally.parts


def _tally(facts: tuple[Any, ...]) -> Tally:
    checked, failed, seen, runs, parts = facts
    return Tally(checked, failed, list(seen), runs=set(runs), parts=list(parts))


def _unpack(body: bytes) -> Any:  # noqa: ANN401 - as it was packed; of lists tuples
    return msgpack.unpackb(body, use_list=False, strict_map_key=False, ext_hook=_from_array, timestamp=3)


def _array(value: object) -> Any:  # noqa: ANN401 - what the format has a word for
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray) and value.dtype.kind in "biuf":
        return msgpack.ExtType(_ARRAY, msgpack.packb([value.dtype.str, value.shape, value.tobytes()]))
    raise TypeError(type(value).__name__)


def _from_array(code: int, raw: bytes) -> Any:  # noqa: ANN401 - an array
    if code != _ARRAY:
        raise ValueError(code)
    kind, shape, values = msgpack.unpackb(raw)
    return np.frombuffer(values, kind).reshape(shape)
