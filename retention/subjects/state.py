"""What became of the keys of a lake's subjects: there, damaged, forgotten, lost."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_some
from ranklake.lake.tables.tables import latest
from ranklake.retention.subjects.keys import Lineage, sealed_by
from ranklake.retention.subjects.store import KeyStore

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


@dataclass(frozen=True, slots=True)
class KeyState:
    """The keys of a lake's subjects.

    Attributes
    ----------
    keys, forgotten
        How many are there, and how many were forgotten on purpose.
    faults
        Files that hold no key that can be used, each with the reason and what to do.
    lost
        Rows by ``table.column`` that a key sealed which is neither there nor forgotten.
    unread
        Columns of which nobody looked for such rows, as there are too many.
    """

    keys: int
    forgotten: int
    faults: tuple[tuple[str, str, str], ...]
    lost: tuple[tuple[str, int], ...]
    unread: tuple[str, ...] = ()

    @property
    def is_sound(self) -> bool:
        """Whether every key exists that was not destroyed."""
        return not self.faults and not self.lost

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "keys": self.keys,
            "forgotten": self.forgotten,
            "faults": [{"where": where, "what": what, "hint": hint} for where, what, hint in self.faults],
            "lost": [{"column": column, "rows": rows} for column, rows in self.lost],
        }


LOST: Final = (
    "restore their files from a backup, each beside a newer one of its name: as NAME.old.key; a key that is gone for "
    "good leaves what it sealed unread for ever"
)


def key_state(lake: "Lake", most_rows: int | None = None) -> KeyState:
    """Look at every key, and at every value in live rows that one sealed. Raises as `KeyStore`.

    Parameters
    ----------
    most_rows
        Rows of a table, in live files, up to which its values are looked at; None: however many.
    """
    store = KeyStore(lake)
    every = list(store.each())
    lineage = Lineage(lake.store)
    names = sorted(name for contract in lake.contracts().values() for name in lineage.sealed_columns(contract))
    known = store.ids | store.forgotten
    unread = [name for name in names if most_rows is not None and _rows(lake.tables, name) > most_rows]
    lost = [(name, rows) for name in names if name not in unread and (rows := _unreadable_rows(lake, name, known))]
    faults = [(one.place.path(one.name), one.wrong, one.hint) for one in every if one.wrong]
    return KeyState(len(store.ids), len(store.forgotten), tuple(faults), tuple(lost), tuple(unread))


def _rows(tables: "Tables", column: str) -> int:
    handle = latest(tables, column.partition(".")[0])
    return 0 if handle is None else int(pc.sum(files(handle)["num_records"]).as_py() or 0)


def _unreadable_rows(lake: "Lake", column: str, there: frozenset[str]) -> int:
    """Return how many live rows have a value that no known key sealed."""
    table, _, name = column.partition(".")
    handle = latest(lake.tables, table)
    count = 0
    for _, rows in read_some(lake.tables, lake.contract(table), files(handle), [name]) if handle is not None else ():
        counted = pc.value_counts(rows[name].cast(pa.string()).combine_chunks()).to_pylist()
        for column_counts in counted:
            key_id = None if column_counts["values"] is None else sealed_by(column_counts["values"])
            count += column_counts["counts"] if key_id is not None and key_id not in there else 0
    return count
