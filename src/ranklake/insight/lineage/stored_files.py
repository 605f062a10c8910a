"""Data files with rows of a run: verifies the digest in their names, and finds their segments."""

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.spool.gate import UnreadError
from ranklake.lake.ingest.spool.packs import Reader, pack_name, pack_of
from ranklake.lake.tables.live_files import damaged_files
from ranklake.lake.tables.read import read, read_some

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.store.tables import Tables

VERIFIED: Final = "verified"
DELETED: Final = "deleted since"
"""State of a deleted file of an older version: merged, rewritten or removed, which is not a fault."""
_MISSING: Final = "it is not there"
_SLOT_FILE: Final = ("incarnation", "segment")

SlotFile = tuple[int, int]
"""Incarnation and segment: with a table's name they identify a row's segment."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A data file.

    Attributes
    ----------
    version
        Delta version in which it was read, if later ones lack it; None for a live file.
    rows
        Number of rows of the run; None if the file is damaged or deleted.
    state
        `VERIFIED`, `DELETED`, or the fault.
    """

    table: str
    path: str
    version: int | None
    rows: int | None
    state: str

    @property
    def is_faulty(self) -> bool:
        """Whether its bytes were altered."""
        return self.state not in {VERIFIED, DELETED}


class Examined(NamedTuple):
    """A data file that was read, its date, and the slot files of its rows."""

    file: StoredFile
    date: date
    slot_files: frozenset[SlotFile]


def examined(
    tables: "Tables", known: "Contract", live: pa.Table, run: str | None, version: int | None
) -> Iterator[Examined]:
    """Yield the files that hold rows of a run, or of any run for None; and all damaged files.

    Parameters
    ----------
    live
        Rows of `ranklake.lake.tables.live_files.files`.
    version
        Delta version of the files, some of which may be deleted; None for live files.
    """
    has_run = run is not None and "run" in known
    columns = [*(["run"] if has_run else []), *(_SLOT_FILE if known.envelope else ())]
    for place in range(live.num_rows):
        single = live.slice(place, 1)
        (facts,) = single.select(["path", "date", "num_records"]).to_pylist()
        path, day = facts["path"], facts["date"]
        if damage := damaged_files(tables, known.table, single):
            reason = DELETED if version is not None and damage[0].why == _MISSING else damage[0].why
            yield Examined(StoredFile(known.table, path, version, None, reason), day, frozenset())
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


GONE: Final = "not in the spool any more"
ELSEWHERE: Final = "not in this spool: ingest read it in another"
UNASKED: Final = "not looked for: no spool is configured"
DIFFERS: Final = "its bytes differ from the digest that ingest recorded"
PACK_DIFFERS: Final = "its bytes differ from the digest in its name"
_ORDER: Final = ("run", "attempt", "rank", "incarnation", "segment", "plan")
_COLUMNS: Final = (*_ORDER, "table", "uri_name", "sha256", "rows_stored", "contract_version")


@dataclass(frozen=True, slots=True)
class FedSegment:
    """A segment with rows of the files.

    Attributes
    ----------
    path
        Path in the spool, as ingest read it.
    sha256
        Digest of its bytes, as ingest recorded it.
    rows
        Rows that it gave to the table.
    contract_version
        Contract version of the table when it was recorded.
    plan
        Plan that ingested it.
    state
        `VERIFIED`, `GONE`, `ELSEWHERE`, `UNASKED`, or the fault.
    """

    table: str
    path: str
    sha256: str
    rows: int
    contract_version: int | None
    plan: int
    state: str

    @property
    def is_faulty(self) -> bool:
        """Whether its bytes are not those that were ingested."""
        return self.state not in {VERIFIED, GONE, ELSEWHERE, UNASKED}


class SegmentLedger:
    """The table ``segments``, and the spool with their bytes; without a spool, bytes are not verified."""

    def __init__(self, tables: "Tables", spool: "Spool | None") -> None:
        self._spool = spool
        self._rows = read(tables, contract("segments"), _COLUMNS)
        self._packs: dict[str, str] = {}

    def fed(self, table: str, slot_files: Collection[SlotFile]) -> tuple[list[FedSegment], list[SlotFile]]:
        """Return the segments of some slot files of a table, and the slot files without a segment."""
        incarnations = pa.array(sorted({incarnation for incarnation, _ in slot_files}), pa.int64())
        chosen = (pc.field("table") == table) & (pc.field("rows_stored") > 0)
        rows = self._rows.filter(chosen & pc.field("incarnation").isin(incarnations))
        missing, segments = set(slot_files), []
        for row in rows.sort_by([(name, "ascending") for name in _ORDER]).to_pylist():
            slot_file = (row["incarnation"], row["segment"])
            if slot_file in slot_files:
                missing.discard(slot_file)
                segments.append(self._segment(row))
        return segments, sorted(missing)

    def damaged_packs(self, segments: Iterable[FedSegment]) -> list[str]:
        """Return the packs of some segments whose bytes differ from the digest in their names, by path."""
        packs = {pack for each in segments if (pack := pack_of(each.path)) is not None}
        return sorted(pack for pack in packs if self._packs.get(pack, VERIFIED) != VERIFIED)

    def _segment(self, row: Mapping[str, Any]) -> FedSegment:
        facts = (row["sha256"], row["rows_stored"], row["contract_version"], row["plan"])
        path, digest = row["uri_name"], row["sha256"]
        state = UNASKED if self._spool is None else self._state(path, digest)
        if state in {GONE, ELSEWHERE} and digest in self._copies:
            path = self._copies[digest]
            state = self._state(path, digest)
        elif state == ELSEWHERE and self._was_moved:
            state = GONE
        return FedSegment(row["table"], path, *facts, state)

    def _state(self, path: str, digest: str) -> str:
        assert self._spool is not None, "a segment is looked for in a spool"
        if not path.startswith(f"{self._spool.root}/"):
            return ELSEWHERE
        pack = pack_of(path)
        if pack is not None and pack not in self._packs:
            self._packs[pack] = self._pack_state(pack)
        try:
            raw = Reader(self._spool.fs, [], self._spool.root).read(path)
        except FileNotFoundError:
            return GONE
        except UnreadError as error:
            return error.what
        return VERIFIED if hashlib.sha256(raw).hexdigest() == digest else DIFFERS

    def _pack_state(self, path: str) -> str:
        assert self._spool is not None, "a pack is looked for in a spool"
        name = pack_name(path)
        try:
            raw = Reader(self._spool.fs, [], self._spool.root).read(path)
        except (FileNotFoundError, UnreadError):
            return VERIFIED  # the fault is reported at its segments
        return VERIFIED if name is None or hashlib.sha256(raw).hexdigest() == name.sha256 else PACK_DIFFERS

    @cached_property
    def _was_moved(self) -> bool:
        """Whether the spool has segments that ingest read at another place: it was moved or copied."""
        known = pa.array(self._copies.keys(), pa.string())
        return bool(self._rows.filter(pc.field("sha256").isin(known)).num_rows)

    @cached_property
    def _copies(self) -> dict[str, str]:
        """Present paths of segments, by digest: in another spool's folder, or in another pack."""
        return {} if self._spool is None else {item.sha256: item.path for item in self._spool.listing()}
