"""Completion in the SQL shell and of commands' arguments: names of a lake, and words that may come next.

Only names that the role may see. Independent of terminals.
"""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from ranklake.insight.ask import ask
from ranklake.lake.contracts import load_metrics
from ranklake.lake.query.engine import engine
from ranklake.lake.query.errors import QueryError
from ranklake.printable import printable_name

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

_MOST_RUNS: Final = 10_000
_FRESH_S: Final = 60.0
_RUNS: Final = f"SELECT run FROM run_summary GROUP BY run ORDER BY max(ts) DESC LIMIT {_MOST_RUNS}"  # noqa: S608 - ours
_FUNCTIONS: Final = "SELECT DISTINCT routine_name FROM information_schema.routines ORDER BY 1"
_KEYWORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS"),
    *("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS NULL", "IS NOT NULL", "DISTINCT", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "WITH", "UNION ALL", "DESC", "ASC", "NULLS LAST", "INTERVAL", "DATE", "EXPLAIN", "OVER"),
    *("PARTITION BY", "TRUE", "FALSE", "NULL"),
)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'")
_OPEN_QUOTE: Final = re.compile(r"(\w*)\s*(?:=|<>|!=|\bLIKE|\bIN\s*\([^()]*)?\s*'([^']*)$", re.IGNORECASE)
_WORD: Final = re.compile(r"(?:(\w+)\.)?(\w*)$")
_WANTS_TABLE: Final = re.compile(r"\b(?:FROM|JOIN)\s+(?:\w+(?:\s+(?:AS\s+)?\w+)?\s*,\s*)*\w*$", re.IGNORECASE)
_ALIAS: Final = re.compile(r"\b(?:FROM|JOIN|,)\s*(\w+)\s+(?:AS\s+)?(\w+)", re.IGNORECASE)
_DESCRIBES: Final = re.compile(r"\s*\\d\s+(\w*)$")
_COMMAND: Final = re.compile(r"\s*(\\\w*)$")


def run_names(lake: "Lake", role: "Role | None") -> tuple[str, ...]:
    """Return names of runs, the newest first, as a role sees them; none if it sees no summaries."""
    try:
        result = ask(lake, _RUNS, role=role).rows["run"].to_pylist()
    except QueryError:
        if role is None:
            raise
        return ()
    return printable_names(name for name in result if name is not None)


def printable_names(names: Iterable[str]) -> tuple[str, ...]:
    """Return those names that are printable."""
    return tuple(name for name in names if name == printable_name(name))


@dataclass(slots=True)
class Names:
    """Names for completion.

    Attributes
    ----------
    tables
        Tables that the role may query, by name, with the columns that it sees.
    metrics
        Registered metrics.
    """

    tables: dict[str, tuple[str, ...]]
    metrics: tuple[str, ...]
    _ask_runs: Callable[[], tuple[str, ...]]
    _runs: tuple[float, tuple[str, ...]] | None = None
    _functions: tuple[str, ...] = field(default=())

    @property
    def runs(self) -> tuple[str, ...]:
        """Names of runs, the newest first; queried on first use, and again after a minute."""
        now = time.monotonic()
        if self._runs is None or now - self._runs[0] > _FRESH_S:
            self._runs = now, self._ask_runs()
        return self._runs[1]

    @property
    def functions(self) -> tuple[str, ...]:
        """Functions of the engine; listed on first use."""
        if not self._functions:
            result = engine(threads=1).sql(_FUNCTIONS).to_arrow_table()
            self._functions = tuple(result["routine_name"].to_pylist())
        return self._functions


def names_of(lake: "Lake", role: "Role | None", contracts: "Mapping[str, Contract]") -> Names:
    """Return the names of a lake, as a role sees them. The lake is queried only for names of runs."""
    tables = {
        name: tuple(contract.names if role is None else role.columns(contract))
        for name, contract in contracts.items()
        if role is None or role.sees(name)
    }
    return Names(tables, tuple(load_metrics()), lambda: run_names(lake, role))


def candidates(before: str, after: str, names: Names, commands: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield words for the cursor's place, the likeliest first, each with the number of characters it replaces."""
    if result := _DESCRIBES.fullmatch(before):
        yield from _beginning(result[1], names.tables)
    elif result := _COMMAND.fullmatch(before):
        yield from _beginning(result[1], commands)
    elif result := _OPEN_QUOTE.search(_QUOTED.sub(lambda match: "_" * len(match[0]), before)):
        column, begun = result[1].lower(), before[result.start(2) :]
        values = names.metrics if column == "metric" else names.runs
        yield from _beginning(begun, values if column in {"metric", "run"} else (*names.runs, *names.metrics))
    else:
        yield from _words(before, f"{before} {after}", names)


def _words(before: str, text: str, names: Names) -> Iterator[tuple[str, int]]:
    result = _WORD.search(before)
    qualifier, begun = (result[1], result[2]) if result else (None, "")
    if qualifier is not None:
        table = next((table for table, alias in _ALIAS.findall(text) if alias == qualifier), qualifier)
        yield from _beginning(begun, names.tables.get(table, ()))
        return
    if _WANTS_TABLE.search(before):
        yield from _beginning(begun, names.tables)
        return
    if not begun and not before.strip():
        return
    mentioned = {word for word in re.findall(r"\w+", text) if word in names.tables}
    columns = dict.fromkeys(column for table in sorted(mentioned) for column in names.tables[table])
    all_columns = dict.fromkeys(column for columns in names.tables.values() for column in columns)
    pool = (*(columns or all_columns), *_KEYWORDS, *names.functions, *names.tables)
    if begun:
        yield from _beginning(begun, dict.fromkeys(pool))
    else:
        yield from _beginning("", columns)


def _beginning(begun: str, pool: Iterable[str]) -> Iterator[tuple[str, int]]:
    lowered = begun.lower()
    for item in pool:
        if item.lower().startswith(lowered):
            yield item, len(begun)
