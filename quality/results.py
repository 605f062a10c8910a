"""Results of checks, their table ``quality_results``, and the incidents derived from them.

An incident opens with the first partition on which a check fails or cannot be computed. It closes when no such
partition is left, because the rows were repaired or moved to ``rejects``. A check that fails again within a day of the
close reopens the same incident, which counts the flaps. The rules are in ``incidents.sql``.
"""

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.runs.asking import sql_text
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import ALARMS
from ranklake.lake.query.scan import live_files
from ranklake.lake.query.sql import query
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.tables import delta_table, latest
from ranklake.quality.suite import OWN

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake


_ALL_ROWS: Final = "TRUE"


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident: a check of a table that failed during some time.

    Attributes
    ----------
    severity
        The highest severity of the check during the incident.
    opened, closed
        Time of the check that found it, and of the check that found it over; None while it is open.
    partitions
        Dates of the affected partitions, in order.
    rows_failed
        The largest number of rows that failed at one time on these dates.
    flaps
        How often it closed and opened again.
    message
        The latest message of the check; no value of a classified column.
    """

    table: str
    check_id: str
    column: str | None
    severity: str
    opened: datetime
    closed: datetime | None
    partitions: tuple[date, ...]
    rows_failed: int
    flaps: int
    message: str | None

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {
            **asdict(self),
            "opened": self.opened.isoformat(),
            "closed": None if self.closed is None else self.closed.isoformat(),
            "partitions": [day.isoformat() for day in self.partitions],
        }


def incidents(lake: "Lake") -> list[Incident]:
    """Return all incidents of a lake: open ones first, then by severity, then the latest."""
    return [_incident(row) for row in query(lake, statement(_ALL_ROWS)).to_pylist()]


def statement(where: str) -> str:
    """Return the SQL of one row per incident, from the rows of ``quality_results`` that satisfy a condition."""
    return sql_text("ranklake.quality", "incidents").replace("{where}", where)


def _incident(row: Mapping[str, Any]) -> Incident:
    values = {name: row[name] for name in Incident.__dataclass_fields__ if name != "partitions"}
    return Incident(**values, partitions=tuple(row["dates"]))


BESIDE: Final = ("rejects", "quality_results")
"""Tables with further evidence of an incident."""


class UnknownIncidentError(RanklakeError):
    """No result of a check belongs to an incident of this name."""


def evidence(lake: "Lake", incident: str) -> tuple[str, ...]:
    """Return the evidence of the incidents of ``TABLE/CHECK`` as ``key=text`` conditions on tables and dates.

    Raises `UnknownIncidentError`.
    """
    by_name: dict[str, list[Incident]] = {}
    for known_incident in incidents(lake):
        by_name.setdefault(f"{known_incident.table}/{known_incident.check_id}", []).append(known_incident)
    if incident not in by_name:
        hint = did_you_mean(incident, by_name) if by_name else "no check has failures that stood"
        raise UnknownIncidentError(f"there is no incident {incident!r}", where="--where", hint=hint)
    matches = by_name[incident]
    first = min(day for known_incident in matches for day in known_incident.partitions)
    ends = [
        max([*known_incident.partitions, known_incident.closed.date()])
        for known_incident in matches
        if known_incident.closed is not None
    ]
    last = max(ends).isoformat() if len(ends) == len(matches) else ""
    tables = (matches[0].table, *BESIDE)
    return (*(f"table={name}" for name in tables), f"date={first.isoformat()}..{last}")


RESULTS: Final = "quality_results"
AGAIN: Final = "; judged again at the next check"
"""Suffix of messages about temporary causes: another process, a busy machine, a file that returned, a young run."""

_PLACE: Final = ["table", "partition_date"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one expectation on one partition: a row of ``quality_results``.

    Attributes
    ----------
    check_run
        Id of the call of `ranklake.quality.check.run_checks`.
    table, partition_date, table_version
        The partition, and the version of the table that was read.
    suite, expectation, column, check_id, severity
        The check that was evaluated.
    status
        passed; failed; errored (it could not be computed: the state of the data is unknown); skipped (there was no
        value to check).
    rows_checked, rows_failed, failed_ratio
        Counts; None if nothing was checked.
    observed, message
        Texts for people; no value of a classified column.
    quarantined_rows
        Rows moved to ``rejects`` for this check. A row that fails several checks is counted for the first.
    files_sha256
        `files_digest` of the partition's files after the check.
    expected
        The expectation in words; None if nothing was checked.
    measured
        Figures of the partition as JSON, for comparison by checks of later partitions; None for most kinds.
    duration_s
        Seconds of the partition's scan, for all its checks together; None if unknown.
    contract_version
        Version of the contract; None in older results.
    on_fail
        Action after a failure; None in older results.
    runs
        Runs of the rows that failed, as a JSON list; None if no row failed or the runs are unknown.
    """

    check_run: str
    table: str
    partition_date: date
    table_version: int
    suite: str
    expectation: str
    column: str | None
    check_id: str
    severity: str
    status: str
    rows_checked: int | None
    rows_failed: int | None
    failed_ratio: float | None
    observed: str | None
    message: str | None
    quarantined_rows: int
    gx_version: str
    files_sha256: str
    ts: datetime
    expected: str | None = None
    measured: str | None = None
    duration_s: float | None = None
    contract_version: int | None = None
    on_fail: str | None = None
    runs: str | None = None

    @property
    def unsound(self) -> bool:
        """Whether the check failed or errored, with any severity."""
        return self.status in {"failed", "errored"}

    @property
    def is_due(self) -> bool:
        """Whether to evaluate it again although nothing changed.

        A user's suite that failed on these files would fail again, unless the cause may be temporary.
        """
        is_own_error = self.status == "errored" and not self.check_id.startswith(OWN)
        return is_own_error or (self.message or "").endswith(AGAIN)

    @property
    def alarming(self) -> bool:
        """Whether it fails the command: failed or errored, with severity error or critical."""
        return self.unsound and self.severity in ALARMS

    def row(self) -> dict[str, Any]:
        """Return its row of ``quality_results``."""
        return {**self._members(), "date": self.ts.date()}

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        return {**self._members(), "partition_date": self.partition_date.isoformat(), "ts": self.ts.isoformat()}

    def _members(self) -> dict[str, Any]:
        # the values are immutable, so no copies are needed
        return {member.name: getattr(self, member.name) for member in fields(self)}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """Results of one call of `ranklake.quality.check.run_checks`.

    Attributes
    ----------
    check_run
        Id of the call in ``quality_results``.
    results
        Results of the new partitions, by table and date.
    unchanged
        Number of partitions whose files and suite did not change since the last check; no check ran on them.
    standing
        Failures on unchanged partitions: an earlier check found them, and their rows are still in the table.
    """

    check_run: str
    results: tuple[CheckResult, ...]
    unchanged: int
    standing: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """False if a check of severity error or critical failed or errored, now or earlier on unchanged partitions."""
        return not any(result.alarming for result in (*self.results, *self.standing))

    @property
    def partitions(self) -> int:
        """Number of partitions that were checked."""
        return len({(result.table, result.partition_date) for result in self.results})

    @property
    def unsound(self) -> tuple[CheckResult, ...]:
        """Results that failed or errored, including warnings."""
        return tuple(result for result in self.results if result.unsound)

    @property
    def quarantined_rows(self) -> int:
        """Number of rows moved to ``rejects``."""
        return sum(result.quarantined_rows for result in self.results)

    def summary(self) -> dict[str, Any]:
        """Return plain JSON values: the verdict, counts, and every failed or errored result."""
        return {
            "check_run": self.check_run,
            "passed": self.passed,
            "partitions": self.partitions,
            "unchanged": self.unchanged,
            "checks": dict(sorted(Counter(result.status for result in self.results).items())),
            "quarantined_rows": self.quarantined_rows,
            "unsound": [result.plain() for result in self.unsound],
            "standing": [result.plain() for result in self.standing],
        }


