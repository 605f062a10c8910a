"""Gathers the state of quality from queries over ``quality_results`` and from the partitions in the Delta logs."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa

from ranklake.insight.runs.asking import QueriedFacts, read_by
from ranklake.lake.query.sql import session
from ranklake.lake.rollups.registry import ROLLUPS
from ranklake.lake.tables.live_files import files, files_digest
from ranklake.lake.tables.tables import delta_table, latest
from ranklake.quality.report import state
from ranklake.quality.report.state import (
    ERRORED,
    FAILING,
    PASSED,
    QUARANTINED,
    SKIPPED,
    STATES,
    UNCHECKED,
    WARNING,
    CheckState,
    History,
    PartitionState,
    QualityOverview,
    QualityState,
    Sources,
    TableState,
    Totals,
    state_of,
    worst_state,
)
from ranklake.quality.results import RESULTS
from ranklake.quality.results import statement as every_incident
from ranklake.quality.suite import KINDS, Suite, compile_suite
from ranklake.quality.suites.asking import own_suites

if TYPE_CHECKING:
    from datafusion import SessionContext

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables
    from ranklake.quality.report.state import CheckKey, FailingKeys

_REPEATED: Final = "steps_unique"
_NAME: Final = re.compile(r"[A-Za-z0-9_]+")
_REJECTED: Final = (
    "SELECT run, rank, reason, count(*) FROM rejects WHERE \\\"table\\\" = '{table}' GROUP BY run, rank, reason"
)
_WORD: Final = re.compile(r"[A-Za-z0-9_:.]+")


def next_step(table: str, kind: str, check_id: str, state: str, last: date | None) -> tuple[str, str]:
    """Return advice and a command; both empty for a check that passed, and for a table with an invalid name."""
    if state not in {ERRORED, FAILING, WARNING, QUARANTINED} or not _NAME.fullmatch(table):
        return "", ""
    if state == ERRORED:
        advice = "Nothing is known: mend the cause that its message names, and check again."
        return advice, f"ranklake check {table}"
    if state == QUARANTINED:
        advice = "Its failing rows are in the table rejects. Find out which runs recorded them."
        return advice, f'ranklake sql "{_REJECTED.format(table=table)}"'
    if check_id == _REPEATED:
        advice = "A run's name was used again, or two processes recorded one rank: split the run into attempts."
        return advice, "ranklake renumber RUN"
    if kind == "derived":
        advice = "It was computed from other tables: mend what fails in those that it is made from, then roll up again."
        return advice, "ranklake rollup"
    advice = "The rows were recorded so: see what they have in common, and mend what records them."
    check = f" --check {check_id}" if _WORD.fullmatch(check_id) else ""
    return advice, f"ranklake quality why {table} --date {last}{check}"


Rows = list[dict[str, Any]]
TABLES: Final = (RESULTS, "quality_releases", "ingest_plans")
_ALARMS: Final = ("critical", "error")
_COLUMNS: Final = (
    *("table", "partition_date", "check_id", "column", "severity", "status", "rows_checked", "rows_failed"),
    *("quarantined_rows", "observed", "message", "table_version", "suite", "files_sha256", "on_fail", "ts"),
)
"""The columns of results that the queries read."""


def results_session(lake: "Lake") -> "SessionContext":
    """Return a session with the results in memory, so that a dozen queries read them once."""
    ctx = session(lake, TABLES)
    names = ", ".join(f'"{name}"' for name in _COLUMNS)
    rows = ctx.sql(f"SELECT {names} FROM {RESULTS}").to_arrow_table()  # noqa: S608 - no foreign text
    ctx.deregister_table(RESULTS)
    empty = pa.RecordBatch.from_pylist([], rows.schema)
    ctx.register_record_batches(RESULTS, [rows.to_batches() or [empty]])
    return ctx


def overview(lake: "Lake", ask: Callable[[str], Rows], where: str) -> QualityOverview:
    """Return trend, incidents and holds, from the results that satisfy `where`."""
    incidents, held = ask(every_incident(where)), ask(state.held_partitions_sql(where))
    answers = (
        QueriedFacts(state.trend(where), tuple(ask(state.trend(where)))),
        QueriedFacts(state.incidents(where), tuple(incidents[: state.MOST_INCIDENTS])),
        QueriedFacts(state.incident_counts(where), (_counts(incidents),)),
        QueriedFacts(state.held_partitions_sql(where), tuple(held)),
        QueriedFacts(state.held_counts(where), (_held_counts(held),)),
    )
    handles = {name: delta_table(lake.store, name) for name in TABLES}
    versions = {name: None if handle is None else handle.version() for name, handle in handles.items()}
    return QualityOverview(*(replace(facts, versions=read_by(facts.sql, versions)) for facts in answers))


def _counts(incidents: Rows) -> dict[str, Any]:
    """Return the counts of ``incident_counts.sql`` from rows in memory."""
    alarm_flags = [row["severity"] in _ALARMS for row in incidents if row["state"] == "open"]
    return {
        "open_alarms": sum(alarm_flags),
        "open_others": len(alarm_flags) - sum(alarm_flags),
        "closed": len(incidents) - len(alarm_flags),
        "flaps": sum(row["flaps"] for row in incidents),
    }


def _held_counts(held: Rows) -> dict[str, Any]:
    """Return the counts of ``held_counts.sql`` from rows in memory."""
    return {"partitions": len(held), "rows_failed": sum(row["rows_failed"] for row in held)}


NO_SAMPLES: Final[Mapping[Any, Any]] = {}
Check = tuple[str, str, str | None, str]
NEVER: Final = "never checked"
FILES_CHANGED: Final = "its files changed since it was checked"
SUITE_CHANGED: Final = "its checks changed since it was checked"
_KEY: Final = ("table", "check_id", "column", "severity")
_POINT: Final = ("partition_date", "state", "rows_checked", "rows_failed")
_COUNTS: Final = ("checks_failing", "checks_warning", "checks_errored", "rows_quarantined", "rows_failed")


def gather(lake: "Lake", sampled: "Mapping[CheckKey, FailingKeys]" = NO_SAMPLES) -> QualityState:
    """Return the state of quality of all checked tables that have rows, with sample keys of failing rows.

    Deleted partitions are not counted. Failures on a partition that changed since its check are counted until it is
    checked again. A changed partition without failures has an unknown state.

    Raises
    ------
    LakeUnreachableError, ranklake.lake.tables.live_files.DamagedLogError
        A log cannot be read, or is invalid.
    """
    contracts = {name: contract for name, contract in lake.contracts().items() if contract.kind in KINDS}
    live = {name: days for name in contracts if (days := _live(lake.tables, name))}
    ctx = results_session(lake)

    def ask(text: str) -> Rows:
        rows: Rows = ctx.sql(text).to_arrow_table().to_pylist()
        return rows

    dates = _dates(ask(f'SELECT DISTINCT "table", partition_date FROM {RESULTS}'))  # noqa: S608 - no foreign text
    deleted = {name: days - live[name].keys() for name, days in dates.items() if name in live}
    where = state.still_there(deleted, dates.keys() - live.keys())
    counts = {row["table"]: row for row in ask(state.totals(where, by_table=True))}
    queried = _QueriedState(
        _by_table(ask(state.checks(where))),
        _by_table(ask(state.partitions(where))),
        _histories(ctx.sql(state.history(where)).to_arrow_table()),
        sampled,
    )
    metrics, own = lake.catalog.metrics(), own_suites(lake)
    tables = []
    for name, days in live.items():
        contract = contracts[name]
        suite = compile_suite(contract, metrics, own.of(contract))
        partitions = queried.of_partitions(suite, days)
        sources = _sources(state.of_table(name, deleted.get(name, ())))
        tables.append(_table(contract, counts.get(name), queried.of_checks(contract, suite), partitions, sources))
    results = delta_table(lake.store, RESULTS)
    unchecked = sum(table.totals.partitions_unchecked for table in tables)
    overall = _totals(ask(state.totals(where))[0], unchecked)
    return QualityState(
        lake=lake.uri.rstrip("/").rpartition("/")[2],
        version=None if results is None else results.version(),
        state=worst_state([table.state for table in tables]),
        totals=overall,
        tables=tuple(
            sorted(tables, key=lambda state: (STATES.index(state.state), -state.totals.rows_failed, state.table))
        ),
        sources=_sources(where),
        by_table=state.totals(where, by_table=True),
        overview=overview(lake, ask, where),
    )


@dataclass(frozen=True, slots=True)
class _QueriedState:
    """Results of the queries: checks and partitions by table, and the history of each check."""

    checks: Mapping[str, Rows]
    partitions: Mapping[str, Rows]
    histories: Mapping[Check, History]
    sampled: "Mapping[CheckKey, FailingKeys]"

    def of_checks(self, contract: "Contract", suite: Suite) -> tuple[CheckState, ...]:
        """Return the checks of a table, worst first."""
        promises = {(each.check.id, each.about): each.promised for each in suite.expectations}
        states = []
        for row in self.checks.get(contract.table, ()):
            state = _state_of_check(row)
            promised = promises.get((row["check_id"], row["column"]))
            step = next_step(row["table"], contract.kind, row["check_id"], state, row["last_unsound"])
            history = self.histories[row["table"], row["check_id"], row["column"], row["severity"]]
            sampled = self.sampled.get((row["table"], row["check_id"], row["column"]))
            states.append(
                CheckState(**row, state=state, promise=promised, next_step=step, history=history, sampled=sampled)
            )
        states.sort(
            key=lambda check: (STATES.index(check.state), -(check.rows_failed or 0), check.check_id, check.column or "")
        )
        return tuple(states)

    def of_partitions(self, suite: Suite, live: Mapping[date, str]) -> tuple[PartitionState, ...]:
        """Return the live partitions of a table, latest first; `live` has the digest of each partition's files."""
        rows = {row["partition_date"]: row for row in self.partitions.get(suite.table, ())}
        return tuple(
            _partition(day, digest, rows.get(day), suite) for day, digest in sorted(live.items(), reverse=True)
        )


