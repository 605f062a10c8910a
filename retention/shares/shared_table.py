"""One table of a share: its Delta log, commits to it, and the bytes that go for good."""

import json
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.store.files import delete, listed
from ranklake.lake.store.reachability import LakeError, LakeUnreachableError
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.commit import number_of, swap
from ranklake.lake.tables.live_files import DataFile, files, live_paths, plan_of
from ranklake.lake.tables.tables import delta_table, ensure_table, reading_log
from ranklake.retention.shares.register import Share, TableRecord, read_entry, write_down

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.retention.shares.pieces import Piece

GRACE: Final = timedelta(hours=1)
"""How long files stay that others replaced with the same rows: who reads an older version finds them."""
LOG: Final = "_delta_log"
_OF_LOG: Final = re.compile(r".*/(?P<version>[0-9]{20})\.(?:json|.*checkpoint.*parquet)").fullmatch


class SharedTable:
    """A table of a share, and what the lake knows of it.

    Parameters
    ----------
    store, share, place
        The lake's store, a share of it, and the share's place.
    table
        Name of the table.
    """

    def __init__(self, store: "Store", share: Share, place: "Store", table: str) -> None:
        self._store, self._share, self._place, self.table = store, share, place, table
        self.known = read_entry(store, share, table)

    def define(self, definition: str, copied: "Contract") -> None:
        """Make the table ready for rows that a role sees in a way: of another way nothing stays, not in its log either.

        Raises what the store raises; called again, it goes on.
        """
        if self.known.definition != definition or not self._is_readable():
            erase_table(self._place, self.table)
            self._note(TableRecord(definition, number=self.known.number))
        handle = ensure_table(Tables(self._place), copied)
        # A store tells who may list this prefix alone that a name which is not there is forbidden, and readers give up
        # at the first such name. So the one that they all begin with is there.
        if not self._place.fs.exists(self._place.path("tables", self.table, LOG, "_last_checkpoint")):
            with reading_log(handle):
                handle.create_checkpoint()

    def _is_readable(self) -> bool:
        """Return whether its log can be read: one that two refreshes of two definitions wrote cannot."""
        try:
            handle = delta_table(self._place, self.table)
            return handle is not None and files(handle) is not None
        except LakeUnreachableError as error:
            if error.status is not None:  # the store's word, which may be another tomorrow
                raise
            return False
        except LakeError:
            return False

    def opened(self) -> "DeltaTable | None":
        """Return a fresh handle on the newest version; None where there is none."""
        return delta_table(self._place, self.table)

    def commit(
        self,
        handle: "DeltaTable",
        add: Sequence[DataFile],
        removed: Collection[str],
        pieces: Iterable["Piece"],
        *,
        same_rows: bool = False,
    ) -> bool:
        """Commit files and take others out, and write down the pieces that hold then; return False where nothing is.

        Raises `ranklake.lake.tables.commit.LostRaceError` where another was faster; the new files stay behind, and the
        next sweep takes them.
        """
        live = files(handle)
        gone = live.filter(pc.is_in(live["path"], value_set=pa.array(sorted(removed), pa.string())))
        done = bool(add) or gone.num_rows > 0
        if done:
            swap(
                handle,
                number_of(handle) + 1,
                add=add,
                remove=gone if gone.num_rows else None,
                data_change=not same_rows,
            )
        waiting = self.known.waiting
        if same_rows:
            until = (datetime.now(UTC) + GRACE).isoformat(timespec="seconds")
            waiting = waiting | dict.fromkeys(gone["path"].to_pylist(), until)
        if done or tuple(pieces) != self.known.pieces:
            self._note(replace(self.known, pieces=tuple(pieces), waiting=waiting))
        return done

    def sweep(self, *, everything: bool = False) -> int:
        """Delete data files that no commit names any more; return how many. Nothing is listed where nothing came since.

        A file of a commit that is still to come belongs to whoever is about to make it, unless it is old.

        Parameters
        ----------
        everything
            Whether files go, too, that readers may still want, and those of who is about to commit: that will fail.
        """
        handle = self.opened()
        if handle is None:
            return 0
        if everything:
            swap(handle, number_of(handle) + 1)  # whoever composes the next commit loses its race
        elif self.known.swept == number_of(handle) and not self.known.waiting:
            return 0
        now = datetime.now(UTC)
        until = {path: datetime.fromisoformat(said) for path, said in self.known.waiting.items()}
        waiting = {} if everything else {path: self.known.waiting[path] for path in until if until[path] > now}
        root = self._place.path("tables", self.table)
        there = [one for one in listed(self._place.fs, root) if f"/{LOG}/" not in one.path]
        handle = self.opened()  # after the listing: what was committed meanwhile is live
        assert handle is not None
        number = number_of(handle)
        wanted = {*live_paths(handle), *waiting}
        gone = 0
        for file in there:
            path = file.path.removeprefix(f"{root}/")
            is_old = file.modified is None or file.modified < now - GRACE
            if path not in wanted and (is_old or (plan_of(path) or 0) <= number):
                gone += delete(self._place, file.path)
        self._forget(handle)
        self._note(replace(self.known, waiting=waiting, swept=number))
        return gone

    def _forget(self, handle: "DeltaTable") -> None:
        """Delete what the log has of before, if rows went since the last sweep: it holds extremes of their values.

        A reader that is about to read an older commit will fail, and finds the newest when it asks again.
        """
        log = self._place.path("tables", self.table, LOG)
        there = sorted(
            (int(match["version"]), one.path) for one in listed(self._place.fs, log) if (match := _OF_LOG(one.path))
        )
        older = [path for version, path in there if version < handle.version()]
        if not self._took_rows(path for version, path in reversed(there) if version <= handle.version()):
            return
        with reading_log(handle):
            handle.create_checkpoint()
        for path in older:  # the oldest first: a commit that took rows goes after what it took them from
            delete(self._place, path)

    def _took_rows(self, newest_first: Iterable[str]) -> bool:
        """Return whether a commit since the last sweep took rows away."""
        for path in newest_first:
            if not path.endswith(".json"):
                continue
            actions = [json.loads(line) for line in self._place.fs.cat_file(path).splitlines() if line.strip()]
            if any(one["txn"]["version"] <= self.known.swept for one in actions if "txn" in one):
                return False
            if any(one["remove"].get("dataChange", True) for one in actions if "remove" in one):
                return True
        return False

    def _note(self, now: TableRecord) -> None:
        self.known = write_down(self._store, self._share, self.table, now)


def erase_table(place: "Store", table: str) -> int:
    """Delete a table of a share, log and all; return how many files went."""
    return sum(delete(place, one.path) for one in listed(place.fs, place.path("tables", table)))


def tables_there(place: "Store") -> set[str]:
    """Return the tables of which a share has files."""
    top = place.path("tables")
    return {one.path.removeprefix(f"{top}/").partition("/")[0] for one in listed(place.fs, top)}