def merged_summary(*summaries: dict[str, Any]) -> dict[str, Any]:
    """Return the summaries of several calls as one, such as those of facts and of derived tables."""
    counts: Counter[str] = Counter()
    for summary in summaries:
        counts.update(summary["checks"])
    return {
        "check_run": ", ".join(summary["check_run"] for summary in summaries),
        "passed": all(summary["passed"] for summary in summaries),
        **{
            name: sum(summary[name] for summary in summaries)
            for name in ("partitions", "unchanged", "quarantined_rows")
        },
        "checks": dict(sorted(counts.items())),
        **{name: [result for summary in summaries for result in summary[name]] for name in ("unsound", "standing")},
    }


@dataclass(frozen=True, slots=True)
class LastCheck:
    """The latest check of a partition.

    Attributes
    ----------
    suite, files_sha256
        The suite, and the digest of the checked files.
    errored
        Whether a check could not be computed, so that the partition has to be checked again.
    open
        Failures whose rows are still in the table; empty if the partition was deleted.
    """

    suite: str
    files_sha256: str
    errored: bool
    open: tuple[CheckResult, ...]


def last_checks(lake: "Lake", tables: Collection[str]) -> dict[tuple[str, date], LastCheck]:
    """Return the latest check of every partition of some tables that was ever checked."""
    when = read(lake.tables, contract(RESULTS), [*_PLACE, "ts"])
    when = when.filter(pc.is_in(when["table"], value_set=pa.array(list(tables), pa.string())))
    newest = when.group_by(_PLACE).aggregate([("ts", "max")])
    rows = _rows_of_times(lake, newest, [*_PLACE, "ts", "suite", "files_sha256", "status", "message"])
    facts = rows.group_by([*_PLACE, "suite", "files_sha256"]).aggregate([])
    known: dict[tuple[str, date], LastCheck] = {
        (row["table"], row["partition_date"]): LastCheck(row["suite"], row["files_sha256"], errored=False, open=())
        for row in facts.to_pylist()
    }
    notable = rows.filter(_is_notable(rows))
    if notable.num_rows:  # reading all columns of all results would take many times as long
        times = newest.join(notable.group_by(_PLACE).aggregate([]), _PLACE, join_type="inner")
        notable = _rows_of_times(lake, times, list(CheckResult.__dataclass_fields__))
        notable = notable.filter(_is_notable(notable))
    by_partition: dict[tuple[str, date], list[CheckResult]] = {}
    for row in notable.to_pylist():
        by_partition.setdefault((row["table"], row["partition_date"]), []).append(CheckResult(**row))
    live = live_partitions(lake, by_partition)
    for place, results in by_partition.items():
        failures = (result for result in results if result.unsound and place in live)
        open_failures = (
            result
            for result in failures
            if not result.rows_failed or (result.quarantined_rows or 0) < result.rows_failed
        )
        last = known[place]
        errored = any(result.is_due for result in results)
        known[place] = LastCheck(last.suite, last.files_sha256, errored=errored, open=tuple(open_failures))
    return known


