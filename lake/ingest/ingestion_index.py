"""The ingestion index: which files of the spool, and which slots, were ingested, from the table ``segments``."""

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

_READ_SAMPLE: Final = 64
_RANDOM: Final = random.Random()  # noqa: S311 - the choice of files is no secret
IDENTITY: Final = ("sha256", "uri_name", "bytes", "table", "unreadable", "signed_by")
STREAM: Final = ("run", "attempt", "rank", "incarnation")
ERASED: Final = "erased~"
"""Prefix of the text with which an erasure replaces names; no run's name can contain it."""
SlotFile = tuple[str, int, int]
"""Table, incarnation, segment."""
Stream = tuple[str, int, int, int]
"""Run, attempt, rank, incarnation."""


@dataclass(frozen=True, slots=True)
class KnownSlots:
    """Slots of a slot file that earlier plans ingested.

    Attributes
    ----------
    slots
        As text, in the format of `ranklake.lake.ingest.deduplication`.
    segments
        Path, digest and whether it was signed, of each ingested segment of the slot file.
    """

    slots: str
    segments: tuple[tuple[str, str, bool], ...] = ()


@dataclass(frozen=True, slots=True)
class KnownProcess:
    """What earlier plans ingested from one recording process.

    Attributes
    ----------
    streams
        The process's stream. There are more only after an erasure has replaced names of runs.
    signed, encrypted
        Whether any of its segments was signed or encrypted. If so, all later ones must be.
    """

    streams: frozenset[Stream]
    signed: bool
    encrypted: bool


def new_files(
    listing: list[SpoolFile], known: pa.Table, damaged_since: Mapping[str, datetime] | None = None
) -> list[list[SpoolFile]]:
    """Return the files that were not ingested yet, in stream order, as one list per table and digest.

    Parameters
    ----------
    known
        Columns `IDENTITY` of the table ``segments``. A file with the path of a damaged one, but another size, is new.
    damaged_since
        When a file was found damaged, by path. A file that was written after that is new, whatever its size.
    """
    digests, places = identities(_candidates(known, listing))
    erased = _erased_slots(known)
    copies: dict[tuple[str, str], list[SpoolFile]] = {}
    for item in listing:
        key = (item.table, item.sha256)
        if item.name is not None and slot_file_of(item) in erased:
            continue
        is_at_known_place = (item.path, item.size_bytes) in places
        if key in digests or (is_at_known_place and not is_rewritten(item, damaged_since or {})):
            continue
        copies.setdefault(key, []).append(item)
    return list(copies.values())


def _erased_slots(known: pa.Table) -> set[SlotFile]:
    """Return the slot files of erased runs. No segment of them is ingested again, under any name."""
    if not {"run", "incarnation", "segment"} <= set(known.column_names):
        return set()
    nameless = known.filter(pc.fill_null(pc.match_substring(known["run"], ERASED), fill_value=False))
    return {(row["table"], row["incarnation"], row["segment"]) for row in nameless.to_pylist()}


def select_readable(
    new: Sequence[list[SpoolFile]],
    known: pa.Table,
    limits: Limits,
    contracts: "Mapping[str, Contract]",
    is_readable: Callable[[SpoolFile, str], bool] = lambda _item, _reason: False,
) -> tuple[list[list[SpoolFile]], dict[str, str]]:
    """Return the new files that a plan may name, and for each other file the reason by path.

    Parameters
    ----------
    new
        As `new_files` returns them.
    known
        As for `new_files`.
    contracts
        Contracts of all tables of the lake.
    is_readable
        Whether a file that an earlier plan could not read, for a reason, can be read now. It is called for a random
        sample; if all files of the sample are readable, so are taken to be the others. By default none is readable.
    """
    unread = known.filter(
        pc.is_in(known["unreadable"], value_set=pa.array([DENIED, UNSTEADY], known["unreadable"].type))
    )
    reasons = dict(zip(unread["uri_name"].to_pylist(), unread["unreadable"].to_pylist(), strict=True))
    newer = _newer_segments(known)
    doubtful = [item for copies in new for item in copies if item.path in reasons]
    sample = _RANDOM.sample(doubtful, min(_READ_SAMPLE, len(doubtful)))
    sampled = {item.path: is_readable(item, reasons[item.path]) for item in sample}
    all_readable = all(sampled.values())
    ready: list[list[SpoolFile]] = []
    held: dict[str, str] = {}
    for files in new:
        readable = []
        for item in files:
            if item.size_bytes > limits.segment_bytes:
                held[item.path] = TOO_LARGE
            elif (reason := _still_newer(item, newer, contracts)) is not None:
                held[item.path] = reason
            elif item.path in reasons and not sampled.get(item.path, all_readable):
                held[item.path] = reasons[item.path]
            else:
                readable.append(item)
        if readable:
            ready.append(readable)
    return ready, held


