"""What became of the keys of a lake's subjects: there, damaged, forgotten, lost."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.delta.commit import files
from ranklake.lake.delta.read import read_some
from ranklake.lake.delta.tables import latest
from ranklake.lake.subjects.keys import sealed_by
from ranklake.lake.subjects.store import KeyStore, known_columns

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake


@dataclass(frozen=True, slots=True)
class KeyState:
    """The keys of a lake's subjects.

    Attributes
    ----------
    keys, forgotten
        How many are there, and how many were forgotten on purpose.
    faults
        Files that hold no key that can be used, each with the reason.
    lost
        Rows by ``table.column`` that a key sealed which is neither there nor forgotten.
    """

    keys: int
    forgotten: int
    faults: tuple[tuple[str, str], ...]
    lost: tuple[tuple[str, int], ...]

    @property
    def is_sound(self) -> bool:
        """Whether every key that was not forgotten is there."""
        return not self.faults and not self.lost

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "keys": self.keys,
            "forgotten": self.forgotten,
            "faults": [{"where": where, "what": what} for where, what in self.faults],
            "lost": [{"column": column, "rows": rows} for column, rows in self.lost],
        }


def key_state(lake: "Lake") -> KeyState:
    """Look at every key, and at every value in live rows that one sealed. Raises as `KeyStore`."""
    store = KeyStore(lake)
    every = list(store.each())
    there = store.ids | store.forgotten
    lost = [(name, rows) for name in sorted(known_columns(lake)) if (rows := _lost(lake, name, there))]
    faults = [(one.place.path(one.name), one.wrong) for one in every if one.wrong]
    return KeyState(len(store.ids), len(store.forgotten), tuple(faults), tuple(lost))


def _lost(lake: "Lake", column: str, there: frozenset[str]) -> int:
    """Return how many live rows have a value that no known key sealed."""
    table, _, name = column.partition(".")
    handle = latest(lake, table)
    count = 0
    for _, rows in read_some(lake, lake.contract(table), files(handle), [name]) if handle is not None else ():
        counted = pc.value_counts(rows[name].cast(pa.string()).combine_chunks()).to_pylist()
        for one in counted:
            key_id = None if one["values"] is None else sealed_by(one["values"])
            count += one["counts"] if key_id is not None and key_id not in there else 0
    return count
