"""The plan of kind ``ingest``: which new segments it names, and what it records of them before they are read.

listing ─▶ unknown files ─▶ by digest and prefix: candidates ─▶ one writer a process ─▶ rows of the plan

A digest may lie in several places, and several writers may claim one process's number.
"""

import json
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

import ranklake
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.index_summary import IngestionIndex
from ranklake.lake.ingest.ingestion_index import (
    KnownProcess,
    KnownSlots,
    SlotFile,
    damaged_when,
    known_processes,
    known_slots,
    new_files,
    slot_file_of,
    sort_out,
    stream_of,
)
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER, Plan
from ranklake.lake.store.planned_segment import EarlierCut, PlannedSegment
from ranklake.lake.store.reachability import LakeError
from ranklake.lake.store.writers import NOT_ENCRYPTED, OTHERS_INCARNATION
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import keep_overlay, latest, refuse_unfit
from ranklake.printable import counted, printable_name
from ranklake.segments.keys import has_key

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

    from ranklake.lake.ingest.spool.listing_cache import ListingCache
    from ranklake.lake.ingest.spool.packs import SpoolFile
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

PLAN_SEGMENTS = 20_000
_LATE: Final = datetime.max.replace(tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class Candidate:
    """Files of one prefix that claim one digest.

    Attributes
    ----------
    files
        At least one.
    prefix
        The configured prefix that they lie under; None for none.
    refused
        Why none of them may be there; empty if they may.
    """

    files: list["SpoolFile"]
    prefix: str | None = None
    refused: str = ""

    @property
    def file(self) -> "SpoolFile":
        """The first."""
        return self.files[0]

    @property
    def key_id(self) -> str:
        """Id of the key that they are encrypted with; empty if they are not."""
        return self.file.name.key_id if self.file.name else ""


@dataclass(frozen=True, slots=True)
class Composition:
    """A plan, and why other files stay in the spool.

    Attributes
    ----------
    plan
        None where nothing is new.
    waiting
        Keys that segments wait for, by id or by prefix, and how many wait for each.
    held
        Why other files stay in the spool unread, by printable path.
    """

    plan: Plan | None = None
    waiting: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)