def _is_notable(rows: pa.Table) -> pa.ChunkedArray:
    """Return a mask of the results that failed, errored, or have to be evaluated again."""
    unsound = pc.is_in(rows["status"], value_set=pa.array(["failed", "errored"]))
    return pc.or_(unsound, pc.fill_null(pc.ends_with(rows["message"], AGAIN), fill_value=False))


def _rows_of_times(lake: "Lake", newest: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return columns of the results at each partition's time; `newest` has `_PLACE` and ``ts_max``."""
    known, times = contract(RESULTS), pc.unique(newest["ts_max"])
    live = live_files(latest(lake.tables, RESULTS))
    if {"min.ts", "max.ts"} <= set(live.column_names):
        wanted = np.sort(times.cast(pa.int64()).to_numpy())
        low, high = (live[name].cast(times.type).cast(pa.int64()) for name in ("min.ts", "max.ts"))
        is_bounded = pc.and_(low.is_valid(), high.is_valid()).to_numpy()
        first = np.searchsorted(wanted, low.fill_null(0).to_numpy(), "left")
        past = np.searchsorted(wanted, high.fill_null(0).to_numpy(), "right")
        live = live.filter(pa.array(~is_bounded | (first < past)))
    parts = [arrow_schema(known).empty_table().select(columns)]
    for _, rows in read_some(lake.tables, known, live, columns):
        parts.append(rows.filter(pc.is_in(rows["ts"], value_set=times)))
    rows = pa.concat_tables(parts).join(newest, _PLACE, join_type="inner")
    return rows.filter(pc.field("ts") == pc.field("ts_max")).select(columns)


def live_partitions(lake: "Lake", partitions: Collection[tuple[str, date]]) -> set[tuple[str, date]]:
    """Return those of the given partitions that have rows, by the Delta logs. Others have no open failures."""
    days: dict[str, set[date]] = {}
    for table, day in partitions:
        days.setdefault(table, set()).add(day)
    live = {table: live_files(delta_table(lake.store, table), dates)["date"] for table, dates in days.items()}
    return {(table, day) for table, dates in live.items() for day in pc.unique(dates).to_pylist()}
