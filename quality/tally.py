"""A partition as a check reads it, the tally of each expectation on it, and the stored tallies of its data files.

    <lake>/tallies/<table>/<date>.msgpack    one tally per live file and expectation; and sets of files that together
                                             repeat no key

A scan adds up the tallies of files. A tally is the same whether it was stored or computed from the rows. When a file
leaves the table (merged, erased, quarantined), its tallies are dropped. The record's key covers everything else that a
tally depends on: the suite with its contract and ranges, the stored columns, the versions of ranklake and Great
Expectations. A record that is lost, damaged or has another key costs one reading of the date.

Tallies of a watch name series by operational columns only (`is_storable`). Records are not compressed, so that an
erasure can find a subject's names in them and delete them.
"""

import hashlib
import json
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import msgpack  # type: ignore[import-untyped]
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

import ranklake
from ranklake.lake.contracts.checks.kind import empty_summary
from ranklake.lake.store.files import listed, put_hint
from ranklake.lake.tables.live_files import FILE_SCHEMA
from ranklake.quality.engine import gx_version
from ranklake.quality.results import AGAIN, CheckResult

if TYPE_CHECKING:
    from collections.abc import Collection

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.quality.suite import Expectation, Suite


@dataclass(slots=True)
class Tally:
    """Running result of an expectation on the rows of a partition read so far.

    Attributes
    ----------
    checked, failed
        Number of rows checked and failed.
    seen
        A few failing values (operational numbers), or the observation of a check of the whole partition.
    error
        Why the check could not be computed; empty if it could.
    absent
        Whether the table lacks one of its columns.
    parts
        Summaries of batches by a watch, until the watch is evaluated.
    expected, measured, unknown
        Expectation and measurements of a watch, or why it gave no verdict
        (`ranklake.lake.contracts.checks.kind.WatchResult`).
    again
        Whether a watch left out data that are too recent.
    passed
        The verdict, if the counts do not determine it.
    seconds
        Seconds of the partition's scan.
    runs
        Runs of failed rows, for checks of severity error or critical.
    """

    checked: int = 0
    failed: int = 0
    seen: list[str] = field(default_factory=list)
    error: str = ""
    absent: bool = False
    parts: list[Any] = field(default_factory=list)
    expected: str = ""
    measured: "Mapping[str, float] | None" = None
    unknown: str = ""
    again: bool = False
    passed: bool | None = None
    seconds: float | None = None
    runs: set[str] = field(default_factory=set)

    def add(self, other: "Tally") -> None:
        """Add the tally of the same expectation on other rows."""
        self.checked += other.checked
        self.failed += other.failed
        self.seen += other.seen[: SHOWN - len(self.seen)]
        self.error = self.error or other.error
        self.parts += other.parts
        self.runs |= other.runs


