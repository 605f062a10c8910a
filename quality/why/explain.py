"""Explains failures: counts the failing rows of a partition by each facet, and names the values that stand out."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.checks.registry import failures
from ranklake.lake.contracts.edge import row_values
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.query.literal import literal
from ranklake.lake.query.sql import session
from ranklake.lake.tables.live_files import DamagedFileError, files
from ranklake.lake.tables.read import read_batches, read_some
from ranklake.lake.tables.tables import latest
from ranklake.printable import printable
from ranklake.quality.keys import MOST_REPEATED, repeated_keys
from ranklake.quality.release import REJECTS
from ranklake.quality.report import state
from ranklake.quality.report.state import FailingKeys
from ranklake.quality.results import RESULTS
from ranklake.quality.suite import Expectation, Suite, as_stored, compile_suite, select_contracts
from ranklake.quality.suites.asking import own_suites
from ranklake.quality.tally import Partition
from ranklake.quality.why.explanation import CLASSIFIED, Explanation, shown_cause
from ranklake.quality.why.facets import Counts, causes

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract, Metric
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables
    from ranklake.quality.report.state import CheckKey
    from ranklake.quality.suites.own import OwnSuites

BATCH_ROWS: Final = 250_000
_KEYED: Final = ("unique", "duplicates")

Judged = tuple[pa.Table, pa.ChunkedArray]


class TooManyKeysError(Exception):
    """More than `MOST_REPEATED` keys repeat."""


def is_known(expectation: "Expectation") -> bool:
    """Whether a check fails on single rows, so that failing rows can be named."""
    return expectation.is_scanned and (expectation.per_row or expectation.check.kind in _KEYED)


def stored_rows(
    store: "Store",
    contract: "Contract",
    suite: "Suite",
    part: "Partition",
    expectation: "Expectation",
    columns: Sequence[str],
) -> Iterator[Judged]:
    """Yield the rows of a partition with some of their columns, and a mask of the failing rows.

    A check counts all but one of the rows that share a key as failing. The mask contains all of them, since the correct
    row is unknown.

    Raises
    ------
    TooManyKeysError
        More than `MOST_REPEATED` keys repeat.
    """
    keyed = expectation.check.kind in _KEYED
    judged = [name for name in expectation.check.columns if not keyed or name not in contract.partition]
    about = () if expectation.where is None else expectation.where.columns
    names = [name for name in contract.names if name in {*judged, *about, *columns}]
    types = arrow_schema(contract)
    keys = repeated_keys(store, contract, part.files, judged) if keyed else None
    if keys is not None and keys.num_rows > MOST_REPEATED:
        raise TooManyKeysError
    for rows in read_batches(store, contract, part.files, names, batch_rows=BATCH_ROWS, dictionaries=True):
        plain = pa.table({name: rows[name].cast(types.field(name).type) for name in judged})
        failed = failures(expectation.check, plain, suite.ranges) if keys is None else _rows_with_keys(plain, keys)
        yield rows, failed if expectation.where is None else pc.and_(failed, expectation.where.mask(rows))


def taken_out(
    tables: "Tables", contract: "Contract", day: "date", expectation: "Expectation", columns: Sequence[str]
) -> Iterator[Judged]:
    """Yield the rows of a date that were moved to ``rejects`` for a check, with some of their columns; all fail.

    Rows that cannot be read back as rows of the table are left out.
    """
    types = arrow_schema(contract)
    names = ["table", "reason", "row"]
    wanted = f"{expectation.check.id.partition(':')[0]}: "
    handle = latest(tables, REJECTS)
    for _, rows in () if handle is None else read_some(tables, packaged(REJECTS), files(handle), names):
        matching = pc.and_(pc.equal(rows["table"], contract.table), pc.starts_with(rows["reason"], wanted))
        values_of_rows = [row_values(contract, text) for text in rows.filter(matching)["row"].to_pylist()]
        values_of_day = [values for values in values_of_rows if values is not None and values.get("date") == day]
        if values_of_day:
            moved_rows = pa.Table.from_pylist(values_of_day, schema=types).select(list(columns))
            yield moved_rows, pa.chunked_array([pa.repeat(pa.scalar(value=True), moved_rows.num_rows)])


def _rows_with_keys(rows: pa.Table, keys: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the rows whose key is one of `keys`."""
    if not keys.num_rows:
        return pa.chunked_array([pa.repeat(pa.scalar(value=False), rows.num_rows)])
    numbered = rows.append_column("_row", pa.array(range(rows.num_rows)))
    matches = numbered.join(keys, keys.column_names, join_type="left semi")["_row"]
    return pc.is_in(numbered["_row"], value_set=matches.combine_chunks())


