"""SQLite file: a foreign database, opened read-only. All its errors become `SourceError`."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.capture.importers.source import SourceError

SQLITE: Final = b"SQLite format 3\0"
"""First bytes of a SQLite file."""
_HINT: Final = "copy it while nothing writes into it, or restore it"


@dataclass(frozen=True, slots=True)
class SqliteFile:
    """A database file on a local disk."""

    path: Path

    def rows(self, query: str, *values: Any) -> list[dict[str, Any]]:  # noqa: ANN401 - SQLite holds any type
        """Return the rows of a query, each as values by column name. Raises `SourceError`."""
        return list(self.each_row(query, *values))

    def each_row(self, query: str, *values: Any) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - likewise
        """Yield the rows of a query, each as values by column name. Raises `SourceError`, also between rows."""
        try:
            uri = f"{self.path.resolve().as_uri()}?mode=ro"
            with closing(sqlite3.connect(uri, uri=True)) as connection:
                connection.text_factory = lambda raw: raw.decode(errors="replace")
                cursor = connection.execute(query, values)
                names = [column[0] for column in cursor.description]
                for row in cursor:
                    yield dict(zip(names, row, strict=True))
        except (sqlite3.Error, UnicodeDecodeError) as error:  # the latter: a name in a damaged schema
            raise SourceError(f"cannot be read ({error})", where=self.path.name, hint=_HINT) from error

    def columns(self) -> dict[str, set[str]]:
        """Return the names of the columns of each table. Raises `SourceError`."""
        by_table: dict[str, set[str]] = {}
        query = (
            "SELECT t.name AS in_table, c.name AS name FROM sqlite_master t, pragma_table_info(t.name) c"
            " WHERE t.type = 'table'"
        )
        for row in self.rows(query):
            by_table.setdefault(str(row["in_table"]), set()).add(str(row["name"]))
        return by_table
