"""Lakes with rows in them, and looks at what a command left behind, for tests of checks and retention."""

from collections import Counter
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import pyarrow as pa
from own_words import words_of_no_row
from segments import put_segment

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.run import ingest
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import balance
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import ContractsSection
from ranklake.lake.tables import commit
from ranklake.lake.tables.read import read


class Site:
    """A lake and a spool in one folder."""

    def __init__(self, folder: Path):
        self.folder = folder
        self.spool = folder / "spool"
        self.lake = Lake.create(str(folder / "lake"))

    def bring(self, rows, table="steps", **footer):
        """Seal rows into the spool and ingest them."""
        put_segment(self.spool, rows, table, **footer)
        return ingest(self.lake, Spool(str(self.spool)), InProcess())

    def balances(self):
        """Return the balance per table, having checked that it adds up, and that no file has words of others' rows."""
        found = balance(self.lake, Spool(str(self.spool)).listing())
        assert [fault for item in found for fault in item.faults] == []
        assert words_of_no_row(self.folder) == {}
        return {item.table: item for item in found}

    def keys(self, table="steps"):
        """Count the rows of a table by key."""
        rows = read(self.lake.tables, contract(table), ["incarnation", "segment", "slot"])
        return Counter(zip(*(rows[name].to_pylist() for name in rows.column_names), strict=True))

    def rows(self, table):
        """Return a table's rows as dicts."""
        return read(self.lake.tables, contract(table)).to_pylist()

    def overlay(self, **files):
        """Write contract files (YAML text by table) and return their folder."""
        place = self.folder / "overlay"
        place.mkdir(exist_ok=True)
        for table, text in files.items():
            (place / f"{table}.yaml").write_text(text)
        return place

    def places_of(self, needle):
        """Return every file of the lake, and every path in it, that holds some bytes."""
        raw = needle.encode()
        files = [path for path in (self.folder / "lake").rglob("*") if path.is_file()]
        return [path for path in files if raw in path.read_bytes() or needle in str(path)]


def under(lake, folder):
    """Return a lake with an overlay configured."""
    return lake.configured(contracts=ContractsSection(str(folder)))


def any_rows(
    table, count, *, segment=0, incarnation=7, run="r1", start=datetime(2026, 3, 1, tzinfo=UTC), overlay=None, **columns
):
    """Return rows of any captured table as a segment holds them; columns that are not given are NULL."""
    values = {
        "run": [run] * count,
        "attempt": np.zeros(count, np.int32),
        "rank": np.zeros(count, np.int32),
        "incarnation": np.full(count, incarnation, np.int64),
        "segment": np.full(count, segment, np.int32),
        "slot": np.arange(count, dtype=np.int32),
        "ts": [start] * count,
        **columns,
    }
    schema = arrow_schema(contract(table, overlay), segment=True)
    return pa.table(
        [
            pa.array(values[column.name], column.type) if column.name in values else pa.nulls(count, column.type)
            for column in schema
        ],
        schema=schema,
    )


def die_before(monkeypatch, table):
    """Make the process "die" (SystemExit) at the next commit to a table, whatever makes it."""
    genuine = commit._commit

    def dying(handle, *given, **more):
        if handle.metadata().name == table:
            raise SystemExit(table)
        return genuine(handle, *given, **more)

    monkeypatch.setattr(commit, "_commit", dying)
