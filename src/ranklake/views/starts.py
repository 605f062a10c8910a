"""Starts: what a run's init, and its restarts, were made of, for the prompt and for pages."""

from collections.abc import Iterator
from typing import Final, NamedTuple

from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.views.words import length_text

_UNNAMED: Final = {"unexplained", "first_step", "downtime"}
_MOST: Final = 8


class Start(NamedTuple):
    """All starts of one kind together.

    Attributes
    ----------
    kind
        ``init`` or ``restart``.
    whole_ns
        Their length.
    parts
        Rows of ``starts.sql``, the longest first; what is left of many is one row more.
    """

    kind: str
    whole_ns: int
    parts: list[Row]


def starts(answer: QueriedFacts) -> Iterator[Start]:
    """Yield the starts of which more is known than their length."""
    for kind in ("init", "restart"):
        rows = [row for row in answer.rows if row["kind"] == kind]
        if {row["part"] for row in rows} <= _UNNAMED:
            continue
        rest = rows[_MOST:]
        if rest:
            part = f"{len(rest)} more"
            rows[_MOST:] = [{**rest[0], "part": part, "duration_ns": sum(row["duration_ns"] for row in rest)}]
        yield Start(kind, sum(row["duration_ns"] for row in rows), rows)


def part_text(row: Row) -> str:
    """Return a part and its length, such as ``first step 3.1 s``."""
    part = row["part"] if ":" in row["part"] else row["part"].replace("_", " ")
    return f"{part} {length_text(row['duration_ns'] / 1e9)}"
