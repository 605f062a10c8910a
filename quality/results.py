"""Results of checks, how they are kept in ``quality_results``, and the incidents that they make up.

An incident opens with the first partition on which a check fails or cannot be computed. It closes when no partition is
left on which it does: the rows were repaired, or moved to ``rejects``. What opens again within a day of its close is
the same incident: a check that flaps is counted once, with its number of flaps. The rules are in ``incidents.sql``.
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


_EVERYTHING: Final = "TRUE"


@dataclass(frozen=True, slots=True)
class Incident:
    """One incident.

    Attributes
    ----------
    severity
        The worst that the check had in the meantime.
    opened, closed
        When a check found it, and when one found that it is over; None while it is open.
    partitions
        Dates that were hit, in order.
    rows_failed
        The most rows that failed at once on the dates that were hit.
    flaps
        How often it closed and opened again.
    message
        The last that was said; no value of a classified column.
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
        """Return plain JSON values."""
        return {
            **asdict(self),
            "opened": self.opened.isoformat(),
            "closed": None if self.closed is None else self.closed.isoformat(),
            "partitions": [day.isoformat() for day in self.partitions],
        }


def incidents(lake: "Lake") -> list[Incident]:
    """Return all incidents that the results of a lake tell: open ones first, the worst first, then the latest."""
    return [_incident(row) for row in query(lake, statement(_EVERYTHING)).to_pylist()]


def statement(where: str) -> str:
    """Return the SQL of one row per incident, by the rows of ``quality_results`` that a condition keeps."""
    return sql_text("ranklake.quality", "incidents").replace("{where}", where)


def _incident(row: Mapping[str, Any]) -> Incident:
    kept = {name: row[name] for name in Incident.__dataclass_fields__ if name != "partitions"}
    return Incident(**kept, partitions=tuple(row["dates"]))


BESIDE: Final = ("rejects", "quality_results")
"""Tables in which the rest of the evidence stands."""


class UnknownIncidentError(RanklakeError):
    """An incident that the results of checks do not tell."""


def evidence(lake: "Lake", incident: str) -> tuple[str, ...]:
    """Return the evidence of ``TABLE/CHECK`` as ``key=text``; of a check with several incidents, of all.

    Raises `UnknownIncidentError`.
    """
    known: dict[str, list[Incident]] = {}
    for known_incident in incidents(lake):
        known.setdefault(f"{known_incident.table}/{known_incident.check_id}", []).append(known_incident)
    if incident not in known:
        hint = did_you_mean(incident, known) if known else "no check has failures that stood"
        raise UnknownIncidentError(f"there is no incident {incident!r}", where="--where", hint=hint)
    matches = known[incident]
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
"""How messages end whose cause may pass: another process, a busy machine, a file that is back, a run that is young."""

_PLACE: Final = ["table", "partition_date"]


