"""What a lake remembers of its columns under keys of subjects.

<lake>/subjects.json              columns that were ever stored under keys, and their ids, which no migration changes
"""

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.storage.reachability import LakeError
from ranklake.lake.storage.rewriting import overwrite

if TYPE_CHECKING:
    from ranklake.lake.storage.store import Lake

KNOWN: Final = "subjects.json"
FORMAT: Final = 1


class SubjectKeysError(LakeError):
    """Keys of subjects that are not there, or not what was written. Nothing was stored, and nothing forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is remembered.

    Attributes
    ----------
    columns
        Columns that were ever stored under keys: whose, by ``table.column`` under the name of that time.
    ids
        Ids of columns in their contracts, of those and of what names whose they are, by ``table.column``. Of a name
        that two columns had, of both; lacking where an earlier release wrote the column down.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    ids: Mapping[str, frozenset[int]] = field(default_factory=dict)

    @classmethod
    def parse(cls, raw: bytes) -> "Known":
        """Return what bytes say. Raises what JSON does, `KeyError`, `TypeError`, `ValueError` and `AttributeError`."""
        said = json.loads(raw)
        columns = {str(name): str(by) for name, by in said["columns"].items()}
        ids = {str(name): frozenset(map(int, some)) for name, some in said.get("ids", {}).items()}
        return cls(columns=columns, ids=ids)

    def with_more(self, columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> "Known":
        """Return what is remembered with other columns, too."""
        every = {name: self.ids.get(name, frozenset()) | set(ids.get(name, ())) for name in {*self.ids, *ids}}
        return Known(columns={**self.columns, **columns}, ids=every)

    def raw(self) -> bytes:
        """Return its bytes."""
        said: dict[str, Any] = {"format": FORMAT, "columns": dict(self.columns)}
        return json.dumps({**said, "ids": {name: sorted(some) for name, some in self.ids.items()}}).encode()


def known(lake: "Lake") -> Known:
    """Return what a lake remembers. Raises `SubjectKeysError` where the file cannot be read."""
    try:
        return Known.parse(lake.fs.cat_file(lake.path(KNOWN)))
    except FileNotFoundError:
        return Known()
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        mend = "write it again: the columns under [subjects], each with the column that names whose it is"
        what = "what says which columns are under keys is damaged"
        raise SubjectKeysError(what, where=lake.path(KNOWN), mend=mend) from None


def known_columns(lake: "Lake") -> Mapping[str, str]:
    """Return the columns that were ever stored under keys: whose, by ``table.column``. Raises as `known`."""
    return known(lake).columns


def know(lake: "Lake", columns: Mapping[str, str], ids: Mapping[str, Collection[int]]) -> None:
    """Write down that columns are under keys of subjects, with those that are already; arguments as `Known` has."""
    before = known(lake)
    after = before.with_more(columns, ids)
    if after == before:
        return
    if before.columns or not lake.put_if_absent(KNOWN, after.raw()):
        overwrite(lake.fs, lake.path(KNOWN), after.raw(), local=lake.is_local)