SAMPLES: Final = 3
ALIKE: Final = 5
_FAILURES: Final = """
SELECT "table", partition_date, check_id, "column", severity, message, observed, rows_checked
FROM results
WHERE state IN ('failed', 'quarantined')
ORDER BY
  CASE severity WHEN 'critical' THEN 0 WHEN 'error' THEN 1 WHEN 'warning' THEN 2 ELSE 3 END,
  CASE state WHEN 'failed' THEN 0 ELSE 1 END, rows_failed DESC, "table", partition_date, check_id
"""

_STATES: Final = "SELECT check_id, state FROM results"


def explain(
    lake: "Lake",
    tables: Sequence[str] | None = None,
    *,
    day: date | None = None,
    check_id: str | None = None,
    limit: int | None = None,
) -> "Iterator[Explanation]":
    """Yield an explanation of each failure that the last check of a partition found, the worst first.

    Reads the current rows, and those that were moved to ``rejects`` for the check. Nothing is written. Values of a
    classified column are never part of an explanation.

    Parameters
    ----------
    tables, day, check_id
        Only failures of these tables, this partition, this check.
    limit
        Maximum number of explanations.

    Raises
    ------
    UnknownTableError, ranklake.quality.suite.NotCheckedError
        A name in `tables` is no table, or a system table.
    ranklake.quality.suites.folder.SuitesError
        The configured folder of users' suites does not exist.
    """
    contracts = select_contracts(lake.contracts(), tables)
    sources: Sources | None = None
    for row in failed_results(lake, tuple(contracts), day, check_id)[:limit]:
        sources = sources or Sources(lake, contracts)
        yield sources.explanation(row)


def result_counts(
    lake: "Lake", tables: Sequence[str] | None = None, *, day: date | None = None, check_id: str | None = None
) -> Counter[str]:
    """Return the number of results of the last checks by state; empty if nothing was checked yet.

    Parameters and errors are those of `explain`.
    """
    contracts = select_contracts(lake.contracts(), tables)
    results = _rows(lake, tuple(contracts), day, _STATES)
    return Counter(row["state"] for row in results if check_id is None or row["check_id"] == check_id)


def failed_results(
    lake: "Lake", tables: Sequence[str], day: date | None = None, check_id: str | None = None
) -> list[dict[str, Any]]:
    """Return the failures of the last checks, worst first: fields of `Explanation` and the number of rows checked."""
    rows = _rows(lake, tables, day, _FAILURES)
    return [row for row in rows if check_id is None or row["check_id"] == check_id]


def _rows(lake: "Lake", tables: Sequence[str], day: date | None, text: str) -> list[dict[str, Any]]:
    """Return the rows of a query over ``results`` of some tables, and of one partition if `day` is given."""
    where = [f'"table" IN ({", ".join(map(literal, tables))})']
    if day is not None:
        where.append(f"partition_date = DATE '{day}'")
    ctx = session(lake, [RESULTS])  # keep a reference: its files are deleted with it
    rows: list[dict[str, Any]] = ctx.sql(state.on_results(" AND ".join(where), text)).to_arrow_table().to_pylist()
    return rows


class _UnknownError(Exception):
    """A failure that cannot be explained; the message is the reason."""


