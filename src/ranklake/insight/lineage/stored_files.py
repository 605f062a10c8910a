"""Data files with rows of a run: their bytes against the digest in their names, and which segments their rows name."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.live_files import damaged_files
from ranklake.lake.tables.read import read_some

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables

VERIFIED: Final = "verified"
DELETED: Final = "deleted since"
"""State of a file of an older version that is gone: merged, rewritten or removed, which is no fault."""
_MISSING: Final = "it is not there"
_SLOT_FILE: Final = ("incarnation", "segment")

SlotFile = tuple[int, int]
"""Incarnation and segment: with a table's name they tell which segment a row came in."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file.

    Attributes
    ----------
    version
        Delta version in which it was read, where later ones have it no more; None for a live file.
    rows
        Those of the run; None where the file is damaged or gone.
    state
        `VERIFIED`, `DELETED`, or what is wrong with it.
    """

    table: str
    path: str
    version: int | None
    rows: int | None
    state: str

    @property
    def is_faulty(self) -> bool:
        """Whether it is not what was written."""
        return self.state not in {VERIFIED, DELETED}


class Examined(NamedTuple):
    """A data file that was looked at, its date, and the slot files of its rows."""

    file: StoredFile
    date: date
    slot_files: frozenset[SlotFile]


def examined(
    tables: "Tables", known: "Contract", live: pa.Table, run: str | None, version: int | None
) -> Iterator[Examined]:
    """Yield those of some files that hold rows of a run, or of any with None; damaged ones in any case.

    Parameters
    ----------
    live
        Rows of `ranklake.lake.tables.live_files.files`.
    version
        Delta version whose files they are, of which some may be gone; None for live files.
    """
    has_run = run is not None and "run" in known
    columns = [*(["run"] if has_run else []), *(_SLOT_FILE if known.envelope else ())]
    for place in range(live.num_rows):
        single = live.slice(place, 1)
        (facts,) = single.select(["path", "date", "num_records"]).to_pylist()
        path, day = facts["path"], facts["date"]
        if damage := damaged_files(tables, known.table, single):
            why = DELETED if version is not None and damage[0].why == _MISSING else damage[0].why
            yield Examined(StoredFile(known.table, path, version, None, why), day, frozenset())
            continue
        if not columns:
            yield Examined(StoredFile(known.table, path, version, facts["num_records"], VERIFIED), day, frozenset())
            continue
        ((_, rows),) = read_some(tables, known, single, columns)
        own = rows.filter(pc.field("run") == run) if has_run else rows
        if own.num_rows:
            stored = StoredFile(known.table, path, version, own.num_rows, VERIFIED)
            yield Examined(stored, day, _slot_files(own) if known.envelope else frozenset())


def _slot_files(rows: pa.Table) -> frozenset[SlotFile]:
    keys = rows.select(_SLOT_FILE).group_by(list(_SLOT_FILE)).aggregate([])
    return frozenset(zip(*(keys[name].to_pylist() for name in _SLOT_FILE), strict=True))
