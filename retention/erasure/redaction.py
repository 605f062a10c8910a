"""Takes values out of files that have to stay: JSON, text, databases of SQLite."""

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
"""What a database of SQLite holds."""


def replace_values(value: Any, subject: "Subject") -> Any:  # noqa: ANN401 - plain JSON values
    """Return JSON values with a pseudonym in the place of each value.

    Bounds of statistics are left out instead: a pseudonym would be none. JSON within text stays JSON.
    """
    if isinstance(value, str):
        return _text(value, subject)
    if isinstance(value, list):
        return [replace_values(one, subject) for one in value]
    if not isinstance(value, dict):
        return value
    short = subject.sought.short
    bounds = [(name, bound) for side in _BOUNDS for name, bound in _dict(value.get(side)).items()]
    gone = {name for name, bound in bounds if _contains_value(bound, subject) or short.is_all_of(name, bound)}
    kept = {
        key: {name: bound for name, bound in one.items() if name not in gone} if key in _BOUNDS and gone else one
        for key, one in value.items()
    }
    return {
        _text(key, subject): subject.pseudonym if short.is_all_of(key, one) else replace_values(one, subject)
        for key, one in kept.items()
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
    new = subject.sought.replace(text, subject.pseudonym)
    return subject.pseudonym if _is_in(new, subject) else new


def redacted_lines(raw: bytes, subject: "Subject") -> bytes:
    """Return JSON lines, as Delta's log has them, without values. Raises `ValueError` where a line is no JSON."""
    return b"\n".join(_line(line, subject) for line in raw.split(b"\n"))


def _line(line: bytes, subject: "Subject") -> bytes:
    if not line.strip() or not subject.sought.count(line):
        return line
    return json.dumps(replace_values(json.loads(line), subject), separators=(",", ":")).encode()


def redacted_text(raw: bytes, subject: "Subject") -> bytes | None:
    """Return a text file's bytes without values; None where it is no text, or holds them in a form that stays."""
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        return None
    if "\0" in text:
        return None
    new = subject.sought.replace(text, subject.pseudonym).encode()
    return None if subject.sought.count(new) else new


def redact_database(path: Path, subject: "Subject") -> int:
    """Put pseudonyms in the place of values in a database of SQLite that others may be at; return how many columns.

    Freed pages go, too, and so does what its write-ahead log holds. Killed half-way, it is as before, or done, or lacks
    the last step, which the next call makes. Raises `sqlite3.Error`.
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
            done = database.execute(
                f"UPDATE {names[0]} SET {names[1]} = without_subject({names[1]}) WHERE holds_subject({names[1]})"  # noqa: S608 - names of its own schema
            )
            changed += done.rowcount > 0
        database.execute("COMMIT")
        database.execute("VACUUM")
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return changed


def _columns(database: sqlite3.Connection) -> Iterator[tuple[str, str]]:
    """Yield the columns of plain tables; what is computed of others is not written."""
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
    return isinstance(raw, bytes) and subject.sought.count(raw) > 0


def _remove_values(value: Stored, subject: "Subject") -> Stored:
    if isinstance(value, bytes):
        text = redacted_text(value, subject)
        return b"" if text is None else text
    return _text(value, subject) if isinstance(value, str) else value
