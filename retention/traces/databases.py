"""Rows of an SQLite database, such as Prefect's: of a long value its pages have pieces, with numbers between."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from typing import Final

MAGIC: Final = b"SQLite format 3\0"
LOGS: Final = (b"\x37\x7f\x06\x82", b"\x37\x7f\x06\x83")
"""How a write-ahead log begins: pages that are in its database only after a checkpoint."""
_MODES: Final = slice(18, 20)
_BY_ROLLBACK: Final = b"\1\1"
_ROWS: Final = 256
_TABLES: Final = "SELECT name FROM sqlite_master WHERE type = 'table' AND sql NOT LIKE 'CREATE VIRTUAL%'"
_EVERY: Final = 'SELECT * FROM "{}"'


def database_rows(raw: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the tables of a database with some of their rows each time: text and bytes of each row as bytes.

    Raises `sqlite3.Error` if it is damaged. Nothing is opened for writing, no file is made. Rows that a write-ahead log
    has are not there.
    """
    image = bytearray(raw)
    image[_MODES] = _BY_ROLLBACK * (len(image) >= _MODES.stop)  # in memory there is no log to look for
    with closing(sqlite3.connect(":memory:")) as connection:
        connection.deserialize(bytes(image))
        connection.text_factory = bytes
        for (name,) in connection.execute(_TABLES).fetchall():
            rows = connection.execute(_EVERY.format(name.decode().replace('"', '""')))
            while some := rows.fetchmany(_ROWS):
                yield name.decode(errors="replace"), [_texts(row) for row in some]


def _texts(row: tuple[object, ...]) -> bytes:
    return b"\0".join(value for value in row if isinstance(value, bytes))
