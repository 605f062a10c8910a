"""Verifies an export of the audit trail by itself: lines of JSON as ``ranklake audit export`` prints them, no lake.

Each row has the digest of its facts and that of the row before. So an altered row shows, and so does one that is
missing between others, unless a filter left it out. That rows are missing at the end no export can tell: compare its
last digest with a head record, or with an anchor.
"""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date, datetime
from typing import Any, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit.chain import GENESIS, digest

_COLUMNS: Final = frozenset(
    {"seq", "ts", "actor", "action", "subject", "reason", "details", "prev_sha256", "sha256", "date"}
)


class NoExportError(RanklakeError):
    """Lines that are no export of an audit trail as JSON."""

    def __init__(self, line: int) -> None:
        hint = "give what 'ranklake audit export' printed as JSON, without --role"
        super().__init__(f"line {line:,} is no row of an audit trail", hint=hint)
        self.line = line

    def __reduce__(self) -> tuple[type["NoExportError"], tuple[int]]:
        return type(self), (self.line,)


@dataclass(frozen=True, slots=True)
class ExportProof:
    """What is known of exported rows.

    Attributes
    ----------
    rows, first, last
        How many rows there are, and the numbers of the first and the last; None without rows.
    head
        Digest of the last row; empty without rows.
    missing
        Rows that are missing between them, or before the first.
    broken
        Number of the first row that is altered, repeated, or does not follow the one before; None if all hold.
    """

    rows: int
    first: int | None
    last: int | None
    head: str
    missing: int
    broken: int | None


def verify_lines(lines: Iterable[str]) -> ExportProof:
    """Verify the lines of an export, in whatever order. Raises `NoExportError`."""
    rows = sorted((_row(number, line) for number, line in enumerate(lines, 1) if line.strip()), key=_number)
    numbers = [_number(row) for row in rows]
    head, missing = GENESIS, 0
    for place, row in enumerate(rows):
        number, before = numbers[place], numbers[place - 1] if place else -1
        follows = number == before + 1
        if number == before or row["sha256"] != digest(row) or (follows and row["prev_sha256"] != head):
            return ExportProof(len(rows), numbers[0], numbers[-1], rows[-1]["sha256"], missing, number)
        missing += number - before - 1
        head = row["sha256"]
    if not rows:
        return ExportProof(0, None, None, "", 0, None)
    return ExportProof(len(rows), numbers[0], numbers[-1], head, missing, None)


def _number(row: dict[str, Any]) -> int:
    return int(row["seq"])


def _row(number: int, line: str) -> dict[str, Any]:
    try:
        row = json.loads(line)
        if not row.keys() >= _COLUMNS or not isinstance(row["seq"], int):
            raise NoExportError(number)
        if row["details"] is not None and not isinstance(row["details"], str):
            row["details"] = json.dumps(row["details"], sort_keys=True)
        return {**row, "ts": datetime.fromisoformat(row["ts"]), "date": date.fromisoformat(row["date"])}
    except (ValueError, TypeError, AttributeError, RecursionError):
        raise NoExportError(number) from None
