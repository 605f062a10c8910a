"""A data file of a Delta table: parses its name, and holds the add action that makes it part of the table."""

import re
import time
from dataclasses import dataclass
from datetime import date
from typing import Final

from deltalake.transaction import AddAction

_NAME = re.compile(
    r"date=\d{4,}-\d{2}-\d{2}/p(?P<plan>\d+)-[0-9a-f]{32}(-(?P<sha256>[0-9a-f]{64}))?(~[0-9a-f]+)?\.parquet"
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A data file of a table, on disk, perhaps not committed yet.

    Attributes
    ----------
    table, path
        Table, and path relative to it.
    partition
        UTC date of all rows.
    rows, size_bytes
        What the file holds and takes.
    stats
        Delta statistics as JSON text.
    """

    table: str
    path: str
    partition: date
    rows: int
    size_bytes: int
    stats: str

    def add_action(self, *, data_change: bool = True) -> AddAction:
        """Return the action that makes the file part of its table."""
        values = {"date": self.partition.isoformat()}
        return AddAction(
            self.path, self.size_bytes, values, int(time.time() * 1000), data_change=data_change, stats=self.stats
        )


def plan_of(path: str) -> int | None:
    """Return the number in a data file's path, relative to its table; None if `write_partition` did not write it."""
    found = _NAME.fullmatch(path)
    return int(found["plan"]) if found else None


def digest_of(path: str) -> str | None:
    """Return the SHA-256 in a data file's path, relative to its table; None where the name has none."""
    found = _NAME.fullmatch(path)
    return found["sha256"] if found else None


DATA_PATH: Final = r"date=[0-9]{4,}-[0-9]{2}-[0-9]{2}/[A-Za-z0-9][A-Za-z0-9._~-]*\.parquet"
"""Pattern of a data file's path, relative to its table's folder: nothing in it leads elsewhere, nor is an escape."""
