"""One table of a share: its Delta log, commits to it, and the deletion of unused files."""

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
from ranklake.retention.shares.register import Share, TableRecord, read_entry, write_entry

if TYPE_CHECKING:
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Store
    from ranklake.retention.shares.copies import Piece

GRACE: Final = timedelta(hours=1)
"""How long replaced files with the same rows are kept, for readers of an older version."""
LOG: Final = "_delta_log"
_OF_LOG: Final = re.compile(r".*/(?P<version>[0-9]{20})\.(?:json|.*checkpoint.*parquet)").fullmatch


class SharedTable:
    """A table of a share, and its record in the lake.

    Parameters
    ----------
    store, share, place
        The lake's store, a share of it, and the share's place.
    table
        Name of the table.
    """

    def __init__(self, store: "Store", share: Share, place: "Store", table: str) -> None:
        self._store, self._share, self._place, self.table = store, share, place, table
        self.record = read_entry(store, share, table)

    def define(self, definition: str, copied: "Contract") -> None:
        """Create the table for a definition. A table with another definition is deleted first, including its log.

        After a crash the next call continues. Raises the errors of the store.
        """
        if self.record.definition != definition or not self._is_readable():
            erase_table(self._place, self.table)
            self._note(TableRecord(definition, number=self.record.number))
        handle = ensure_table(Tables(self._place), copied)
        # A reader that may list only this prefix gets "forbidden" for a missing name, and gives up. All readers ask for
        # this file first, so it must exist.
        if not self._place.fs.exists(self._place.path("tables", self.table, LOG, "_last_checkpoint")):
            with reading_log(handle):
                handle.create_checkpoint()

    def _is_readable(self) -> bool:
        """Return whether its log can be read; it cannot if two refreshes with two definitions wrote it."""
        try:
            handle = delta_table(self._place, self.table)
            return handle is not None and files(handle) is not None
        except LakeUnreachableError as error:
            if error.status is not None:  # an error of the store, perhaps temporary
                raise
            return False
        except LakeError:
            return False

    def open(self) -> "DeltaTable | None":
        """Return a new handle on the newest version; None if the table does not exist."""
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
        """Add and remove files in one commit, and record the valid pieces; return whether a commit was made.

        Raises `ranklake.lake.tables.commit.LostRaceError` if another process committed first. The next sweep deletes
        the new files then.
        """
        live = files(handle)
        old_files = live.filter(pc.is_in(live["path"], value_set=pa.array(sorted(removed), pa.string())))
        has_changes = bool(add) or old_files.num_rows > 0
        if has_changes:
            swap(
                handle,
                number_of(handle) + 1,
                add=add,
                remove=old_files if old_files.num_rows else None,
                data_change=not same_rows,
            )
        waiting = self.record.waiting
        if same_rows:
            until = (datetime.now(UTC) + GRACE).isoformat(timespec="seconds")
            waiting = waiting | dict.fromkeys(old_files["path"].to_pylist(), until)
        if has_changes or tuple(pieces) != self.record.pieces:
            self._note(replace(self.record, pieces=tuple(pieces), waiting=waiting))
        return has_changes

    def sweep(self, *, everything: bool = False) -> int:
        """Delete data files that the newest version does not name; return their number.

        Lists nothing if there was no commit since the last sweep. Files of a coming commit are kept unless they are
        old.

        Parameters
        ----------
        everything
            Whether to delete files that are kept for readers, and files of a coming commit, too. That commit then
            fails.
        """
        handle = self.open()
        if handle is None:
            return 0
        if everything:
            swap(handle, number_of(handle) + 1)  # makes a coming commit of another process fail
        elif self.record.swept == number_of(handle) and not self.record.waiting:
            return 0
        now = datetime.now(UTC)
        until = {path: datetime.fromisoformat(text) for path, text in self.record.waiting.items()}
        waiting = {} if everything else {path: self.record.waiting[path] for path in until if until[path] > now}
        root = self._place.path("tables", self.table)
        data_files = [file for file in listed(self._place.fs, root) if f"/{LOG}/" not in file.path]
        handle = self.open()  # after the listing, so that files committed in between count as live
        assert handle is not None
        number = number_of(handle)
        needed = {*live_paths(handle), *waiting}
        deleted = 0
        for file in data_files:
            path = file.path.removeprefix(f"{root}/")
            is_old = file.modified is None or file.modified < now - GRACE
            if path not in needed and (is_old or (plan_of(path) or 0) <= number):
                deleted += delete(self._place, file.path)
        self._delete_old_log(handle)
        self._note(replace(self.record, waiting=waiting, swept=number))
        return deleted

    def _delete_old_log(self, handle: "DeltaTable") -> None:
        """Delete older log entries if rows were removed since the last sweep, since their statistics have values.

        A reader of an older version then fails, and finds the newest version when it tries again.
        """
        log = self._place.path("tables", self.table, LOG)
        names = [file.path for file in listed(self._place.fs, log)]
        entries = sorted((int(match["version"]), path) for path in names if (match := _OF_LOG(path)))
        older = [path for version, path in entries if version < handle.version()]
        if not self._has_removed_rows(path for version, path in reversed(entries) if version <= handle.version()):
            return
        with reading_log(handle):
            handle.create_checkpoint()
        for path in older:  # oldest first, so that a commit that removed rows is deleted after the one that added them
            delete(self._place, path)

    def _has_removed_rows(self, newest_first: Iterable[str]) -> bool:
        """Return whether a commit since the last sweep removed rows."""
        for path in newest_first:
            if not path.endswith(".json"):
                continue
            actions = [json.loads(line) for line in self._place.fs.cat_file(path).splitlines() if line.strip()]
            if any(action["txn"]["version"] <= self.record.swept for action in actions if "txn" in action):
                return False
            if any(action["remove"].get("dataChange", True) for action in actions if "remove" in action):
                return True
        return False

    def _note(self, record: TableRecord) -> None:
        self.record = write_entry(self._store, self._share, self.table, record)


def erase_table(place: "Store", table: str) -> int:
    """Delete a table of a share, including its log; return the number of deleted files."""
    return sum(delete(place, file.path) for file in listed(place.fs, place.path("tables", table)))


def shared_table_names(place: "Store") -> set[str]:
    """Return the names of the tables that have files in a share."""
    top = place.path("tables")
    return {file.path.removeprefix(f"{top}/").partition("/")[0] for file in listed(place.fs, top)}
