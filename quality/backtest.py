"""Backtest: what today's suites would have reported on partitions that earlier checks read. Writes nothing.

Each partition is read at the table version that the last check of a day read. Facts about other tables and dates that
a check reads are today's.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.contracts.model import Contract
from ranklake.lake.query.as_of import AsOf
from ranklake.lake.query.errors import QueryError
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.quality.engine import judge
from ranklake.quality.results import RESULTS
from ranklake.quality.scan import scan
from ranklake.quality.suite import Expectation, Suite, compile_suite, select_contracts
from ranklake.quality.suites.asking import SuiteRun
from ranklake.quality.tally import Partition, status_of
from ranklake.quality.watching import Neighbours, judge_watched

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Progress
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

Key = tuple[str, str | None]
"""Id and column of a check, which identify it within a table."""
_COLUMNS: Final = (
    "table",
    "partition_date",
    "table_version",
    "check_id",
    "column",
    "severity",
    "status",
    "suite",
    "ts",
)
GONE: Final = "files of that version were deleted"


@dataclass(frozen=True, slots=True)
class Past:
    """One past check of a partition: the table version that it read, its time, suite and results."""

    table: str
    day: date
    version: int
    when: datetime
    suite: str
    statuses: Mapping[Key, str]
    severities: Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """Results of one check today, on partitions that were checked before.

    Attributes
    ----------
    partitions
        Number of partitions checked; a partition counts once for each day on which it was checked.
    fired, fires
        Number of them on which the check failed then, and would fail today.
    newly, no_longer
        Dates on which it fails only today, or failed only then; each once.
    errored
        Number of partitions on which it cannot be computed today.
    is_gone
        Whether today's suite lacks the check; then it fires nowhere.
    """

    table: str
    check_id: str
    column: str | None
    severity: str
    partitions: int
    fired: int
    fires: int
    newly: tuple[date, ...]
    no_longer: tuple[date, ...]
    errored: int
    is_gone: bool

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return facts | {name: [day.isoformat() for day in facts[name]] for name in ("newly", "no_longer")}


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of a backtest: outcomes of checks that fire or fired, and partitions that could not be read.

    Attributes
    ----------
    judged, unchanged
        Number of partitions that were checked again, and of those whose suite is today's, so that their results are
        kept.
    unknown
        Table, date, version and reason of each partition that cannot be read at that version.
    """

    since: datetime
    judged: int
    unchanged: int
    outcomes: tuple[Outcome, ...]
    unknown: tuple[tuple[str, date, int, str], ...]

    def plain(self) -> dict[str, Any]:
        """Return the fields as plain JSON values."""
        names = ("table", "partition_date", "table_version", "reason")
        return {
            "since": self.since.isoformat(),
            "judged": self.judged,
            "unchanged": self.unchanged,
            "outcomes": [item.plain() for item in self.outcomes],
            "unknown": [
                dict(zip(names, (item[0], item[1].isoformat(), *item[2:]), strict=True)) for item in self.unknown
            ],
        }


def backtest(
    lake: "Lake", days: int, tables: Sequence[str] | None = None, *, progress: "Progress | None" = None
) -> Backtest:
    """Check the partitions of the last `days` by today's suites, and compare the results. Nothing is written or moved.

    If a partition was checked several times on a day, the version of the last check counts.

    Raises
    ------
    UnknownTableError, ranklake.quality.suite.NotCheckedError
        A name in `tables` is no table, or a system table.
    ranklake.quality.suites.folder.SuitesError
        The configured folder of users' suites does not exist.
    """
    since = datetime.now(UTC) - timedelta(days=days)
    contracts = select_contracts(lake.contracts(), tables)
    past = [past_check for past_check in _past_checks(lake.tables, since) if past_check.table in contracts]
    counts = _Counts()
    unknown: list[tuple[str, date, int, str]] = []
    judged = unchanged = 0
    with SuiteRun(lake) as suite_run:
        backtester = _Backtest(lake, contracts, suite_run)
        for index, past_check in enumerate(past):
            suite = backtester.suite(past_check.table)
            if suite.name == past_check.suite:
                counts.add(past_check, past_check.statuses, past_check.severities)
                unchanged += 1
            elif isinstance(statuses := backtester.statuses(past_check), str):
                unknown.append((past_check.table, past_check.day, past_check.version, statuses))
            else:
                counts.add(past_check, statuses, {_key(each): each.check.severity for each in suite.expectations})
                judged += 1
            if progress is not None:
                progress(index + 1, len(past))
    return Backtest(since, judged, unchanged, counts.outcomes(), tuple(unknown))


