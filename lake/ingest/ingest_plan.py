"""Composes the plan of kind ``ingest``: the new segments of the spool, and the facts that decide how each is read.

listing ─▶ files not ingested yet ─▶ candidates, by digest and prefix ─▶ one stream per process ─▶ rows of the plan

Several files may have the same digest, and several writers may use the same incarnation.
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
    select_readable,
    slot_file_of,
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
    """Files below one prefix whose names have the same digest.

    Attributes
    ----------
    files
        At least one file.
    prefix
        The configured prefix above the files; None where none is configured.
    refused
        Why the files may not be at their place; empty if they may.
    """

    files: list["SpoolFile"]
    prefix: str | None = None
    refused: str = ""

    @property
    def file(self) -> "SpoolFile":
        """The first of the files."""
        return self.files[0]

    @property
    def key_id(self) -> str:
        """Id of the key that encrypts the files; empty if they are not encrypted."""
        return self.file.name.key_id if self.file.name else ""


@dataclass(frozen=True, slots=True)
class Composition:
    """A plan, and the reasons why it leaves out other files.

    Attributes
    ----------
    plan
        None if nothing is new.
    waiting
        Number of segments that wait for a missing key, by the key's id or by prefix.
    held
        The reason why a file is kept in the spool unread, by printable path.
    """

    plan: Plan | None = None
    waiting: Counter[str] = field(default_factory=Counter)
    held: dict[str, str] = field(default_factory=dict)


def compose(lake: "Lake", spool: "Spool", number: int, cache: "ListingCache | None" = None) -> Composition:
    """Compose the plan that ingests the new files of the spool.

    Parameters
    ----------
    cache
        Says which day folders need no listing now, and is updated for the others. By default all are listed.

    Raises
    ------
    LakeError
        A table that had rows is missing.
    ranklake.lake.tables.tables.NewerTableError
        Newer software wrote one of the tables.
    ranklake.lake.contracts.errors.ContractError
        The lake cannot be written under the configured overlay.

    All of these are raised before anything is written.
    """
    contracts = keep_overlay(lake)
    new = _new_files(lake, spool, cache)
    waiting = Counter(new.missing_keys)
    held = spool.passed_over | {printable_name(path): reason for path, reason in new.held.items()}
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
        **lake.config.ingest.to_plan(),
        "left": len(new.ready) - len(chosen) + new.unopened,
        "rules": [rule.facts() for rule in rules.values()],
        "segments": list(plan_rows(spool, chosen, known_slots(new.known, files), processes, list(rules))),
    }
    return Composition(Plan(number, INGEST.name, time.time_ns() // 1000, body), waiting, held)


@dataclass(frozen=True, slots=True)
class _NewFiles:
    """New files of the spool.

    Attributes
    ----------
    ready
        Candidates for a plan: `PLAN_SEGMENTS` or more, or all if there are fewer.
    known
        Rows of ``segments`` about these files, with the columns of `ranklake.lake.ingest.index_summary`.
    missing_keys
        For each segment that waits, a description of the missing key.
    held
        The reason why a file is left out, by path.
    unopened
        Number of segments in packs that were not opened yet.
    """

    ready: list[Candidate]
    known: "pa.Table"
    missing_keys: list[str]
    held: dict[str, str]
    unopened: int


def _new_files(lake: "Lake", spool: "Spool", cache: "ListingCache | None") -> _NewFiles:
    """List the spool for new files; record in the cache which day folders had some."""
    index = IngestionIndex(lake.store, _segments(lake.tables))
    _, missing_signing_keys = spool.writers.rules()
    for listing, unopened in spool.listings(index.recent_member_count, cache, PLAN_SEGMENTS):
        known = index.rows_about(listing)
        new, unopened_packs = new_files(listing, known, damaged_when(lake.tables, known)), unopened
        readable, held = select_readable(new, known, lake.config.ingest, lake.contracts(), spool.is_readable)
        all_candidates = candidates(spool, readable)
        missing_key_ids = {
            key_id
            for key_id in {candidate.key_id for candidate in all_candidates if candidate.key_id}
            if not has_key(lake.config.encryption_key, key_id)
        }
        ready = [
            candidate
            for candidate in all_candidates
            if candidate.refused
            or (candidate.key_id not in missing_key_ids and candidate.prefix not in missing_signing_keys)
        ]
        if len(ready) >= PLAN_SEGMENTS:
            break
    # Packs that were not opened may have new segments, so their folders are listed again next time.
    paths = {*(item.path for copies in new for item in copies), *unopened_packs}
    if cache is not None and cache.note(spool.folder_of(path) for path in paths):
        cache.save(lake.store)
    waiting = [candidate for candidate in all_candidates if not candidate.refused]
    missing_keys = [candidate.key_id for candidate in waiting if candidate.key_id in missing_key_ids]
    missing_keys += [
        f"of the prefix {candidate.prefix!r} ({missing_signing_keys[candidate.prefix]})"
        for candidate in waiting
        if candidate.key_id not in missing_key_ids
        and candidate.prefix is not None
        and candidate.prefix in missing_signing_keys
    ]
    return _NewFiles(ready, known, missing_keys, held, sum(unopened_packs.values()))


def _segments(tables: "Tables") -> "DeltaTable | None":
    """Open the table ``segments``; None before the first plan.

    Raises `LakeError` if plans are finished and the table is missing, or if newer software wrote it.
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
    """Raise `LakeError` if a table without a Delta transaction log has rows according to the ledger.

    Without the error a new, empty table would be created and the rows would be missing from it.
    """
    counts_json = read(tables, contract(LEDGER), ["tables"])["tables"].to_pylist()
    rows = sum(json.loads(counts or "{}").get(table, 0) for counts in counts_json)
    if rows > 0:
        message = f"the table, or its log, is gone, and has {counted(rows, 'row')} by the table {LEDGER}"
        hint = f"'ranklake repair {table} URI' puts it back from a backup; without one 'ranklake replay' rebuilds dates"
        raise LakeError(message, where=table, hint=hint)