class Sources:
    """Contracts, metrics and suites that the explanations of one call share."""

    def __init__(self, lake: "Lake", contracts: "Mapping[str, Contract]") -> None:
        self._lake, self._contracts = lake, contracts
        self._metrics: Mapping[str, Metric] = lake.catalog.metrics()
        self._own: OwnSuites = own_suites(lake)

    def explanation(self, row: Mapping[str, Any]) -> Explanation:
        """Return the explanation of one failed result."""
        plain = Explanation(**{name: value for name, value in row.items() if name != "rows_checked"})
        try:
            return self._explain_failure(plain, *self._locate(plain))
        except _UnknownError as error:
            return replace(plain, unknown=str(error))
        except TooManyKeysError:
            return replace(plain, unknown="too many keys repeat")
        except DamagedFileError as error:
            return replace(plain, unknown=f"a data file cannot be read: {error}")

    def samples(self, plain: Explanation) -> tuple[dict[str, Any], ...]:
        """Return the keys of a few rows that fail a check; empty if they are unknown."""
        keys: list[dict[str, Any]] = []
        try:
            contract, suite, part, expectation = self._locate(plain)
            columns = tuple(name for name in contract.grain if name in contract)
            for rows, failed in self._rows_with_failures(contract, suite, part, expectation, columns):
                keys += _keys(contract, rows.filter(failed).slice(0, SAMPLES - len(keys)))
                if len(keys) == SAMPLES:
                    break
        except (_UnknownError, TooManyKeysError, DamagedFileError):
            return ()
        return tuple(keys)

    def _locate(self, plain: Explanation) -> "tuple[Contract, Suite, Partition, Expectation]":
        """Return the contract, suite, partition and check of a failure. Raises `_UnknownError`."""
        handle = latest(self._lake.tables, plain.table)
        if handle is None:
            raise _UnknownError("the table is gone")
        contract = as_stored(self._lake.tables, self._contracts[plain.table])
        suite = compile_suite(self._contracts[plain.table], self._metrics, self._own.of(contract))
        expectation = next((each for each in suite.expectations if _same_expectation(each, plain)), None)
        if expectation is None:
            raise _UnknownError("the check is no longer in the suite")
        if not is_known(expectation):
            raise _UnknownError("it judges the partition or its series as a whole, not single rows")
        day = plain.partition_date
        return contract, suite, Partition(day, handle.version(), files(handle, [day])), expectation

    def _rows_with_failures(
        self, contract: "Contract", suite: Suite, part: Partition, expectation: Expectation, columns: Sequence[str]
    ) -> "Iterator[Judged]":
        """Yield the rows of a partition and those moved to ``rejects`` for a check, with a mask of the failing rows."""
        yield from stored_rows(self._lake.store, contract, suite, part, expectation, columns)
        yield from taken_out(self._lake.tables, contract, part.day, expectation, columns)

    def _explain_failure(
        self, plain: Explanation, contract: "Contract", suite: Suite, part: Partition, expectation: Expectation
    ) -> Explanation:
        counts = Counts(contract, expectation.check.columns)
        columns = tuple(dict.fromkeys((*counts.columns, *(name for name in contract.grain if name in contract))))
        samples: list[dict[str, Any]] = []
        for rows, failed in self._rows_with_failures(contract, suite, part, expectation, columns):
            counts.add(rows, failed)
            if len(samples) < SAMPLES and pc.any(failed).as_py():
                samples += _keys(contract, rows.filter(failed).slice(0, SAMPLES - len(samples)))
        total = replace(plain, rows=counts.total.rows, failed=counts.total.failed, samples=tuple(samples))
        if not counts.total.failed:
            return replace(total, unknown="no row fails it any more: check again")
        by_facet, facets = counts.by_facet(self._lake)
        candidates = causes(by_facet, [name for name, facet in facets.items() if facet.ordered])
        if not candidates:
            return replace(total, unknown="all rows have everything in common")
        outstanding = [cause for cause in candidates if cause.stands_out]
        if not outstanding:
            return replace(total, nearest=shown_cause(candidates[0], facets[candidates[0].facet]))
        alike = [cause for cause in outstanding[1:] if cause.same_rows(outstanding[0])]
        return replace(
            total,
            best=shown_cause(outstanding[0], facets[outstanding[0].facet]),
            alike=tuple(shown_cause(cause, facets[cause.facet]) for cause in alike[:ALIKE]),
        )


def _same_expectation(expectation: Expectation, plain: Explanation) -> bool:
    return expectation.check.id == plain.check_id and expectation.about == plain.column


def _keys(contract: "Contract", rows: pa.Table) -> list[dict[str, Any]]:
    """Return the grain of some rows; classified values are replaced by `CLASSIFIED`."""
    names = [name for name in contract.grain if name in rows.column_names]
    hidden = {name for name in names if contract.column(name).class_ != "operational"}
    return [
        {name: CLASSIFIED if name in hidden and row[name] is not None else _value_text(row[name]) for name in names}
        for row in rows.select(names).to_pylist()
    ]


def _value_text(value: object) -> object:
    return value if value is None or isinstance(value, bool | int | float) else printable(str(value))


MOST_CHECKS: Final = 30
MOST_ROWS: Final = 5_000_000
"""Maximum number of rows of all partitions that are read for samples; ``ranklake quality why`` reads the others."""


def samples(lake: "Lake") -> "dict[CheckKey, FailingKeys]":
    """Return keys of failing rows by table, check and column, for the worst checks whose rows can be named.

    The keys are from the last partition on which the check fails. Classified values are left out.
    """
    keys: dict[CheckKey, FailingKeys] = {}
    remaining_rows = MOST_ROWS
    sources: Sources | None = None
    for failure, rows in _last_failures(lake):
        if len(keys) >= MOST_CHECKS:
            break
        if rows > remaining_rows:
            continue
        sources = sources or Sources(lake, select_contracts(lake.contracts(), None))
        sample = sources.samples(failure)
        remaining_rows -= rows
        if sample:
            keys[failure.table, failure.check_id, failure.column] = FailingKeys(failure.partition_date, sample)
    return keys


def _last_failures(lake: "Lake") -> Iterator[tuple[Explanation, int]]:
    """Yield the failure of each check on its last partition, the worst first, and the number of rows to read."""
    rows = failed_results(lake, tuple(select_contracts(lake.contracts(), None)))
    last: dict[CheckKey, date] = {}
    for row in rows:
        key = row["table"], row["check_id"], row["column"]
        if key not in last or last[key] < row["partition_date"]:
            last[key] = row["partition_date"]
    for row in rows:
        if last[row["table"], row["check_id"], row["column"]] == row["partition_date"]:
            plain = {name: value for name, value in row.items() if name != "rows_checked"}
            yield Explanation(**plain), row["rows_checked"] or 0
