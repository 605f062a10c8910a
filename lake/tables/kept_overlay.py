"""What a lake keeps of an operator's contracts before it is written to."""

from typing import TYPE_CHECKING

from ranklake.lake.contracts.load import table_names
from ranklake.lake.tables.table_schema import added_version_of, version_of
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


def keep_overlay(lake: "Lake") -> int:
    """Keep the configured overlay in a lake, for who writes rows; return the number of what the lake goes by.

    A table that waits for a migration is left out: it is as the lake knows it until the migration is applied, and so
    whoever undid one may restore the folder, whatever ran meanwhile. Raises as `ranklake.lake.store.overlays.keep`.
    """
    waiting = {}
    for table, version in lake.overlay_ahead().items():
        handle = latest(lake, table)
        written = 0 if handle is None else (added_version_of if table in table_names() else version_of)(handle)
        if handle is not None and max(written, 1) <= version:
            waiting[table] = version
    return lake.keep_overlay(waiting)
