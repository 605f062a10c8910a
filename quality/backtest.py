"""Backtest: what today's suites would have said of tables as earlier checks found them. Writes nothing.

Each partition is read at the version of its table that the last check of a day read, and judged as it would be now.
What a check asks of other tables and dates it asks of them as they are today.
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
"""What tells a table's checks apart: id and column."""
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
    """One check of a partition, as it was: which version it read, when, by which suite, and the result."""

    table: str
    day: date
    version: int
    when: datetime
    suite: str
    statuses: Mapping[Key, str]
    severities: Mapping[Key, str]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What one check says now of partitions that were checked before.

    Attributes
    ----------
    partitions
        How many it was judged on, counted once for each day on which they were checked.
    fired, fires
        On how many of them it failed then, and would fail today.
    newly, no_longer
        Dates on which that differs, each once.
    errored
        On how many it cannot be computed today.
    is_gone
        Whether today's suite does not have it; then it fires nowhere.
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
        """Return plain JSON values."""
        facts = {name: getattr(self, name) for name in self.__dataclass_fields__}
        return facts | {name: [day.isoformat() for day in facts[name]] for name in ("newly", "no_longer")}


@dataclass(frozen=True, slots=True)
class Backtest:
    """Result of a backtest: outcomes of checks that fire or fired, and what could not be looked at, with the reason.

    Attributes
    ----------
    judged, unchanged
        Partitions that were judged again, and those whose suite is today's: their results stand.
    unknown
        Table, date, version and reason of each that cannot be read as it was.
    """

    since: datetime
    judged: int
    unchanged: int
    outcomes: tuple[Outcome, ...]
    unknown: tuple[tuple[str, date, int, str], ...]

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("table", "partition_date", "table_version", "reason")
        return {
            "since": self.since.isoformat(),
            "judged": self.judged,
            "unchanged": self.unchanged,
            "outcomes": [one.plain() for one in self.outcomes],
            "unknown": [dict(zip(names, (one[0], one[1].isoformat(), *one[2:]), strict=True)) for one in self.unknown],
        }


def backtest(
    lake: "Lake", days: int, tables: Sequence[str] | None = None, *, progress: "Progress | None" = None
) -> Backtest:
    """Judge what was checked in the last `days` by the suites of today, and compare; nothing is written or moved.

    A partition that was checked several times on a day is judged as the last of them found it.

    Raises
    ------
    UnknownTableError, ranklake.quality.suite.NotCheckedError
        A name in `tables` is no table, or a system table.
    ranklake.quality.suites.folder.SuitesError
        The configured folder of users' suites is not there.
    """
    since = datetime.now(UTC) - timedelta(days=days)
    contracts = select_contracts(lake.contracts(), tables)
    past = [past_check for past_check in _past_checks(lake.tables, since) if past_check.table in contracts]
    counts = _Counts()
    unknown: list[tuple[str, date, int, str]] = []
    judged = unchanged = 0
    with SuiteRun(lake) as asking:
        again = _Backtest(lake, contracts, asking)
        for place, past_check in enumerate(past):
            suite = again.suite(past_check.table)
            if suite.name == past_check.suite:
                counts.add(past_check, past_check.statuses, past_check.severities)
                unchanged += 1
            elif isinstance(statuses := again.statuses(past_check), str):
                unknown.append((past_check.table, past_check.day, past_check.version, statuses))
            else:
                counts.add(past_check, statuses, {_key(each): each.check.severity for each in suite.expectations})
                judged += 1
            if progress is not None:
                progress(place + 1, len(past))
    return Backtest(since, judged, unchanged, counts.outcomes(), tuple(unknown))


def _past_checks(tables: "Tables", since: datetime) -> list[Past]:
    """Return the last check of each partition on each day since, in the order of tables, dates and times."""
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
    """Judges partitions as they were."""

    def __init__(self, lake: "Lake", contracts: Mapping[str, Contract], asking: SuiteRun) -> None:
        self._store, self._contracts, self._asking = lake.store, contracts, asking
        self._metrics = lake.catalog.metrics()
        self._suites: dict[str, Suite] = {}
        self._neighbours = Neighbours(lake, datetime.now(UTC))

    def suite(self, table: str) -> Suite:
        """Return today's suite of a table."""
        if table not in self._suites:
            contract = self._contracts[table]
            self._suites[table] = compile_suite(contract, self._metrics, self._asking.suites.of(contract))
        return self._suites[table]

    def statuses(self, past: Past) -> dict[Key, str] | str:
        """Return the status of each of today's checks on a partition as it was; a text says why there is none."""
        try:
            handle = AsOf(versions={past.table: past.version}).handle(self._store, past.table, [past.table])
        except QueryError as error:
            return error.what
        if handle is None:
            return "the table is gone"
        part = Partition(past.day, past.version, files(handle, [past.day]))
        if not self._are_there(past.table, part):
            return GONE
        contract, suite = self._contracts[past.table], self.suite(past.table)
        stored = {column.name for column in handle.schema().fields}
        there = replace(contract, columns=tuple(one for one in contract.columns if one.name in stored))
        tallies = scan(self._store, there, suite, part, judge)
        judge_watched(there, suite, part, tallies, self._neighbours.at(past.when))
        self._asking.judge(there, suite, part, tallies)
        return {_key(one): status_of(one, tally) for one, tally in zip(suite.expectations, tallies, strict=True)}

    def _are_there(self, table: str, part: Partition) -> bool:
        paths: list[str] = part.files["path"].to_pylist()
        return all(self._store.fs.exists(self._store.path("tables", table, path)) for path in paths)


class _Counts:
    """Counts of results then and now, by check."""

    def __init__(self) -> None:
        self._seen: dict[tuple[str, Key], list[tuple[date, str | None, str | None]]] = {}
        self._severities: dict[tuple[str, Key], str] = {}

    def add(self, past: Past, now: Mapping[Key, str], severities: Mapping[Key, str]) -> None:
        """Add one partition: its results then and now."""
        for key in {**past.statuses, **now}:
            self._seen.setdefault((past.table, key), []).append((past.day, past.statuses.get(key), now.get(key)))
            self._severities[past.table, key] = severities.get(key) or past.severities[key]

    def outcomes(self) -> tuple[Outcome, ...]:
        """Return those of checks that fired, fire, or cannot be computed; those that differ most first."""
        outcomes = [self._outcome(table, key, seen) for (table, key), seen in self._seen.items()]
        outcomes = [one for one in outcomes if one.fired or one.fires or one.errored]
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