SHOWN: Final = 3
"""Maximum number of failing values in a result."""


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition at a version of its table, with its files (rows of `ranklake.lake.tables.live_files.files`)."""

    day: date
    version: int
    files: pa.Table

    @property
    def rows(self) -> int:
        """Number of rows, by the Delta log."""
        return int(pc.sum(self.files["num_records"]).as_py() or 0)

    def slim(self, keys: "Collection[str]" = ()) -> "Partition":
        """Return a copy with only those statistics of the log that the columns in `keys` need, to make tasks small."""
        wanted = {*FILE_SCHEMA.names, *(f"{side}.{name}" for name in keys for side in ("min", "max"))}
        names = [name for name in self.files.column_names if name in wanted]
        return replace(self, files=self.files.select(names).combine_chunks())


_MOST_ROWS: Final = 2**63 - 1
"""Upper bound of counts. A step of this number would imply as many rows in each of its series."""


MOST_RUNS: Final = 1_000
"""Maximum number of runs in a result."""


def result_of(expectation: "Expectation", tally: "Tally", moved: int, facts: dict[str, Any]) -> CheckResult:
    """Return the result of an expectation on a partition of which `moved` rows were moved to ``rejects`` for it."""
    status, message = _status(expectation, tally)
    is_judged = status in {"passed", "failed"}
    return CheckResult(
        **facts,
        expectation=expectation.kind,
        column=expectation.about,
        check_id=expectation.check.id,
        severity=expectation.check.severity,
        status=status,
        rows_checked=min(tally.checked, _MOST_ROWS) if is_judged else None,
        rows_failed=min(tally.failed, _MOST_ROWS) if is_judged else None,
        failed_ratio=tally.failed / tally.checked if is_judged and tally.checked else None,
        observed=", ".join(tally.seen) or None,
        message=f"{message or 'what is young was not judged'}{AGAIN}" if tally.again else message,
        quarantined_rows=moved,
        expected=(tally.expected or expectation.expected) if is_judged else None,
        measured=None if tally.measured is None else json.dumps(tally.measured),
        duration_s=tally.seconds,
        on_fail=expectation.on_fail,
        runs=json.dumps(sorted(tally.runs)[:MOST_RUNS]) if is_judged and tally.failed and tally.runs else None,
    )


def status_of(expectation: "Expectation", tally: "Tally") -> str:
    """Return the status: passed, failed, errored or skipped."""
    return _status(expectation, tally)[0]


def _status(expectation: "Expectation", tally: "Tally") -> tuple[str, str | None]:
    if tally.absent:
        return "skipped", "the table has no such column yet"
    if tally.error:
        return "errored", tally.error
    if tally.unknown:
        return "skipped", tally.unknown
    if not tally.checked and not expectation.judges_nothing:
        return "skipped", "there was no value to judge"
    passed = not tally.failed if tally.passed is None else tally.passed
    if expectation.level == "share":
        passed = 1 - tally.failed / tally.checked >= float(expectation.check.min or 0)
    elif expectation.mostly < 1 and tally.passed is None:
        passed = (tally.checked - tally.failed) / tally.checked >= expectation.mostly
    return ("passed", None) if passed else ("failed", expectation.wrong)


FOLDER: Final = "tallies"
LEAST_ROWS: Final = 1_000
"""Minimum number of rows of a partition with a record; fewer rows are read as fast."""
LARGE_ROWS: Final = 1_000_000
"""Minimum number of rows of a partition of which stored tallies are loaded to estimate the cost of its scan."""
_DIGEST_BYTES: Final = 32
_ARRAY: Final = 1


@dataclass(slots=True)
class FileTallies:
    """Stored tallies of the files of one partition.

    Attributes
    ----------
    files
        One tally per expectation, by path of the data file.
    distinct
        By check, paths of files whose rows together repeat no key; some may no longer be live.
    """

    files: dict[str, list[Tally]] = field(default_factory=dict)
    distinct: dict[str, frozenset[str]] = field(default_factory=dict)


def is_storable(contract: "Contract", suite: "Suite", part: "Partition") -> bool:
    """Whether tallies of a partition are stored: it has many captured rows, and tallies hold no classified values.

    Derived tables are excluded: their files are replaced often.
    """
    return (
        contract.kind == "fact"
        and part.rows >= LEAST_ROWS
        and not any(
            each.classified and each.watch is not None and each.watch.summarize is not empty_summary
            for each in suite.expectations
        )
    )


def unread_rows(store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int) -> int:
    """Return the number of rows of files without stored tallies. Small partitions count as unread."""
    if part.rows < LARGE_ROWS or not is_storable(contract, suite, part):
        return part.rows
    known = pa.array(list(load(store, contract, suite, part, batch_rows).files), pa.string())
    return int(pc.sum(part.files.filter(pc.invert(pc.is_in(part.files["path"], known)))["num_records"]).as_py() or 0)


def load(store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int) -> FileTallies:
    """Return the stored tallies of live files; empty if the record is missing, damaged, or has another key."""
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
    # A watch summarizes a large file batch by batch, so such tallies are valid for one batch size only.
    most_rows = min(stored_batch_rows, batch_rows) if stored_batch_rows != batch_rows else sys.maxsize
    live = set(part.files.filter(pc.less_equal(part.files["num_records"], most_rows))["path"].to_pylist())
    return FileTallies(
        {path: [_tally(facts) for facts in tallies] for path, tallies in files.items() if path in live},
        {check: frozenset(paths) for check, paths in distinct.items()},
    )


def save(
    store: "Store", contract: "Contract", suite: "Suite", part: "Partition", batch_rows: int, known: FileTallies
) -> None:
    """Write the record of a partition and replace an earlier one. Does nothing if the lake is read-only."""
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
    """Delete the records of dates that no longer exist; `live` has the dates with rows of each table."""
    kept = {store.path(_name(table, day)) for table, days in live.items() for day in days}
    folders = tuple(f"{store.path(FOLDER, table)}/" for table in live)
    with suppress(OSError):
        for file in listed(store.fs, store.path(FOLDER)):
            if file.path.startswith(folders) and file.path not in kept:
                store.fs.rm_file(file.path)


def _name(table: str, day: date) -> str:
    return f"{FOLDER}/{table}/{day.isoformat()}.msgpack"


def _key(contract: "Contract", suite: "Suite") -> str:
    """Return all facts that a tally depends on, except the rows of its file."""
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