def _past_checks(tables: "Tables", since: datetime) -> list[Past]:
    """Return the last check of each partition on each day since a time, ordered by table, date and time."""
    rows = read(tables, packaged(RESULTS), [*_COLUMNS, "date"])
    rows = rows.filter(pc.and_(pc.greater_equal(rows["ts"], pa.scalar(since)), pc.is_valid(rows["partition_date"])))
    latest = rows.group_by(["table", "partition_date", "date"]).aggregate([("ts", "max")])
    rows = rows.join(latest, ["table", "partition_date", "date"]).filter(pc.field("ts") == pc.field("ts_max"))
    by_check: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        if row["table_version"] is not None:
            by_check.setdefault((row["table"], row["partition_date"], row["ts"]), []).append(row)
    checks = []
    for (table, day, when), rows_of_check in sorted(by_check.items()):
        statuses = {(row["check_id"], row["column"]): row["status"] for row in rows_of_check}
        severities = {(row["check_id"], row["column"]): row["severity"] for row in rows_of_check}
        checks.append(
            Past(table, day, rows_of_check[0]["table_version"], when, rows_of_check[0]["suite"], statuses, severities)
        )
    return checks


class _Backtest:
    """Evaluates today's suites on partitions at past versions."""

    def __init__(self, lake: "Lake", contracts: Mapping[str, Contract], suite_run: SuiteRun) -> None:
        self._store, self._contracts, self._suite_run = lake.store, contracts, suite_run
        self._metrics = lake.catalog.metrics()
        self._suites: dict[str, Suite] = {}
        self._neighbours = Neighbours(lake, datetime.now(UTC))

    def suite(self, table: str) -> Suite:
        """Return today's suite of a table."""
        if table not in self._suites:
            contract = self._contracts[table]
            self._suites[table] = compile_suite(contract, self._metrics, self._suite_run.suites.of(contract))
        return self._suites[table]

    def statuses(self, past: Past) -> dict[Key, str] | str:
        """Return the status of each of today's checks on a past version of a partition, or why there is none."""
        try:
            handle = AsOf(versions={past.table: past.version}).handle(self._store, past.table, [past.table])
        except QueryError as error:
            return error.what
        if handle is None:
            return "the table is gone"
        part = Partition(past.day, past.version, files(handle, [past.day]))
        if not self._files_exist(past.table, part):
            return GONE
        contract, suite = self._contracts[past.table], self.suite(past.table)
        stored = {column.name for column in handle.schema().fields}
        stored_contract = replace(
            contract, columns=tuple(column for column in contract.columns if column.name in stored)
        )
        tallies = scan(self._store, stored_contract, suite, part, judge)
        judge_watched(stored_contract, suite, part, tallies, self._neighbours.at(past.when))
        self._suite_run.judge(stored_contract, suite, part, tallies)
        return {_key(each): status_of(each, tally) for each, tally in zip(suite.expectations, tallies, strict=True)}

    def _files_exist(self, table: str, part: Partition) -> bool:
        paths: list[str] = part.files["path"].to_pylist()
        return all(self._store.fs.exists(self._store.path("tables", table, path)) for path in paths)


class _Counts:
    """Statuses of each check on each partition, then and now."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Key], list[tuple[date, str | None, str | None]]] = {}
        self._severities: dict[tuple[str, Key], str] = {}

    def add(self, past: Past, now: Mapping[Key, str], severities: Mapping[Key, str]) -> None:
        """Add the statuses of one partition then and now."""
        for key in {**past.statuses, **now}:
            self._seen.setdefault((past.table, key), []).append((past.day, past.statuses.get(key), now.get(key)))
            self._severities[past.table, key] = severities.get(key) or past.severities[key]

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return the outcomes of checks that fired, fire, or cannot be computed; the largest differences first."""
        outcomes = [self._outcome(table, key, seen) for (table, key), seen in self._seen.items()]
        outcomes = [outcome for outcome in outcomes if outcome.fired or outcome.fires or outcome.errored]
        return tuple(
            sorted(
                outcomes,
                key=lambda outcome: (-len(outcome.newly) - len(outcome.no_longer), outcome.table, outcome.check_id),
            )
        )

    def _outcome(self, table: str, key: Key, seen: list[tuple[date, str | None, str | None]]) -> Outcome:
        check_id, column = key
        return Outcome(
            table,
            check_id,
            column,
            self._severities[table, key],
            partitions=sum(now is not None for _, _, now in seen),
            fired=sum(then == "failed" for _, then, _ in seen),
            fires=sum(now == "failed" for _, _, now in seen),
            newly=_days(day for day, then, now in seen if now == "failed" and then != "failed"),
            no_longer=_days(day for day, then, now in seen if then == "failed" and now not in {"failed", "errored"}),
            errored=sum(now == "errored" for _, _, now in seen),
            is_gone=all(now is None for _, _, now in seen),
        )


def _days(days: Iterator[date]) -> tuple[date, ...]:
    return tuple(sorted(set(days)))


def _key(expectation: Expectation) -> Key:
    return expectation.check.id, expectation.about
