"""Opened: tables of a lake for many questions in a row; each is opened, listed and registered once."""

import re
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple

from ranklake.lake.query.engine import BATCH_ROWS, SessionContext, engine
from ranklake.lake.query.scan import live_files, register
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from collections.abc import Collection

    import pyarrow as pa
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.lake import Lake

_MOST_FILES: Final = 64
"""Of a table of which none is left out by the Delta log: finding out which a query needs means to plan it twice."""
_LISTS_NUMBERS: Final = re.compile(r"\bin\s*\(\s*(?!'|select\b|with\b)", re.IGNORECASE)


class _Table(NamedTuple):
    handle: "DeltaTable | None"
    live: "pa.Table"


class Opened:
    """Tables of a lake as they stood when a question first named them, so that many answers are of one state.

    Not for several threads at once. Files stay readable for the grace period of vacuum, so it is for the time of a
    command, not of a service.
    """

    def __init__(self, lake: "Lake") -> None:
        self._lake = lake
        self._tables: dict[str, _Table] = {}
        self._registered: set[str] = set()

    @cached_property
    def contracts(self) -> "dict[str, Contract]":
        """Contracts by table, as of the first question."""
        return dict(self._lake.contracts())

    def handle(self, table: str) -> "DeltaTable | None":
        """Return a table's handle; None where it was never written. Raises `LakeUnreachableError`."""
        return self._open_table(table).handle

    def live(self, table: str) -> "pa.Table":
        """Return a table's live files, as `ranklake.lake.query.scan.live_files` does."""
        return self._open_table(table).live

    def session(self, text: str, names: "Collection[str]") -> SessionContext | None:
        """Return a session that has some tables as a whole; None where a query is better, or must be, planned twice.

        That is where tables have many files, where they are not on a local disk, and where the query may ask for a list
        of floats (`ranklake.lake.query.scan.needed_files`). Raises `MissingFileError`.
        """
        few = all(self._open_table(name).live.num_rows <= _MOST_FILES for name in names)
        if not self._lake.store.is_local or not few or _LISTS_NUMBERS.search(text):
            return None
        for name in names:
            if name not in self._registered:
                table = self._open_table(name)
                read = as_read(table.handle, self.contracts[name])
                register(self._session, self._lake.store, read, table.live, views=True)
                self._registered.add(name)
        return self._session

    @cached_property
    def _session(self) -> SessionContext:
        return engine(batch_rows=BATCH_ROWS)

    def _open_table(self, table: str) -> _Table:
        if table not in self._tables:
            handle = delta_table(self._lake.store, table)
            self._tables[table] = _Table(handle, live_files(handle))
        return self._tables[table]
