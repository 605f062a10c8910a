"""The ingestion index: which files in the spool were ingested, and which slots, by the table ``segments``."""

import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.deduplication import joined_slots
from ranklake.lake.ingest.segment_columns import NEWER_FORMAT, known_here
from ranklake.lake.ingest.spool.gate import DENIED, NEWER, TOO_LARGE, UNSTEADY
from ranklake.lake.ingest.spool.packs import SpoolFile, identities, is_rewritten, is_unread
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.store.limits import Limits
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables

_ASKED: Final = 64
_PICK: Final = random.Random()  # noqa: S311 - which files are asked for is no secret
IDENTITY: Final = ("sha256", "uri_name", "bytes", "table", "unreadable", "signed_by")
STREAM: Final = ("run", "attempt", "rank", "incarnation")
ERASED: Final = "erased~"
"""Begins what an erasure puts in the place of names; no run's name can have it in it."""
SlotFile = tuple[str, int, int]
"""Table, incarnation, segment."""
Stream = tuple[str, int, int, int]
"""Run, attempt, rank, incarnation."""


@dataclass(frozen=True, slots=True)
class KnownSlots:
    """Slots of a slot file that earlier plans took in.

    Attributes
    ----------
    slots
        As text, see `ranklake.lake.ingest.deduplication`.
    places
        Where the segments lay that brought them: path, digest, and whether it was signed.
    """

    slots: str
    places: tuple[tuple[str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """What earlier plans took in of a process that records.

    Attributes
    ----------
    streams
        Whose it is: one, unless an erasure took names of runs.
    signed, encrypted
        Whether segments of it were signed, or encrypted: then all of them have to be.
    """

    streams: frozenset[Stream]
    signed: bool
    encrypted: bool


def new_files(
    listing: list[SpoolFile], known: pa.Table, judged: Mapping[str, datetime] | None = None
) -> list[list[SpoolFile]]:
    """Return the files that no plan named yet, in stream order, those that claim one digest together.

    Parameters
    ----------
    known
        Columns `IDENTITY` of the table ``segments``. A damaged file that is replaced by a sound copy of another size is
        new again.
    judged
        By path, when a file was found damaged: one that was written since is new again, whatever its size.
    """
    digests, places = identities(_candidates(known, listing))
    erased = _erased_slots(known)
    claims: dict[tuple[str, str], list[SpoolFile]] = {}
    for item in listing:
        claim = (item.table, item.sha256)
        if item.name is not None and slot_file_of(item) in erased:
            continue
        if claim in digests or ((item.path, item.size_bytes) in places and not is_rewritten(item, judged or {})):
            continue
        claims.setdefault(claim, []).append(item)
    return list(claims.values())


def _erased_slots(known: pa.Table) -> set[SlotFile]:
    """Return the slot files of whose runs an erasure took the name: no cut of them comes in again, under no name."""
    if not {"run", "incarnation", "segment"} <= set(known.column_names):
        return set()
    nameless = known.filter(pc.fill_null(pc.match_substring(known["run"], ERASED), fill_value=False))
    return {(row["table"], row["incarnation"], row["segment"]) for row in nameless.to_pylist()}


def sort_out(
    claims: Sequence[list[SpoolFile]],
    known: pa.Table,
    limits: Limits,
    contracts: "Mapping[str, Contract]",
    readable: Callable[[SpoolFile, str], bool] = lambda _item, _why: False,
) -> tuple[list[list[SpoolFile]], dict[str, str]]:
    """Return the files that may come into a plan, and why others may not, by path.

    Parameters
    ----------
    claims
        As `new_files` returns them.
    known
        As for `new_files`.
    contracts
        Of all tables that the lake knows.
    readable
        Says whether a file that could not be read, and why, can be now. So many are asked for at most; if all of these
        can, the rest is taken to be readable, too. By default none is.
    """
    unread = known.filter(
        pc.is_in(known["unreadable"], value_set=pa.array([DENIED, UNSTEADY], known["unreadable"].type))
    )
    why = dict(zip(unread["uri_name"].to_pylist(), unread["unreadable"].to_pylist(), strict=True))
    waits = _waiting(known)
    doubtful = [item for some in claims for item in some if item.path in why]
    asked = {item.path: readable(item, why[item.path]) for item in _PICK.sample(doubtful, min(_ASKED, len(doubtful)))}
    mended = all(asked.values())
    ready: list[list[SpoolFile]] = []
    held: dict[str, str] = {}
    for files in claims:
        fit = []
        for item in files:
            if item.size_bytes > limits.segment_bytes:
                held[item.path] = TOO_LARGE
            elif (reason := _still_newer(item, waits, contracts)) is not None:
                held[item.path] = reason
            elif item.path in why and not asked.get(item.path, mended):
                held[item.path] = why[item.path]
            else:
                fit.append(item)
        if fit:
            ready.append(fit)
    return ready, held


def _waiting(known: pa.Table) -> set[tuple[str, str]]:
    """Return path and reason of segments that were found newer than what was known then."""
    newer = known.filter(pc.fill_null(pc.starts_with(known["unreadable"], NEWER), fill_value=False))
    return set(zip(newer["uri_name"].to_pylist(), newer["unreadable"].to_pylist(), strict=True))


def _still_newer(item: SpoolFile, waits: set[tuple[str, str]], contracts: "Mapping[str, Contract]") -> str | None:
    """Return why a file that was found newer still waits; None if it did not, or may be tried again."""
    if not waits:
        return None
    return next((why for why in (known_here(item.table, contracts), NEWER_FORMAT) if (item.path, why) in waits), None)


def _candidates(known: pa.Table, listing: list[SpoolFile]) -> pa.Table:
    """Return the known segments that some files may be: all there ever were are too many to look at one by one."""
    digests = pa.array([item.sha256 for item in listing], pa.string())
    paths = pa.array([item.path for item in listing], pa.string())
    return known.filter(
        pc.or_(pc.is_in(known["sha256"], value_set=digests), pc.is_in(known["uri_name"], value_set=paths))
    )


def damaged_when(tables: "Tables", known: pa.Table) -> dict[str, datetime]:
    """Return when each damaged file was found damaged, by path; `known` as for `new_files`, and the column plan."""
    damaged = known.filter(pc.and_(pc.is_valid(known["unreadable"]), pc.invert(is_unread(known["unreadable"]))))
    if not damaged.num_rows:
        return {}
    ledger = read(tables, contract(LEDGER), ["plan", "created_ts"]).to_pylist()
    created = {row["plan"]: row["created_ts"] for row in ledger}
    dates: dict[str, datetime] = {}
    for row in damaged.select(["uri_name", "plan"]).to_pylist():
        when = created.get(row["plan"])
        if when is not None:
            dates[row["uri_name"]] = max(when, dates.get(row["uri_name"], when))
    return dates


def known_slots(known: pa.Table, segments: "Iterable[SpoolFile]") -> dict[SlotFile, KnownSlots]:
    """Return what is known of the slot files of some segments; nothing of one that came never, or damaged.

    Parameters
    ----------
    known
        Columns table, `STREAM`, segment, slots, uri_name, sha256, signed_by and unreadable of the table ``segments``.
    """
    wanted = {slot_file_of(item) for item in segments if item.name is not None}
    near = known.filter(pc.is_null(known["unreadable"]))
    for place, name in ((1, "incarnation"), (2, "segment")):
        values = pa.array({slot_file[place] for slot_file in wanted}, near[name].type)
        near = near.filter(pc.is_in(near[name], value_set=values))
    rows_by_file: dict[SlotFile, list[Mapping[str, Any]]] = {}
    columns = ["table", *STREAM, "segment", "slots", "uri_name", "sha256", "signed_by"]
    for row in near.select(columns).to_pylist():
        slot_file = (row["table"], row["incarnation"], row["segment"])
        if slot_file in wanted:
            rows_by_file.setdefault(slot_file, []).append(row)
    return {
        slot_file: KnownSlots(
            joined_slots(row["slots"] or "" for row in rows),
            tuple((row["uri_name"], row["sha256"], row["signed_by"] is not None) for row in rows),
        )
        for slot_file, rows in rows_by_file.items()
    }


def known_processes(known: pa.Table, segments: "Iterable[SpoolFile]") -> dict[int, KnownProcess]:
    """Return by incarnation what is known of those of some segments; nothing of one that came never, or damaged.

    Parameters
    ----------
    known
        As for `known_slots`, and columns uri_name and signed_by.
    """
    wanted = pa.array({item.name.incarnation for item in segments if item.name is not None}, known["incarnation"].type)
    near = known.filter(pc.and_(pc.is_null(known["unreadable"]), pc.is_in(known["incarnation"], value_set=wanted)))
    rows_by_process: dict[int, list[Mapping[str, Any]]] = {}
    for row in near.select([*STREAM, "uri_name", "signed_by"]).to_pylist():
        rows_by_process.setdefault(row["incarnation"], []).append(row)
    return {
        incarnation: KnownProcess(
            frozenset(stream_of_row(row) for row in rows),
            any(row["signed_by"] is not None for row in rows),
            any(row["uri_name"].endswith(".enc") for row in rows),
        )
        for incarnation, rows in rows_by_process.items()
    }


def slot_file_of(item: SpoolFile) -> SlotFile:
    """Return the slot file of a segment, as its name says."""
    assert item.name is not None
    return (item.table, item.name.incarnation, item.name.segment)


def stream_of(item: SpoolFile) -> Stream:
    """Return whose a segment is, as its name says."""
    assert item.name is not None
    return (item.name.run, item.name.attempt, item.name.rank, item.name.incarnation)


def stream_of_row(row: Mapping[str, Any]) -> Stream:
    """Return whose a segment is, as its row of the table ``segments`` says."""
    return row["run"], row["attempt"], row["rank"], row["incarnation"]
