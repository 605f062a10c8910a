"""Finds users of columns that a migration renames, drops or converts: rollups, checks, metrics and consumers.

Rollups, checks and metrics are found in their definitions, consumers in the log of queries (`ranklake.lake.query`).
"""

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import load_metrics
from ranklake.lake.migrations.former import removed_names
from ranklake.lake.migrations.steps.columns import RenameTable
from ranklake.lake.query.usage import Use, logged_uses

if TYPE_CHECKING:
    from ranklake.lake.migrations.migration import Migration
    from ranklake.lake.query.former import Former
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store

LATELY: Final = timedelta(days=90)
"""Age of the log of queries in which consumers are searched."""

_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TOKEN: Final = re.compile(r"""--[^\n]*|/\*|'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
"""SQL comments, string literals, and quoted names."""
_EDGE: Final = re.compile(r"/\*|\*/")
"""Begin or end of a nested comment."""
_ROLLUPS: Final = Path(__file__).parent.parent / "rollups"


@dataclass(frozen=True, slots=True)
class Dependent:
    """A user of a column that a migration changes.

    Attributes
    ----------
    kind, name
        ``rollup``, ``check``, ``metric`` or ``consumer``; and its name.
    column
        Name of the column before the migration.
    owner
        Owner in the contract; for a consumer, the owner of the table.
    breaks
        Whether the column does not exist afterwards, or has another unit. False if only its type becomes wider, or the
        former name can still be used.
    answers
        Whether the former name can be used after the migration.
    until
        Last day on which the former name can be used; None for no limit.
    queries, last
        For a consumer: number of recent queries with the column, and time of the last.
    """

    kind: str
    name: str
    column: str
    owner: str
    breaks: bool
    answers: bool = False
    until: date | None = None
    queries: int | None = None
    last: datetime | None = None

    @property
    def fate(self) -> str:
        """The effect of the migration in a few words."""
        if not self.answers:
            return "breaks" if self.breaks else "goes on"
        return "answers" if self.until is None else f"answers until {self.until}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: None if (at := getattr(self, name)) is None else at.isoformat() for name in ("until", "last")}
        return {**asdict(self), **times, "fate": self.fate}


def dependents(lake: "Lake", migration: "Migration") -> Iterator[Dependent]:
    """Yield the users of columns that a migration changes. They are found by words; some may be false matches."""
    touched = {name: step.breaks_readers for step in migration.steps for name in step.touched}
    contracts = lake.contracts()
    owner = contracts[migration.table].owner
    for name, owners, text in _packaged(lake.catalog):
        for column in named_columns(text, migration.table, touched):
            yield Dependent("rollup", name, column, owners or owner, touched[column])
    stored_in = _stored_in()
    for name, breaks in sorted(touched.items()):
        for metric, owners in stored_in.get(f"{migration.table}.{name}", ()):
            yield Dependent("metric", metric, name, owners, breaks)
        for check in contracts[migration.table].all_checks():
            if name in check.columns:
                yield Dependent("check", check.id, name, owner, breaks)
    yield from _answerable(lake, migration, touched, owner)
    yield from _by_name(lake.store, migration, owner)


def _answerable(lake: "Lake", migration: "Migration", touched: Mapping[str, bool], owner: str) -> Iterator[Dependent]:
    """Yield the users that may use former names: operators' rollups and consumers."""
    former, today = removed_names(migration), datetime.now(UTC).date()
    for name, contract in lake.contracts().items():
        for column in named_columns(contract.rollup.sql if contract.rollup else "", migration.table, touched):
            yield _dependent("rollup", name, column, contract.owner, former, today, breaks=touched[column])
    for use in logged_uses(lake.store, today - LATELY, migration.table):
        if use.column in touched and not use.now:
            answer = _dependent("consumer", use.consumer, use.column, owner, former, today, breaks=touched[use.column])
            yield replace(answer, queries=use.queries, last=use.last)


def _by_name(store: "Store", migration: "Migration", owner: str) -> Iterator[Dependent]:
    """Yield the consumers of a table that the migration renames."""
    for step in migration.steps:
        if not isinstance(step, RenameTable):
            continue
        today = datetime.now(UTC).date()
        uses_by_consumer: dict[str, list[Use]] = {}
        for use in logged_uses(store, today - LATELY, migration.table):
            uses_by_consumer.setdefault(use.consumer, []).append(use)
        answers = step.until is None or today <= step.until
        for name, uses in sorted(uses_by_consumer.items()):
            queries, last = max(use.queries for use in uses), max(use.last for use in uses)
            yield Dependent("consumer", name, "*", owner, not answers, answers, step.until, queries, last)


def _packaged(catalog: "Catalog") -> Iterator[tuple[str, str, str]]:
    """Yield name, owner and query of the packaged rollups. A release that renames a column must change them."""
    contracts = catalog.contracts()
    for path in sorted(_ROLLUPS.glob("*.sql")):
        contract = contracts.get(path.stem)
        yield path.stem, contract.owner if contract else "", path.read_text(encoding="utf-8")


def named_columns(text: str, table: str, columns: Collection[str]) -> list[str]:
    """Return the columns of a table whose names appear as words in a query, which may not use all of them."""
    words = set(_WORD.findall(_code(text).lower()))
    return sorted(words.intersection(columns)) if table in words else []


def _code(sql: str) -> str:
    """Return a query without comments (nested ones, too) and string literals."""
    parts, at, depth = [], 0, 0
    while token := (_EDGE if depth else _TOKEN).search(sql, at):
        if not depth:
            parts.append(sql[at : token.start()])
        if token[0] in {"/*", "*/"}:
            depth += 1 if token[0] == "/*" else -1
        elif token[0].startswith('"'):
            parts.append(token[0])
        at = token.end()
    return " ".join([*parts, "" if depth else sql[at:]])


def _dependent(
    kind: str, name: str, column: str, owner: str, former: "Mapping[str, Former]", today: date, *, breaks: bool
) -> Dependent:
    """Return a dependent that breaks unless the former name of its column can be used."""
    former_name = former.get(column)
    if former_name is None or not former_name.answers(today):
        return Dependent(kind, name, column, owner, breaks)
    return Dependent(kind, name, column, owner, breaks=False, answers=True, until=former_name.until)


def _stored_in() -> Mapping[str, list[tuple[str, str]]]:
    columns_by_table: dict[str, list[tuple[str, str]]] = {}
    for metric in load_metrics().values():
        columns_by_table.setdefault(metric.stored_in, []).append((metric.name, metric.owner))
    return columns_by_table
