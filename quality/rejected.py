"""Rows of ``rejects`` as rows of their tables again: those that pass all that sends rows there today.

A row is stored whole as JSON (`ranklake.lake.ingest.rejects`). What it cannot be read back from exactly stays where it
is: columns that the contract does not know, values that are not of their type, a key that the table holds already, a
date that retention removed, a segment that a person disowned.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.contracts.row_text import row_values
from ranklake.lake.plans.action_plan import live_files
from ranklake.lake.tables.read import read, read_some
from ranklake.lake.tables.row_keys import RECORDED_KEY, keys_sha256
from ranklake.retention.proposals.retired import retired_dates

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.store import Lake

REJECTS: Final = "rejects"
_SOURCES: Final = ("check", "ingest")
"""Who took out what may come back; what a person disowned does not."""


@dataclass(frozen=True, slots=True)
class Mended:
    """Rows of one table that pass now, of one date of ``rejects`` and one reason.

    Attributes
    ----------
    places
        Where they are in ``rejects``: path of the file and row in it.
    rows
        As they go into their table.
    """

    table: str
    taken_out: date
    reason: str
    places: tuple[tuple[str, int], ...]
    rows: pa.Table

    @property
    def keys_sha256(self) -> str:
        """Digest of their keys, in whatever order."""
        return keys_sha256(self.rows)


def mended_rows(lake: "Lake", tables: Sequence[str]) -> Iterator[Mended]:
    """Yield what of the rejects of some tables passes under the contracts of today."""
    contracts = lake.contracts()
    live = live_files(lake, REJECTS, sorted({*_dates(lake)}))
    groups: dict[tuple[str, date, str], list[tuple[tuple[str, int], dict[str, Any]]]] = {}
    names = ["table", "source", "reason", "row", "date"]
    for path, rows in read_some(lake, packaged(REJECTS), live, names):
        for place, row in enumerate(rows.to_pylist()):
            known = contracts.get(row["table"])
            if row["table"] not in tables or known is None or row["source"] not in _SOURCES:
                continue
            if (values := row_values(known, row["row"])) is not None:
                groups.setdefault((row["table"], row["date"], row["reason"]), []).append(((path, place), values))
    taken = retired_dates(lake)
    seen: dict[str, set[tuple[int, ...]]] = {}
    for (table, day, reason), some in sorted(groups.items(), key=lambda one: one[0]):
        rows = pa.Table.from_pylist([values for _, values in some], schema=arrow_schema(contracts[table]))
        good = _passing(lake, contracts[table], rows, taken.get(table, {}), seen.setdefault(table, set()))
        if good:
            places = tuple(some[index][0] for index in good)
            yield Mended(table, day, reason, places, rows.take(pa.array(good)))


def _dates(lake: "Lake") -> list[date]:
    return pc.unique(read(lake, packaged(REJECTS), ["date"])["date"]).to_pylist()  # type: ignore[no-any-return]


def _passing(
    lake: "Lake", contract: "Contract", rows: pa.Table, taken: Mapping[date, int], seen: set[tuple[int, ...]]
) -> list[int]:
    """Return which rows pass, and may come: whose date is not gone, and whose key is not there already."""
    verdicts = edge.judge(contract, rows).to_pylist()
    dates = rows["date"].to_pylist()
    good = [at for at, why in enumerate(verdicts) if why is None and dates[at] is not None and dates[at] not in taken]
    held = read(lake, contract, list(RECORDED_KEY), partitions=sorted({dates[at] for at in good})) if good else None
    there = set() if held is None else set(zip(*(held[name].to_pylist() for name in RECORDED_KEY), strict=True))
    keys = list(zip(*(rows[name].to_pylist() for name in RECORDED_KEY), strict=True))
    found = []
    for at in good:
        if keys[at] not in there and keys[at] not in seen:
            seen.add(keys[at])
            found.append(at)
    return found
