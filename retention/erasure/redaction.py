"""Removes values from files that have to stay: JSON, text, SQLite databases."""

import json
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from ranklake.retention.erasure.subject import Subject

SQLITE: Final = b"SQLite format 3\0"
_BOUNDS: Final = ("minValues", "maxValues")
_WAIT_S: Final = 60
Stored = str | bytes | int | float | None
"""A value in a SQLite database."""


def replace_values(value: Any, subject: "Subject") -> Any:  # noqa: ANN401 - plain JSON values
    """Return JSON with a pseudonym instead of each of the subject's values.

    Bounds in statistics are removed instead, since a pseudonym would be a wrong bound. JSON within text stays JSON.
    """
    if isinstance(value, str):
        return _text(value, subject)
    if isinstance(value, list):
        return [replace_values(item, subject) for item in value]
    if not isinstance(value, dict):
        return value
    short = subject.needles.short
    bounds = [(name, bound) for side in _BOUNDS for name, bound in _dict(value.get(side)).items()]
    removed = {name for name, bound in bounds if _contains_value(bound, subject) or short.is_all_of(name, bound)}
    kept = {
        key: {name: bound for name, bound in item.items() if name not in removed}
        if key in _BOUNDS and removed
        else item
        for key, item in value.items()
    }
    return {
        _text(key, subject): subject.pseudonym if short.is_all_of(key, item) else replace_values(item, subject)
        for key, item in kept.items()
    }


def _dict(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _contains_value(value: object, subject: "Subject") -> bool:
    return _is_in(json.dumps(value, ensure_ascii=False), subject)


def _text(text: str, subject: "Subject") -> str:
    if not _is_in(text, subject):
        return text
    if text.startswith(("{", "[")):
        try:
            inner = replace_values(json.loads(text), subject)
        except (ValueError, RecursionError):
            pass
        else:
            return json.dumps(inner)
    new = subject.needles.replace(text, subject.pseudonym)
    return subject.pseudonym if _is_in(new, subject) else new


def redacted_lines(raw: bytes, subject: "Subject") -> bytes:
    """Return JSON lines, as in the Delta log, without the values. Raises `ValueError` if a line is no JSON."""
    return b"\n".join(_line(line, subject) for line in raw.split(b"\n"))


def _line(line: bytes, subject: "Subject") -> bytes:
    if not line.strip() or not subject.needles.count(line):
        return line
    return json.dumps(replace_values(json.loads(line), subject), separators=(",", ":")).encode()


def redacted_text(raw: bytes, subject: "Subject") -> bytes | None:
    """Return a text file's bytes without the values; None if it is no text, or if a value cannot be removed."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    new = subject.needles.replace(text, subject.pseudonym).encode()
    return None if subject.needles.count(new) else new


def redact_database(path: Path, subject: "Subject") -> int:
    """Replace the subject's values by pseudonyms in a SQLite database; return the number of changed columns.

    Others may use the database meanwhile. Freed pages and the write-ahead log are emptied, too. After a crash the
    database is unchanged, or changed with these last steps missing, which the next call repeats. Raises
    `sqlite3.Error`.
    """
    changed = 0
    with closing(sqlite3.connect(path, timeout=_WAIT_S, isolation_level=None)) as database:
        database.create_function("holds_subject", 1, lambda value: _is_in(value, subject), deterministic=True)
        database.create_function("without_subject", 1, lambda value: _remove_values(value, subject), deterministic=True)
        database.execute("PRAGMA secure_delete = ON")
        database.execute("PRAGMA foreign_keys = OFF")
        database.execute("BEGIN IMMEDIATE")
        for table, column in _columns(database):
            names = f'"{table}"', f'"{column}"'
            update = database.execute(
                f"UPDATE {names[0]} SET {names[1]} = without_subject({names[1]}) WHERE holds_subject({names[1]})"  # noqa: S608 - names of its own schema
            )
            changed += update.rowcount > 0
        database.execute("COMMIT")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return changed


def _columns(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield the stored columns of ordinary tables, without generated columns and virtual tables."""
    tables = database.execute(
        "SELECT name FROM sqlite_master "
        "WHERE type = 'table' AND name NOT LIKE 'sqlite_%' AND sql NOT LIKE 'CREATE VIRTUAL%'"
    ).fetchall()
    for (table,) in tables:
        quoted = table.replace('"', '""')
        for row in database.execute(f'PRAGMA table_xinfo("{quoted}")').fetchall():
            if row[6] == 0:
                yield quoted, row[1].replace('"', '""')


def _is_in(value: object, subject: "Subject") -> bool:
    raw = value.encode(errors="replace") if isinstance(value, str) else value
    return isinstance(raw, bytes) and subject.needles.count(raw) > 0


def _remove_values(value: Stored, subject: "Subject") -> Stored:
    if isinstance(value, bytes):
        text = redacted_text(value, subject)
        return b"" if text is None else text
    return _text(value, subject) if isinstance(value, str) else value