def _newer_segments(known: pa.Table) -> set[tuple[str, str]]:
    """Return path and reason of the segments that were newer than the contract or format at the time of reading."""
    newer = known.filter(pc.fill_null(pc.starts_with(known["unreadable"], NEWER), fill_value=False))
    return set(zip(newer["uri_name"].to_pylist(), newer["unreadable"].to_pylist(), strict=True))


def _still_newer(item: SpoolFile, newer: set[tuple[str, str]], contracts: "Mapping[str, Contract]") -> str | None:
    """Return the reason why a newer segment still waits; None if it is not newer or should be tried again."""
    if not newer:
        return None
    reasons = (known_here(item.table, contracts), NEWER_FORMAT)
    return next((reason for reason in reasons if (item.path, reason) in newer), None)


def _candidates(known: pa.Table, listing: list[SpoolFile]) -> pa.Table:
    """Return the rows of `known` with the digest or path of a listed file. Arrow filters them: they are many."""
    digests = pa.array([item.sha256 for item in listing], pa.string())
    paths = pa.array([item.path for item in listing], pa.string())
    return known.filter(
        pc.or_(pc.is_in(known["sha256"], value_set=digests), pc.is_in(known["uri_name"], value_set=paths))
    )


def damaged_when(tables: "Tables", known: pa.Table) -> dict[str, datetime]:
    """Return when each damaged file was last found damaged, by path.

    Parameters
    ----------
    known
        As for `new_files`, and the column plan.
    """
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
    """Return the ingested slots of the slot files of some segments, by slot file.

    A slot file of which no sound segment was ingested is missing from the result.

    Parameters
    ----------
    known
        Columns table, `STREAM`, segment, slots, uri_name, sha256, signed_by and unreadable of the table ``segments``.
    """
    wanted = {slot_file_of(item) for item in segments if item.name is not None}
    sound = known.filter(pc.is_null(known["unreadable"]))
    for position, name in ((1, "incarnation"), (2, "segment")):
        values = pa.array({slot_file[position] for slot_file in wanted}, sound[name].type)
        sound = sound.filter(pc.is_in(sound[name], value_set=values))
    rows_by_file: dict[SlotFile, list[Mapping[str, Any]]] = {}
    columns = ["table", *STREAM, "segment", "slots", "uri_name", "sha256", "signed_by"]
    for row in sound.select(columns).to_pylist():
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
    """Return the recording processes of some segments, by incarnation.

    A process of which no sound segment was ingested is missing from the result.

    Parameters
    ----------
    known
        As for `known_slots`, and columns uri_name and signed_by.
    """
    wanted = pa.array({item.name.incarnation for item in segments if item.name is not None}, known["incarnation"].type)
    sound = known.filter(pc.and_(pc.is_null(known["unreadable"]), pc.is_in(known["incarnation"], value_set=wanted)))
    rows_by_process: dict[int, list[Mapping[str, Any]]] = {}
    for row in sound.select([*STREAM, "uri_name", "signed_by"]).to_pylist():
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
    """Return the slot file of a segment, from the file name."""
    assert item.name is not None
    return (item.table, item.name.incarnation, item.name.segment)


def stream_of(item: SpoolFile) -> Stream:
    """Return the stream of a segment, from the file name."""
    assert item.name is not None
    return (item.name.run, item.name.attempt, item.name.rank, item.name.incarnation)


def stream_of_row(row: Mapping[str, Any]) -> Stream:
    """Return the stream of a segment, from its row of the table ``segments``."""
    return row["run"], row["attempt"], row["rank"], row["incarnation"]
