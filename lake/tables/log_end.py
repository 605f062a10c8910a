"""The end of a table's log, for who appends to the table again and again, a commit at a time.

    opened once ─▶ is there a next commit? those that others made are read, each a small file ─▶ new data files
        ─▶ the next commit, put if absent: who loses it reads it, and begins anew ─▶ every twentieth: a checkpoint

Opening a table, bringing a handle up to date and committing on it read again what the table has: delta-rs lists the log
and makes its list of files anew, each time. An append needs none of that. What it needs is in the last commits, and
costs the same however long the table is.
"""

import time
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from deltalake.exceptions import DeltaError

from ranklake.lake.contracts.delta import CHECKPOINT_EVERY
from ranklake.lake.store.reachability import LakeUnreachableError
from ranklake.lake.tables.commit import APP_ID, PLAN_ID, LostRaceError, is_possible
from ranklake.lake.tables.commit import said as said_by
from ranklake.lake.tables.data_file import removal
from ranklake.lake.tables.live_files import live_paths
from ranklake.lake.tables.table_schema import commit
from ranklake.lake.tables.tables import actions_of, asked_again, ensure_table, mark_of

if TYPE_CHECKING:
    from typing import Any

    import pyarrow as pa
    from deltalake import DeltaTable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake
    from ranklake.lake.tables.data_file import DataFile

_MOST_BEHIND: Final = 10 * CHECKPOINT_EVERY
"""Commits of others that are read one by one; behind more, the table is opened anew. While it is opened, others that
are fast make tens of them."""

_DAMAGED: Final = (ValueError, TypeError, KeyError, OverflowError, RecursionError)