def _live(tables: "Tables", table: str) -> dict[date, str]:
    """Return the digest of the files of each date of a table."""
    handle = latest(tables, table)
    if handle is None:
        return {}
    paths: dict[date, list[str]] = {}
    actions = files(handle)
    for day, path in zip(actions["date"].to_pylist(), actions["path"].to_pylist(), strict=True):
        paths.setdefault(day, []).append(path)
    return {day: files_digest(names) for day, names in paths.items()}


def _dates(rows: Rows) -> dict[str, set[date]]:
    dates: dict[str, set[date]] = {}
    for row in rows:
        dates.setdefault(row["table"], set()).add(row["partition_date"])
    return dates


def _by_table(rows: Rows) -> dict[str, Rows]:
    by_table: dict[str, Rows] = {}
    for row in rows:
        by_table.setdefault(row["table"], []).append(row)
    return by_table


def _histories(rows: pa.Table) -> dict[Check, History]:
    """Split the results of all checks, ordered by `_KEY`, by check."""
    if not rows.num_rows:
        return {}
    (batch,) = rows.combine_chunks().to_batches()
    keys = [batch.column(name) for name in _KEY]
    codes = [key.dictionary_encode(null_encoding="encode").indices.to_numpy() for key in keys]
    begins = np.flatnonzero(np.any([np.diff(code, prepend=-1) != 0 for code in codes], axis=0))
    points = batch.select(_POINT)
    named = zip(*(key.take(pa.array(begins)).to_pylist() for key in keys), strict=True)
    sizes = np.diff(begins, append=batch.num_rows)
    return {
        (table, check, column, severity): History(severity, points.slice(int(begin), int(size)))
        for (table, check, column, severity), begin, size in zip(named, begins, sizes, strict=True)
    }


