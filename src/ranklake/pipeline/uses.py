"""Uses of a column: rollups, by parsed SQL; pages, objectives and alerts, by words in their SQL; shares; queries.

Words may overstate uses: a column of the same name in another table of the query counts, too.
"""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ranklake.insight.lineage.columns import forward
from ranklake.insight.slo.evaluation import indicator_sql
from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.migrations.dependents import LATELY, named_columns
from ranklake.lake.query.usage import logged_uses
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.lake.rollups.named import rollups_of
from ranklake.pipeline.alerts.file import matches
from ranklake.retention.shares.register import shares

if TYPE_CHECKING:
    from ranklake.insight.slo.document import ServiceLevelObjective
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake
    from ranklake.pipeline.alerts.file import AlertFile

_ROOT: Final = Path(__file__).parents[1]
_PAGES: Final = ("insight", "quality/report", "retention/report")
"""Folders of the queries that pages show."""


@dataclass(frozen=True, slots=True)
class ColumnUse:
    """A use of a column.

    Attributes
    ----------
    kind
        ``rollup``, ``check``, ``metric``, ``detector``, ``page``, ``objective``, ``alert``, ``share`` or ``query``.
    name
        Its name; for a query, the consumer.
    column
        The used column, as ``table.column``; ``table`` if only that is known.
    queries, last
        For a consumer, its number of recent queries of the column, and the last one's time (UTC).
    """

    kind: str
    name: str
    column: str
    queries: int | None = None
    last: datetime | None = None


def column_uses(
    lake: "Lake",
    target: "Contract",
    column: str,
    slos: "Mapping[str, ServiceLevelObjective]",
    alerts: "AlertFile",
    roles: "Mapping[str, Role]",
) -> Iterator[ColumnUse]:
    """Yield the uses of a column, or of a whole table for an empty name; first its derived columns, transitively.

    Parameters
    ----------
    roles
        Roles of shares; shares of unknown roles are skipped.

    Uses of derived columns count as uses of the column.
    """
    contracts = lake.contracts()
    rollups = {each.name: each for each in rollups_of(lake)}
    names = [column] if column else list(target.names)
    columns_by_table: dict[str, set[str]] = {target.table: {*names}}
    for (table, name), source in forward({(target.table, each) for each in names}, rollups, contracts).items():
        if name:
            columns_by_table.setdefault(table, set()).add(name)
        yield ColumnUse("rollup", f"{table}.{name}" if name else table, ".".join(filter(None, source)))
    declared = list(_declared(columns_by_table, contracts))
    yield from declared
    now = datetime.now(UTC)
    yield from _of_text("page", _pages(), columns_by_table)
    objectives = [
        (f"{slo.name}: {name}", indicator_sql(slo, objective, now, ()))
        for slo in slos.values()
        for name, objective in slo.objectives.items()
    ]
    objective_uses = list(_of_text("objective", objectives, columns_by_table))
    yield from objective_uses
    yield from _of_text(
        "alert", [(name, rule.sql) for name, rule in alerts.rules.items() if rule.sql], columns_by_table
    )
    yield from dict.fromkeys(_alerted(alerts, [*declared, *objective_uses]))
    for share in shares(lake.store):
        role = roles.get(share.role)
        for table, columns in columns_by_table.items() if role is not None else ():
            seen = set(role.columns(contracts[table])) if role is not None and role.sees(table) else set()
            yield from (ColumnUse("share", share.name, f"{table}.{each}") for each in sorted(columns & seen))
    for use in logged_uses(lake.store, now.date() - LATELY, target.table, column):
        name = f"{use.table}.{use.now or use.column}".rstrip(".")
        yield ColumnUse("query", use.consumer, name, use.queries, use.last)


def _declared(columns_by_table: Mapping[str, set[str]], contracts: "Mapping[str, Contract]") -> Iterator[ColumnUse]:
    """Yield checks, metrics and detectors, which declare their inputs."""
    for table, columns in columns_by_table.items():
        for check in contracts[table].all_checks():
            yield from (ColumnUse("check", check.id, f"{table}.{each}") for each in check.columns if each in columns)
    for metric in load_metrics().values():
        table, _, column = metric.stored_in.partition(".")
        if column in columns_by_table.get(table, ()):
            yield ColumnUse("metric", metric.name, metric.stored_in)
    for detector in DETECTORS:
        used = columns_by_table.get(detector.table, set()).intersection(detector.columns)
        yield from (ColumnUse("detector", detector.name, f"{detector.table}.{each}") for each in sorted(used))


_SOURCES: Final = {"detector": "incidents", "check": "checks", "objective": "slo"}


def _alerted(alerts: "AlertFile", uses: Collection[ColumnUse]) -> Iterator[ColumnUse]:
    """Yield alerts on users of the column: on detectors, checks and objectives."""
    for use in uses:
        labels = {
            "incidents": {"kind": use.name},
            "checks": {"kind": use.name, "table": use.column.partition(".")[0]},
            "slo": {"slo": use.name.partition(":")[0]},
        }.get(source := _SOURCES.get(use.kind, ""), {})
        for name, rule in alerts.rules.items():
            known = {key: rule.where[key] for key in labels if key in rule.where}
            if rule.source == source and matches(known, labels):
                yield ColumnUse("alert", name, use.column)


def _pages() -> list[tuple[str, str]]:
    folders = [_ROOT / name for name in _PAGES]
    paths = [path for folder in folders for path in sorted(folder.rglob("*.sql"))]
    return [(path.relative_to(_ROOT).as_posix(), path.read_text(encoding="utf-8")) for path in paths]


def _of_text(
    kind: str, texts: Collection[tuple[str, str]], columns_by_table: Mapping[str, set[str]]
) -> Iterator[ColumnUse]:
    for name, sql in texts:
        for table, columns in columns_by_table.items():
            yield from (ColumnUse(kind, name, f"{table}.{each}") for each in named_columns(sql, table, columns))
