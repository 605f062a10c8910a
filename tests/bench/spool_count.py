"""What a bench left in its spool, held against what it recorded."""

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from ranklake.segments.segment import SegmentName

COUNTED = ("scalars", "spans", "steps")


@dataclass(frozen=True)
class Book:
    """Rows of one table: how many the calls recorded, how many the spool holds, how many are counted as gaps."""

    recorded: int
    stored: int
    gaps: int

    @property
    def uncounted(self) -> int:
        """Rows that are neither stored nor counted."""
        return self.recorded - self.stored - self.gaps


@dataclass(frozen=True)
class Books:
    """Rows by table, and how many of the spool's rows are there more than once."""

    tables: dict[str, Book]
    twice: int

    @property
    def uncounted(self) -> int:
        """Rows of all tables that are neither stored nor counted; a surplus of one table hides no lack of another."""
        return sum(abs(book.uncounted) for book in self.tables.values())

    def as_dict(self) -> dict[str, object]:
        """Return all of it as plain values."""
        return asdict(self) | {"uncounted": self.uncounted}


def close_books(spool: Path, recorded: list[tuple[dict[str, int], int]], gaps: dict[str, dict[str, int]]) -> Books:
    """Read the spool and compare.

    Parameters
    ----------
    spool
        A folder.
    recorded
        Of each case the rows that a call records, by table, and its calls.
    gaps
        What the run counted, by table and reason.
    """
    wanted: Counter[str] = Counter()
    for rows, calls in recorded:
        wanted.update({table: each * calls for table, each in rows.items()})
    tables, twice = {}, 0
    for table in COUNTED:
        stored, more = _distinct(spool, table)
        twice += more
        tables[table] = Book(wanted[table], stored, sum(gaps.get(table, {}).values()))
    return Books(tables, twice)


def _distinct(spool: Path, table: str) -> tuple[int, int]:
    """Return the rows of a table, each key once, and how many there are beyond that."""
    keys: dict[tuple[int, int], list[np.ndarray]] = {}
    for path in spool.glob(f"segments/*/{table}/*.parquet"):
        name, found = SegmentName.parse(path.name), pq.read_table(path, columns=["slot"])
        keys.setdefault((name.incarnation, name.segment), []).append(found["slot"].to_numpy())
    rows = sum(len(slots) for parts in keys.values() for slots in parts)
    distinct = sum(len(np.unique(np.concatenate(parts))) for parts in keys.values())
    return distinct, rows - distinct