def _state_of_check(row: Mapping[str, Any]) -> str:
    """Return the worst state of a check on any partition; skipped only if it was skipped on all."""
    states = [
        *([state_of("failed", row["severity"])] if row["partitions_failed"] else []),
        *([ERRORED] if row["partitions_errored"] else []),
        *([QUARANTINED] if row["partitions_quarantined"] else []),
        SKIPPED if row["partitions_skipped"] == row["partitions"] else PASSED,
    ]
    return worst_state(states)


def _partition(day: date, digest: str, row: Mapping[str, Any] | None, suite: Suite) -> PartitionState:
    if row is None:
        return PartitionState(day, UNCHECKED, NEVER, 0, 0, 0, 0, None, 0, 0, None, None)
    reason = None
    if row["files_sha256"] != digest:
        reason = FILES_CHANGED
    elif row["suite"] != suite.name:
        reason = SUITE_CHANGED
    states = [
        *([FAILING] if row["checks_failing"] else []),
        *([ERRORED] if row["checks_errored"] else []),
        *([WARNING] if row["checks_warning"] else []),
        *([UNCHECKED] if reason else []),
        QUARANTINED if row["rows_quarantined"] else PASSED,
    ]
    values = {name: row[name] for name in ("checks", "rows_checked", "table_version", "checked_at", *_COUNTS)}
    return PartitionState(day, worst_state(states), reason, **values)


def _table(
    contract: "Contract",
    counts: Mapping[str, Any] | None,
    checks: tuple[CheckState, ...],
    partitions: tuple[PartitionState, ...],
    sources: Sources,
) -> TableState:
    unknown = [part.reason for part in partitions if part.reason]
    reasons = ", ".join(sorted(set(unknown)))
    return TableState(
        table=contract.table,
        kind=contract.kind,
        owner=contract.owner,
        summary=contract.summary,
        state=worst_state([*(part.state for part in partitions), *(check.state for check in checks)]),
        reason=f"{len(unknown)} of {len(partitions)} partitions: {reasons}" if unknown else None,
        totals=_totals(counts, len(unknown)),
        checks=checks,
        partitions=partitions,
        made_from=tuple(
            sorted({item.table for rollup in ROLLUPS if rollup.name == contract.table for item in rollup.inputs})
        ),
        used_by=tuple(
            sorted(rollup.name for rollup in ROLLUPS if contract.table in {item.table for item in rollup.inputs})
        ),
        sources=sources,
    )


def _totals(row: Mapping[str, Any] | None, unchecked: int) -> Totals:
    counts = dict.fromkeys(Totals.__dataclass_fields__, 0) | {"checked_at": None}
    known = {name: value for name, value in (row or {}).items() if name != "table"}
    return Totals(**{**counts, **known, "partitions_unchecked": unchecked})


def _sources(where: str) -> Sources:
    return Sources(state.totals(where), state.checks(where), state.partitions(where))