def compose(lake: "Lake", spool: "Spool", number: int, rounds: "ListingCache | None" = None) -> Composition:
    """Compose the plan that brings in what is new in the spool.

    Raises `LakeError` where a table that had rows is gone, `ranklake.lake.tables.tables.NewerTableError` where one
    knows more than this software, and `ranklake.lake.contracts.errors.ContractError` for an overlay that the lake
    cannot be written under: before anything is written.

    Parameters
    ----------
    rounds
        Says which day folders may wait, and takes in what is seen in the others; by default all are listed.
    """
    contracts = keep_overlay(lake)
    new = _new_files(lake, spool, rounds)
    waiting = Counter(new.keyless)
    held = spool.passed_over | {printable_name(path): why for path, why in new.held.items()}
    if not new.ready:
        return Composition(None, waiting, held)
    rules, _ = spool.writers.rules()
    planned = new.ready[:PLAN_SEGMENTS]
    files = [candidate.file for candidate in planned]
    processes = known_processes(new.known, files)
    chosen = drop_disputed(planned, processes)
    tables = sorted({candidate.file.table for candidate in chosen})
    versions = {table: _version(lake, table) for table in [*tables, "rejects"]}
    for table in tables:
        if versions[table] < 0:
            _refuse_lost(lake.tables, table)
    body = {
        "spool": spool.address,
        "writer": f"ranklake {ranklake.__version__}",
        "contracts": contracts,
        "versions": versions,
        **lake.config.ingest.for_plan(),
        "left": len(new.ready) - len(chosen) + new.unopened,
        "rules": [rule.facts() for rule in rules.values()],
        "segments": list(plan_rows(spool, chosen, known_slots(new.known, files), processes, list(rules))),
    }
    return Composition(Plan(number, INGEST.name, time.time_ns() // 1000, body), waiting, held)


@dataclass(frozen=True, slots=True)
class _NewFiles:
    """What is new in the spool.

    Attributes
    ----------
    ready
        What a plan may name; enough for one, if there is.
    known
        Rows of ``segments`` about these files, with the columns of `ranklake.lake.ingest.index_summary`.
    keyless
        The key that a segment waits for, one for each segment.
    held
        Why other files are left alone, by path.
    unopened
        How many segments were not looked at.
    """

    ready: list[Candidate]
    known: "pa.Table"
    keyless: list[str]
    held: dict[str, str]
    unopened: int


def _new_files(lake: "Lake", spool: "Spool", rounds: "ListingCache | None") -> _NewFiles:
    """Look for new files in the spool; remember for later rounds where they were."""
    index = IngestionIndex(lake.store, _segments(lake.tables))
    _, lacking = spool.writers.rules()
    for listing, unopened in spool.listings(index.recent_member_count, rounds, PLAN_SEGMENTS):
        known = index.of(listing)
        new, closed = new_files(listing, known, damaged_when(lake.tables, known)), unopened
        fit, held = sort_out(new, known, lake.config.ingest, lake.contracts(), spool.is_readable)
        found_files = candidates(spool, fit)
        missing = {
            key_id
            for key_id in {candidate.key_id for candidate in found_files if candidate.key_id}
            if not has_key(lake.config.encryption_key, key_id)
        }
        ready = [one for one in found_files if one.refused or (one.key_id not in missing and one.prefix not in lacking)]
        if len(ready) >= PLAN_SEGMENTS:
            break
    # Files that were not looked at may be new: their folders are listed again.
    paths = {*(item.path for claims in new for item in claims), *closed}
    if rounds is not None and rounds.note(spool.folder_of(path) for path in paths):
        rounds.save(lake.store)
    keyless = [one.key_id for one in found_files if not one.refused and one.key_id in missing]
    unsigned = [
        one.prefix for one in found_files if not one.refused and one.key_id not in missing and one.prefix in lacking
    ]
    keyless += [f"of the prefix {prefix!r} ({lacking[prefix]})" for prefix in unsigned if prefix is not None]
    return _NewFiles(ready, known, keyless, held, sum(closed.values()))


def _segments(tables: "Tables") -> "DeltaTable | None":
    """Open the table ``segments``; None before the first plan.

    Raises `LakeError` where plans were finished and the table is gone, and where newer software wrote it.
    """
    handle = latest(tables, "segments")
    if handle is not None:
        return refuse_unfit(handle, contract("segments"))
    if INGEST.name in read(tables, contract(LEDGER), ["kind"])["kind"].to_pylist():
        hint = "restore tables/segments from a backup; else all that is in the spool would be stored again"
        raise LakeError("the table segments is gone", where=tables.store.uri, hint=hint)
    return None


def _version(lake: "Lake", table: str) -> int:
    handle = latest(lake.tables, table)
    return -1 if handle is None else refuse_unfit(handle, lake.contract(table)).version()


def _refuse_lost(tables: "Tables", table: str) -> None:
    """Raise `LakeError` where a table that has no log has rows by the ledger: it would be begun anew without them."""
    accounts = read(tables, contract(LEDGER), ["tables"])["tables"].to_pylist()
    rows = sum(json.loads(account or "{}").get(table, 0) for account in accounts)
    if rows > 0:
        message = f"the table, or its log, is gone, and has {counted(rows, 'row')} by the table {LEDGER}"
        hint = f"'ranklake repair {table} URI' puts it back from a backup; without one 'ranklake replay' rebuilds dates"
        raise LakeError(message, where=table, hint=hint)


def candidates(spool: "Spool", new: Sequence[list["SpoolFile"]]) -> list[Candidate]:
    """Group new files by digest, and by what the configuration says of their place."""
    if not spool.writers.prefixes:
        return [Candidate(claims) for claims in new]
    result: list[Candidate] = []
    for claims in new:
        by_place: dict[tuple[str | None, str], list[SpoolFile]] = {}
        for item in claims:
            below = spool.path_of(item.path)
            own = spool.writers.prefix_of(below)
            refused = spool.writers.refusal(below, item.name) if item.name else ""
            by_place.setdefault((own.prefix if own else None, refused), []).append(item)
        for (prefix, refused), items in by_place.items():
            groups = [[item] for item in items] if refused else [items]
            result += [Candidate(group, prefix, refused) for group in groups]
    return result


def drop_disputed(chosen: Sequence[Candidate], known: Mapping[int, KnownProcess]) -> list[Candidate]:
    """Leave out candidates whose process's number another stream claims, until it is known whose it is.

    Of those that claim a number about which nothing is known, one stream comes first: the encrypted before the clear,
    then whose file was written first, as the store says. Once one of them was read, it is known.
    """
    firsts: dict[int, Candidate] = {}
    for candidate in chosen:
        name = candidate.file.name
        if name is None or candidate.refused or name.incarnation in known:
            continue
        before = firsts.setdefault(name.incarnation, candidate)
        if _precedence(candidate) < _precedence(before):
            firsts[name.incarnation] = candidate
    return [candidate for candidate in chosen if candidate.refused or _goes_with(candidate, firsts)]


def _goes_with(candidate: Candidate, firsts: Mapping[int, Candidate]) -> bool:
    name = candidate.file.name
    first = firsts.get(name.incarnation) if name is not None else None
    if first is None:
        return True
    return stream_of(candidate.file) == stream_of(first.file) and bool(candidate.key_id) == bool(first.key_id)


def _precedence(candidate: Candidate) -> tuple[bool, datetime]:
    return not candidate.key_id, candidate.file.modified or _LATE


def plan_rows(
    spool: "Spool",
    chosen: Sequence[Candidate],
    slots: Mapping[SlotFile, KnownSlots],
    processes: Mapping[int, KnownProcess],
    rules: Sequence[str],
) -> Iterator[PlannedSegment]:
    """Yield a plan's rows of segments.

    Parameters
    ----------
    slots, processes
        What earlier plans took in of their slot files, and of the processes that recorded them.
    rules
        Prefixes that the plan has a rule for, in its order.
    """
    places = {prefix: place for place, prefix in enumerate(rules)}
    for candidate in chosen:
        item = candidate.file
        process = processes.get(item.name.incarnation) if item.name else None
        refused = candidate.refused or _refusal(candidate, process)
        earlier = slots.get(slot_file_of(item)) if item.name and not refused else None
        yield {
            "path": item.path,
            "others": [other.path for other in candidate.files[1:]],
            "table": item.table,
            "bytes": item.size_bytes,
            "rows": item.name.rows if item.name else 0,
            "sha256": item.sha256,
            "seen": earlier.slots if earlier else "",
            "earlier": _earlier_cuts(spool, earlier),
            "refused": refused,
            "rule": places.get(candidate.prefix, -1) if candidate.prefix is not None else -1,
            "sign": process is not None and process.signed,
        }


def _earlier_cuts(spool: "Spool", earlier: KnownSlots | None) -> list[EarlierCut]:
    """Segments of a slot file that were taken in, as far as they lie in this spool: the table may name any path."""
    places = earlier.places if earlier else ()
    return [
        {"path": path, "sha256": sha256, "signed": signed}
        for path, sha256, signed in places
        if spool.path_of(path) != path and ".." not in path.split("/")
    ]


def _refusal(candidate: Candidate, process: KnownProcess | None) -> str:
    """Why a segment cannot be of the process that it names; empty if it can."""
    if process is None:
        return ""
    if stream_of(candidate.file) not in process.streams:
        return OTHERS_INCARNATION
    return NOT_ENCRYPTED if process.encrypted and not candidate.key_id else ""