class LogEnd:
    """The newest version of a table, as its log had it when it was last asked for by `of`.

    Attributes
    ----------
    version
        Which.
    """

    def __init__(self, lake: "Lake", contract: "Contract") -> None:
        """Open a table, made from its contract where it was never written. Raises as `ensure_table`."""
        self._lake, self._contract = lake, contract
        self._open()

    def _open(self) -> None:
        self._handle = ensure_table(self._lake, self._contract)
        self.version = self._handle.version()
        self._mark = mark_of(self._lake, self._contract.table, self.version)
        self._numbers: dict[str, int] = {}
        """Those that the handle's commit and later ones carry: the last word on them, for which no log is read."""
        self._live: set[str] | None = None
        """Files that are live at the version, once somebody asked."""
        with suppress(OSError, *_DAMAGED):  # whoever looks through the log finds the same, or says so
            self._take(actions_of(self._lake, self._contract.table, self.version))

    @classmethod
    def of(cls, lake: "Lake", contract: "Contract") -> "LogEnd":
        """Return the end that this process keeps, brought up to date, and nobody else's until `keep`; else a new one.

        Raises as `ensure_table`.
        """
        kept: LogEnd | None = lake.ends.pop(contract.table, None)
        return kept if kept is not None and kept._is_brought_up_to_date() else cls(lake, contract)  # noqa: SLF001

    def keep(self) -> None:
        """Leave it to the next who asks in this process."""
        self._lake.ends[self._contract.table] = self

    def handle(self) -> "DeltaTable":
        """Return a handle on the version. Raises as `ensure_table`; the end is another then, if others committed."""
        if self._handle.version() != self.version:
            self._open()
        return self._handle

    def said(self, application: str) -> int | None:
        """Return the number that an application committed last, None if it never did. Raises as `commit.said` does."""
        found = self._numbers.get(application)
        return said_by(self._handle, application) if found is None else found

    @property
    def number(self) -> int:
        """The table's transaction number; 0 before the first."""
        return self.said(APP_ID) or 0

    def append(self, new: "Sequence[DataFile]", also: Mapping[str, int]) -> bool:
        """Commit new files after this version, under the next number, with numbers of further applications.

        Returns whether this call did; where another was faster the files stay behind, named by no commit. It is on
        disk, or at the store, then. Raises `LakeUnreachableError`; perhaps it was written then.
        """
        return self._write([file.addition() for file in new], {APP_ID: self.number + 1, **also}, {})

    def merge(self, actions: "list[dict[str, Any]]", old: Collection[str], plan: int, said: Mapping[str, str]) -> bool:
        """Commit the actions of a plan that merges old files, as `commit.swap_plan` does; return as `append`.

        Raises as `append`, and `LostRaceError` where an old file is not live any more.
        """
        if self._live is None:
            self._live = live_paths(self.handle())
        if not self._live.issuperset(old):
            what = f"files of {self._contract.table} that were to be merged are gone"
            raise LostRaceError(what, where=self._lake.uri, hint="run it again")
        return self._write(actions, {APP_ID: max(plan, self.number + 1), PLAN_ID: plan}, said)

    def _write(self, actions: "list[dict[str, Any]]", numbers: Mapping[str, int], said: Mapping[str, str]) -> bool:
        actions = [*actions, *({"txn": {"appId": name, "version": number}} for name, number in numbers.items())]
        table, following = self._contract.table, self.version + 1
        info = {"operation": "WRITE", **said}
        if not commit(self._lake, table, self.version, actions, info) and not self._is_ours(actions):
            return False
        self._take(actions)
        self.version, self._mark = following, mark_of(self._lake, table, following)
        if (following + 1) % CHECKPOINT_EVERY == 0:
            with suppress(DeltaError, OSError, ValueError):  # it is committed; upkeep writes what is due
                asked_again(self._handle.update_incremental)
                asked_again(self._handle.create_checkpoint)
        return True

    def _is_ours(self, actions: "list[dict[str, Any]]") -> bool:
        """Say whether the next commit holds these actions: a store may carry out what it did not confirm."""
        try:
            there = actions_of(self._lake, self._contract.table, self.version + 1)
        except FileNotFoundError:
            what, where = (
                "the commit was refused, and no other is to be seen",
                self._lake.table_uri(self._contract.table),
            )
            raise LakeUnreachableError(what, where=where, hint="run it again later") from None
        return [one for one in there if "commitInfo" not in one] == actions

    def _is_brought_up_to_date(self) -> bool:
        """Read what others committed since; return False where the table has to be opened anew."""
        lake, table = self._lake, self._contract.table
        if self._mark is None or mark_of(lake, table, self.version) != self._mark:
            return False
        try:
            for _ in range(_MOST_BEHIND):
                try:
                    actions = actions_of(lake, table, self.version + 1)
                except FileNotFoundError:
                    return True
                if any("metaData" in one or "protocol" in one for one in actions):
                    return False
                self._take(actions)
                self.version += 1
                self._mark = mark_of(lake, table, self.version)
        except (OSError, *_DAMAGED):
            return False  # opening it meets the same, and says so
        return False

    def _take(self, actions: "list[dict[str, Any]]") -> None:
        """Take over the numbers that a commit carries, and its files. Raises `_DAMAGED`."""
        told = {str(one["txn"]["appId"]): int(one["txn"]["version"]) for one in actions if "txn" in one}
        if not all(map(is_possible, told.values())):
            raise ValueError("the number of a transaction cannot be")
        self._numbers |= told
        if self._live is not None:
            self._live |= _paths_of(actions, "add")
            self._live -= _paths_of(actions, "remove")  # taken out and brought by one commit, it has other rows


def _paths_of(actions: "list[dict[str, Any]]", what: str) -> set[str]:
    return {unquote(one[what]["path"]) for one in actions if what in one}


def swap_at_end(
    lake: "Lake", contract: "Contract", plan: int, new: "Sequence[DataFile]", old: "pa.Table", said: Mapping[str, str]
) -> None:
    """Commit a plan's merging of files (`old`: rows of `live_files.files`), once, beside others that append.

    delta-rs reads the log anew before each try. Beside writers that commit within that time it loses every race, and
    no later plan of the lake comes to its turn. Raises as `LogEnd.merge`.
    """
    now_ms = int(time.time() * 1000)
    rows = old.select(["path", "date", "size_bytes"]).to_pylist()
    actions = [file.addition(data_change=False) for file in new]
    actions += [
        removal(row["path"], row["date"].isoformat(), row["size_bytes"], now_ms, data_change=False) for row in rows
    ]
    paths = [row["path"] for row in rows]
    end = LogEnd(lake, contract)
    while (end.said(PLAN_ID) or 0) < plan and not end.merge(actions, paths, plan, said):
        end.keep()  # to read what came meanwhile, and not all of it
        end = LogEnd.of(lake, contract)
    end.keep()
