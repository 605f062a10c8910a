"""Starts: the parts of a run's init and of its restarts, for the terminal and for pages."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.views.words import length_text

_UNKNOWN_PARTS: Final = {"unexplained", "first_step", "downtime"}
_MOST_PARTS: Final = 8


class Start(NamedTuple):
    """All starts of one kind together.

    Attributes
    ----------
    kind
        ``init`` or ``restart``.
    whole_ns
        Their length, ns.
    parts
        Rows of ``starts.sql``, the longest first; the shortest of many are one row together.
    """

    kind: str
    whole_ns: int
    parts: list[Row]


def starts(answer: QueriedFacts) -> Iterator[Start]:
    """Yield the starts of which a part is known, besides their length."""
    for kind in ("init", "restart"):
        rows = [row for row in answer.rows if row["kind"] == kind]
        if {row["part"] for row in rows} <= _UNKNOWN_PARTS:
            continue
        rest = rows[_MOST_PARTS:]
        if rest:
            part = f"{len(rest)} more"
            rows[_MOST_PARTS:] = [{**rest[0], "part": part, "duration_ns": sum(row["duration_ns"] for row in rest)}]
        yield Start(kind, sum(row["duration_ns"] for row in rows), rows)


def part_text(row: Row) -> str:
    """Return a part and its length, such as ``first step 3.1 s``."""
    part = row["part"] if ":" in row["part"] else row["part"].replace("_", " ")
    return f"{part} {length_text(row['duration_ns'] / 1e9)}"
