"""Rows of ``rejects`` as rows of their tables again: those that pass all that sends rows there today.

A row is stored whole as JSON (`ranklake.lake.ingest.rejects`). What it cannot be read back from exactly stays where it
is: columns that the contract does not know, values that are not of their type, a key that the table holds already, a
date that retention removed, a segment that a person disowned.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract as packaged
from ranklake.lake.delta.read import read, read_some
from ranklake.lake.governance.retired import retired_dates
from ranklake.lake.plans.action_plan import live_files

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.storage.store import Lake

REJECTS: Final = "rejects"
_SOURCES: Final = ("check", "ingest")
"""Who took out what may come back; what a person disowned does not."""
_KEY: Final = ("incarnation", "segment", "slot")
_EPOCH: Final = datetime.fromtimestamp(0, UTC)


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
        columns = [self.rows[name].to_pylist() for name in _KEY]
        return hashlib.sha256(json.dumps(sorted(zip(*columns, strict=True))).encode()).hexdigest()


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
    held = read(lake, contract, list(_KEY), partitions=sorted({dates[at] for at in good})) if good else None
    there = set() if held is None else set(zip(*(held[name].to_pylist() for name in _KEY), strict=True))
    keys = list(zip(*(rows[name].to_pylist() for name in _KEY), strict=True))
    found = []
    for at in good:
        if keys[at] not in there and keys[at] not in seen:
            seen.add(keys[at])
            found.append(at)
    return found


def row_values(contract: "Contract", text: str | None) -> dict[str, Any] | None:
    """Return a row's values under the contract's types; None where it is not one."""
    schema = arrow_schema(contract)
    try:
        told = json.loads(text or "")
        if not isinstance(told, dict) or not set(told) <= set(schema.names):
            return None
        values = {name: _value(value, schema.field(name).type) for name, value in told.items()}
        if values.get("date") is None and values.get("ts") is not None:
            values["date"] = values["ts"].date()  # a segment's row has none
        pa.Table.from_pylist([values], schema=schema)
    except (ValueError, TypeError, OverflowError, pa.ArrowException):
        return None
    return values


def _value(value: Any, type_: pa.DataType) -> Any:  # noqa: ANN401 - whatever JSON has
    if value is None:
        return None
    if pa.types.is_timestamp(type_):
        return _moment(value)
    if pa.types.is_date(type_):
        return date.fromisoformat(value)
    return float(value) if pa.types.is_floating(type_) else value


def _moment(text: str) -> datetime:
    """Return a time that is ISO 8601, or µs since 1970 where its year has not four digits. Raises `OverflowError`."""
    return _EPOCH + timedelta(microseconds=int(text)) if text.lstrip("-").isdigit() else datetime.fromisoformat(text)
