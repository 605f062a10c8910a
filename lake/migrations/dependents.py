"""What asks for columns that a migration renames, drops or converts, and whose it is.

Rollups, checks and metrics are found by what they say; consumers by what they asked lately (`ranklake.lake.query`).
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
"""How far back consumers are looked for."""

_WORD: Final = re.compile(r"[a-z_][a-z0-9_]*")
_TOKEN: Final = re.compile(r"""--[^\n]*|/\*|'(?:[^']|'')*'|"(?:[^"]|"")*\"""")
"""Of SQL: comments, texts, and names in quotes."""
_EDGE: Final = re.compile(r"/\*|\*/")
"""Where a comment begins or ends within one."""
_ROLLUPS: Final = Path(__file__).parent.parent / "rollups"


@dataclass(frozen=True, slots=True)
class Dependent:
    """Something that names a column of a migration's table.

    Attributes
    ----------
    kind, name
        ``rollup``, ``check``, ``metric`` or ``consumer``; and which.
    column
        Under its name before the migration.
    owner
        Whose it is, as its contract says; of a consumer the owner of the table.
    breaks
        Whether it finds no such column afterwards, or numbers in another unit; false if it only sees a wider type, or
        is answered under the former name.
    answers
        Whether the former name goes on answering it.
    until
        Last day of that; None where nobody said one.
    queries, last
        Of a consumer: how many queries used the column lately, and when the last did.
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
        """What becomes of it, in a word or three."""
        if not self.answers:
            return "breaks" if self.breaks else "goes on"
        return "answers" if self.until is None else f"answers until {self.until}"

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: None if (at := getattr(self, name)) is None else at.isoformat() for name in ("until", "last")}
        return {**asdict(self), **times, "fate": self.fate}


def dependents(lake: "Lake", migration: "Migration") -> Iterator[Dependent]:
    """Yield what names the columns that a migration touches, by the words that it uses: perhaps more than does."""
    touched = {name: step.breaks_readers for step in migration.steps for name in step.touched}
    contracts = lake.contracts()
    owner = contracts[migration.table].owner
    for name, owners, text in _packaged(lake.catalog):
        for column in named_columns(text, migration.table, touched):
            yield Dependent("rollup", name, column, owners or owner, touched[column])
    stored_in = _stored_in()
    for name, breaks in sorted(touched.items()):
        for who, owners in stored_in.get(f"{migration.table}.{name}", ()):
            yield Dependent("metric", who, name, owners, breaks)
        for check in contracts[migration.table].all_checks():
            if name in check.columns:
                yield Dependent("check", check.id, name, owner, breaks)
    yield from _answerable(lake, migration, touched, owner)
    yield from _by_name(lake.store, migration, owner)


def _answerable(lake: "Lake", migration: "Migration", touched: Mapping[str, bool], owner: str) -> Iterator[Dependent]:
    """Yield those whom former names may answer: rollups of operators, and consumers."""
    former, today = removed_names(migration), datetime.now(UTC).date()
    for name, contract in lake.contracts().items():
        for column in named_columns(contract.rollup.sql if contract.rollup else "", migration.table, touched):
            yield _dependent("rollup", name, column, contract.owner, former, today, breaks=touched[column])
    for use in logged_uses(lake.store, today - LATELY, migration.table):
        if use.column in touched and not use.now:
            answer = _dependent("consumer", use.consumer, use.column, owner, former, today, breaks=touched[use.column])
            yield replace(answer, queries=use.queries, last=use.last)


def _by_name(store: "Store", migration: "Migration", owner: str) -> Iterator[Dependent]:
    """Yield consumers of a table that gets another name, and until when the one that they ask by answers."""
    for step in migration.steps:
        if not isinstance(step, RenameTable):
            continue
        today = datetime.now(UTC).date()
        uses_by_consumer: dict[str, list[Use]] = {}
        for use in logged_uses(store, today - LATELY, migration.table):
            uses_by_consumer.setdefault(use.consumer, []).append(use)
        answers = step.until is None or today <= step.until
        for name, their_uses in sorted(uses_by_consumer.items()):
            queries, last = max(use.queries for use in their_uses), max(use.last for use in their_uses)
            yield Dependent("consumer", name, "*", owner, not answers, answers, step.until, queries, last)


def _packaged(catalog: "Catalog") -> Iterator[tuple[str, str, str]]:
    """Yield name, owner and text of the queries of our rollups; the release that renames a column changes them."""
    contracts = catalog.contracts()
    for path in sorted(_ROLLUPS.glob("*.sql")):
        contract = contracts.get(path.stem)
        yield path.stem, contract.owner if contract else "", path.read_text(encoding="utf-8")


def named_columns(text: str, table: str, columns: Collection[str]) -> list[str]:
    """Return the columns of a table whose names are in a query, by its words: perhaps more than it uses."""
    words = set(_WORD.findall(_code(text).lower()))
    return sorted(words.intersection(columns)) if table in words else []


def _code(sql: str) -> str:
    """Return a query without its comments, nested ones among them, and without texts: neither names a column."""
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
    """Return what may go on under a former name."""
    former_name = former.get(column)
    if former_name is None or not former_name.answers(today):
        return Dependent(kind, name, column, owner, breaks)
    return Dependent(kind, name, column, owner, breaks=False, answers=True, until=former_name.until)


def _stored_in() -> Mapping[str, list[tuple[str, str]]]:
    columns_by_table: dict[str, list[tuple[str, str]]] = {}
    for metric in load_metrics().values():
        columns_by_table.setdefault(metric.stored_in, []).append((metric.name, metric.owner))
    return columns_by_table