@dataclass(frozen=True, slots=True)
class CheckResult:
    """Result of one expectation on one partition: a row of ``quality_results``.

    Attributes
    ----------
    check_run
        The call of `ranklake.quality.check.run_checks` that it comes from.
    table, partition_date, table_version
        What was read.
    suite, expectation, column, check_id, severity
        What was checked against it.
    status
        passed; failed; errored (it could not be computed: nothing is known of the data); skipped (there was nothing to
        judge).
    rows_checked, rows_failed, failed_ratio
        Counts; None where nothing was judged.
    observed, message
        For people; no value of a classified column.
    quarantined_rows
        Rows that were taken out for it. A row that breaks several checks is taken out for the first.
    files_sha256
        `files_digest` of the partition's files as the check left them.
    expected
        What was expected, in words; None where nothing was judged.
    measured
        Figures of the partition, as JSON, that checks of later partitions compare with; None for most kinds.
    duration_s
        Time of the partition's scan, for all its checks together; None if unknown.
    contract_version
        Version of the contract that it was checked against; None for results of before.
    on_fail
        What a failure leads to; None for results of before.
    runs
        Runs of the rows that failed, as JSON; None where none did, or it is not known.
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
        """Whether a check of any severity failed or errored."""
        return self.status in {"failed", "errored"}

    @property
    def is_due(self) -> bool:
        """Whether it is to be judged again though nothing changed.

        What a user's suite cannot compute it cannot compute on the same files again, unless the cause may pass.
        """
        mine = self.status == "errored" and not self.check_id.startswith(OWN)
        return mine or (self.message or "").endswith(AGAIN)

    @property
    def alarming(self) -> bool:
        """Whether it should fail the command: unsound, and of an alarming severity."""
        return self.unsound and self.severity in ALARMS

    def row(self) -> dict[str, Any]:
        """Return the row of ``quality_results``."""
        return {**self._members(), "date": self.ts.date()}

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**self._members(), "partition_date": self.partition_date.isoformat(), "ts": self.ts.isoformat()}

    def _members(self) -> dict[str, Any]:
        # all plain values: nothing to copy
        return {member.name: getattr(self, member.name) for member in fields(self)}


@dataclass(frozen=True, slots=True)
class CheckReport:
    """What one call of `ranklake.quality.check.run_checks` found.

    Attributes
    ----------
    check_run
        Its identity in ``quality_results``.
    results
        Of the partitions that were new, in the order of tables and dates.
    unchanged
        Partitions whose files and suite are as they were when they were last checked; nothing was run on them.
    standing
        Failures of those that still stand: found by an earlier run, and their rows are still there.
    """

    check_run: str
    results: tuple[CheckResult, ...]
    unchanged: int
    standing: tuple[CheckResult, ...]

    @property
    def passed(self) -> bool:
        """True unless a check of severity error or critical failed or errored, now or on what has not changed since."""
        return not any(result.alarming for result in (*self.results, *self.standing))

    @property
    def partitions(self) -> int:
        """How many partitions were checked."""
        return len({(result.table, result.partition_date) for result in self.results})

    @property
    def unsound(self) -> tuple[CheckResult, ...]:
        """Results where something is wrong, warnings among them."""
        return tuple(result for result in self.results if result.unsound)

    @property
    def quarantined_rows(self) -> int:
        """Rows that were taken out of their tables."""
        return sum(result.quarantined_rows for result in self.results)

    def summary(self) -> dict[str, Any]:
        """Return plain JSON values: the verdict, counts, and every result that is not sound."""
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
    """Return what several calls found as one summary: that of facts, and that of what was rolled up from them."""
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
    """The last word on a partition.

    Attributes
    ----------
    suite, files_sha256
        What was checked against which files.
    errored
        Whether something could not be computed, so that the partition is not done with.
    open
        Failures whose rows are still in the table; none of a partition that is gone.
    """

    suite: str
    files_sha256: str
    errored: bool
    open: tuple[CheckResult, ...]


def last_checks(lake: "Lake", tables: Collection[str]) -> dict[tuple[str, date], LastCheck]:
    """Return the last word on every partition of some tables that was ever checked."""
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
    if notable.num_rows:  # all columns of a date that is checked each minute are many times as much
        times = newest.join(notable.group_by(_PLACE).aggregate([]), _PLACE, join_type="inner")
        notable = _rows_of_times(lake, times, list(CheckResult.__dataclass_fields__))
        notable = notable.filter(_is_notable(notable))
    by_partition: dict[tuple[str, date], list[CheckResult]] = {}
    for row in notable.to_pylist():
        by_partition.setdefault((row["table"], row["partition_date"]), []).append(CheckResult(**row))
    there = live_partitions(lake, by_partition)
    for where, results in by_partition.items():
        failures = (one for one in results if one.unsound and where in there)
        still = (one for one in failures if not one.rows_failed or (one.quarantined_rows or 0) < one.rows_failed)
        last = known[where]
        errored = any(one.is_due for one in results)
        known[where] = LastCheck(last.suite, last.files_sha256, errored=errored, open=tuple(still))
    return known


def _is_notable(rows: pa.Table) -> pa.ChunkedArray:
    """Whether results say more than that all is well."""
    unsound = pc.is_in(rows["status"], value_set=pa.array(["failed", "errored"]))
    return pc.or_(unsound, pc.fill_null(pc.ends_with(rows["message"], AGAIN), fill_value=False))


def _rows_of_times(lake: "Lake", newest: pa.Table, columns: Sequence[str]) -> pa.Table:
    """Return columns of the results of each place's time; `newest` has `_PLACE` and ``ts_max``."""
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
    """Return those of some partitions that have rows, by the Delta logs: of the others no failure stands."""
    days: dict[str, set[date]] = {}
    for table, day in partitions:
        days.setdefault(table, set()).add(day)
    live = {table: live_files(delta_table(lake.store, table), dates)["date"] for table, dates in days.items()}
    return {(table, day) for table, dates in live.items() for day in pc.unique(dates).to_pylist()}
