"""The chain: each row holds the SHA-256 of the row before, and its own over all its facts."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC
from typing import Any, Final

GENESIS: Final = "0" * 64
RESUME: Final = "audit.resume"
"""Action of a row that goes on behind rows that are lost: somebody looked, and said so."""


@dataclass(frozen=True, slots=True)
class Head:
    """How long a chain is, and the digest of its last row: `rows` 0 and `GENESIS` before the first."""

    rows: int = 0
    sha256: str = GENESIS


@dataclass(frozen=True, slots=True)
class Chain:
    """What came of following a chain.

    Attributes
    ----------
    head
        Its end, as far as it holds.
    broken
        Number of the first row that is missing, repeated or altered; None if there is none.
    lost
        First and last number of rows that are missing, and that a row of action `RESUME` says are.
    """

    head: Head
    broken: int | None
    lost: tuple[tuple[int, int], ...] = ()


def digest(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row's facts, all but its own digest, as JSON with sorted keys; times in ISO 8601, UTC."""
    facts = {name: value for name, value in row.items() if name != "sha256"}
    facts["date"] = row["date"].isoformat()
    facts["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def follow(rows: Iterable[Mapping[str, Any]]) -> Chain:
    """Follow a chain from its first row; rows in the order of their numbers."""
    head = Head()
    lost: list[tuple[int, int]] = []
    for row in rows:
        number, before = row["seq"], head.sha256
        if number > head.rows and _resumes(row, head):
            lost.append((head.rows, number - 1))
            before = row["prev_sha256"]
        elif number != head.rows:
            return Chain(head, head.rows, tuple(lost))
        if row["prev_sha256"] != before or row["sha256"] != digest(row):
            return Chain(head, number, tuple(lost))
        head = Head(number + 1, row["sha256"])
    return Chain(head, None, tuple(lost))


def _resumes(row: Mapping[str, Any], head: Head) -> bool:
    if row["action"] != RESUME:
        return False
    try:
        said = json.loads(row["details"] or "null")
    except ValueError:
        return False
    return isinstance(said, dict) and said.get("rows_left") == head.rows
