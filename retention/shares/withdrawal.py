"""Withdrawal: takes out of shares what the lake no longer has, at once and without asking roles or keys; drops shares.

After rows were removed, erased or masked in the lake, their copies go by this, bytes and all. What the role may still
see of the files that were written anew comes back with the next refresh.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ranklake.lake.query.scan import live_files
from ranklake.lake.store.listing import listed
from ranklake.lake.store.removal import delete
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.tables import delta_table
from ranklake.retention.shares.pieces import stale_pieces
from ranklake.retention.shares.place import MARKER, ShareError, open_place, refuse_other
from ranklake.retention.shares.refresh import sources_of
from ranklake.retention.shares.register import Share, shares, tables_known
from ranklake.retention.shares.shared_table import SharedTable, erase_table, tables_there

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """What went from a share: its name, and files of tables that were live or left behind."""

    share: str
    files: int


def withdraw(lake: "Lake", tables: Iterable[str] | None = None) -> list[Withdrawn]:
    """Take out of every share the copies of rows that the lake's tables no longer have as they were.

    Parameters
    ----------
    tables
        To look at; default all that a share has.

    Raises `ShareError` where a place is not this lake's any more, and what the stores raise; what was withdrawn until
    then stays so.
    """
    done = []
    for share in shares(lake):
        place = open_place(lake, share.uri)
        refuse_other(lake, place, share.role)
        wanted = tables_known(lake, share) if tables is None else tables_known(lake, share) & set(tables)
        gone = sum(_withdraw_table(lake, share, place, table) for table in sorted(wanted))
        done.append(Withdrawn(share.name, gone))
    return done


def _withdraw_table(lake: "Lake", share: Share, place: "Lake", table: str) -> int:
    shared = SharedTable(lake, share, place, table)
    handle = shared.opened()
    if handle is None:
        return 0
    there = frozenset(live_paths(handle))
    pieces = shared.known.pieces
    stale = stale_pieces(pieces, sources_of(live_files(delta_table(lake, table))), there)
    held = {path for one in pieces if one not in stale for path in one.files}
    gone = there - held  # files that no piece names were made of rows that may be gone
    shared.commit(handle, (), gone, [one for one in pieces if one not in stale])
    return shared.sweep(everything=True)


def drop(lake: "Lake", share: Share) -> int:
    """Delete a share, all its tables; return how many files went. Its record in the lake is the caller's to strike.

    Killed on the way, the next call goes on. Raises `ShareError` where the place is
    another's by now: nothing was deleted then.
    """
    place = open_place(lake, share.uri)
    if place.fs.exists(place.path(MARKER)):
        refuse_other(lake, place, share.role)
    elif listed(place.fs, place.path("tables")):
        raise ShareError("what says whose share this is is gone", where=share.uri, hint=f"restore {MARKER} there")
    gone = sum(erase_table(place, table) for table in sorted(tables_there(place)))
    if place.fs.exists(place.path(MARKER)):
        gone += delete(place, place.path(MARKER))
    return gone