def candidates(spool: "Spool", new: Sequence[list["SpoolFile"]]) -> list[Candidate]:
    """Group new files by digest, by configured prefix and by reason for refusal.

    Parameters
    ----------
    new
        As `new_files` returns them: a list of files per digest.
    """
    if not spool.writers.prefixes:
        return [Candidate(copies) for copies in new]
    result: list[Candidate] = []
    for copies in new:
        by_place: dict[tuple[str | None, str], list[SpoolFile]] = {}
        for item in copies:
            relative_path = spool.path_of(item.path)
            configured = spool.writers.prefix_of(relative_path)
            refused = spool.writers.refusal(relative_path, item.name) if item.name else ""
            by_place.setdefault((configured.prefix if configured else None, refused), []).append(item)
        for (prefix, refused), items in by_place.items():
            groups = [[item] for item in items] if refused else [items]
            result += [Candidate(group, prefix, refused) for group in groups]
    return result


def drop_disputed(chosen: Sequence[Candidate], known: Mapping[int, KnownProcess]) -> list[Candidate]:
    """Leave out candidates of streams that use the incarnation of another stream.

    An incarnation belongs to one stream. If no earlier plan read a segment with that incarnation, one stream wins: an
    encrypted stream before an unencrypted one, then the stream whose file was written first. After one of its segments
    was read, the owner is known (`known`).
    """
    winners: dict[int, Candidate] = {}
    for candidate in chosen:
        name = candidate.file.name
        if name is None or candidate.refused or name.incarnation in known:
            continue
        winner = winners.setdefault(name.incarnation, candidate)
        if _precedence(candidate) < _precedence(winner):
            winners[name.incarnation] = candidate
    return [candidate for candidate in chosen if candidate.refused or _is_of_winner(candidate, winners)]


def _is_of_winner(candidate: Candidate, winners: Mapping[int, Candidate]) -> bool:
    name = candidate.file.name
    first = winners.get(name.incarnation) if name is not None else None
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
    """Yield the entries of a plan, one per candidate.

    Parameters
    ----------
    slots, processes
        What earlier plans ingested from the candidates' slot files and recording processes.
    rules
        Prefixes of the plan's rules, in their order.
    """
    rule_indexes = {prefix: index for index, prefix in enumerate(rules)}
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
            "rule": rule_indexes.get(candidate.prefix, -1) if candidate.prefix is not None else -1,
            "sign": process is not None and process.signed,
        }


def _earlier_cuts(spool: "Spool", earlier: KnownSlots | None) -> list[EarlierCut]:
    """Return the ingested segments of a slot file, except for those whose recorded path is outside this spool."""
    segments = earlier.segments if earlier else ()
    return [
        {"path": path, "sha256": sha256, "signed": signed}
        for path, sha256, signed in segments
        if spool.path_of(path) != path and ".." not in path.split("/")
    ]


def _refusal(candidate: Candidate, process: KnownProcess | None) -> str:
    """Return why a segment cannot be from the process in its name; empty if it can."""
    if process is None:
        return ""
    if stream_of(candidate.file) not in process.streams:
        return OTHERS_INCARNATION
    return NOT_ENCRYPTED if process.encrypted and not candidate.key_id else ""
