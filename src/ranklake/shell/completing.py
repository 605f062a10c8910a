"""What may come next in a statement: words by where the cursor stands. Nothing here knows of a terminal."""

import re
from collections.abc import Iterable, Iterator
from typing import Final

from ranklake.shell.names import Names

_KEYWORDS: Final = (
    *("SELECT", "FROM", "WHERE", "GROUP BY", "ORDER BY", "HAVING", "LIMIT", "JOIN", "LEFT JOIN", "ON", "USING", "AS"),
    *("AND", "OR", "NOT", "IN", "LIKE", "BETWEEN", "IS NULL", "IS NOT NULL", "DISTINCT", "CASE", "WHEN", "THEN"),
    *("ELSE", "END", "WITH", "UNION ALL", "DESC", "ASC", "NULLS LAST", "INTERVAL", "DATE", "EXPLAIN", "OVER"),
    *("PARTITION BY", "TRUE", "FALSE", "NULL"),
)
_QUOTED: Final = re.compile(r"'(?:[^']|'')*'")
_OPEN: Final = re.compile(r"(\w*)\s*(?:=|<>|!=|\bLIKE|\bIN\s*\([^()]*)?\s*'([^']*)$", re.IGNORECASE)
_WORD: Final = re.compile(r"(?:(\w+)\.)?(\w*)$")
_WANTS_TABLE: Final = re.compile(r"\b(?:FROM|JOIN)\s+(?:\w+(?:\s+(?:AS\s+)?\w+)?\s*,\s*)*\w*$", re.IGNORECASE)
_ALIAS: Final = re.compile(r"\b(?:FROM|JOIN|,)\s*(\w+)\s+(?:AS\s+)?(\w+)", re.IGNORECASE)
_DESCRIBES: Final = re.compile(r"\s*\\d\s+(\w*)$")
_COMMAND: Final = re.compile(r"\s*(\\\w*)$")


def candidates(before: str, after: str, names: Names, commands: tuple[str, ...]) -> Iterator[tuple[str, int]]:
    """Yield words that may stand at the cursor, the likeliest first, each with how many characters it replaces."""
    if result := _DESCRIBES.fullmatch(before):
        yield from _beginning(result[1], names.tables)
    elif result := _COMMAND.fullmatch(before):
        yield from _beginning(result[1], commands)
    elif result := _OPEN.search(_QUOTED.sub(lambda match: "_" * len(match[0]), before)):
        column, begun = result[1].lower(), before[result.start(2) :]
        values = names.metrics if column == "metric" else names.runs
        yield from _beginning(begun, values if column in {"metric", "run"} else (*names.runs, *names.metrics))
    else:
        yield from _words(before, f"{before} {after}", names)


def _words(before: str, text: str, names: Names) -> Iterator[tuple[str, int]]:
    result = _WORD.search(before)
    of, begun = (result[1], result[2]) if result else (None, "")
    if of is not None:
        table = next((one for one, alias in _ALIAS.findall(text) if alias == of), of)
        yield from _beginning(begun, names.tables.get(table, ()))
        return
    if _WANTS_TABLE.search(before):
        yield from _beginning(begun, names.tables)
        return
    if not begun and not before.strip():
        return
    mentioned = {one for one in re.findall(r"\w+", text) if one in names.tables}
    columns = dict.fromkeys(column for table in sorted(mentioned) for column in names.tables[table])
    every = dict.fromkeys(column for columns in names.tables.values() for column in columns)
    pool = (*(columns or every), *_KEYWORDS, *names.functions, *names.tables)
    if begun:
        yield from _beginning(begun, dict.fromkeys(pool))
    else:
        yield from _beginning("", columns)


def _beginning(begun: str, pool: Iterable[str]) -> Iterator[tuple[str, int]]:
    lowered = begun.lower()
    for item in pool:
        if item.lower().startswith(lowered):
            yield item, len(begun)
