"""Imported run: rows of a foreign file become segments, sealed by the very code that seals a rank's own.

A stream's incarnation is made from what is imported (`ImportIdentity`), and slots are positions in the file's order. So
the same file gives the same keys, whoever imports it and however often, and ingest stores nothing twice.

A file may speak of thousands of ranks in a row or two each. So what waits of a table is sealed as one segment: in the
stream of its rank where it is of one, else in a stream of the file's, whose footers say of which ranks (decision 064).
"""

import hashlib
import json
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa

import ranklake
from ranklake.capture.common.arrays import Array, numbers, plain, texts
from ranklake.capture.sealing.keys import NO_KEYS, ActiveKeys
from ranklake.capture.sealing.rows import FLAGS, NO_ROWS, Columns, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.redaction.redact import redact
from ranklake.segments.segment import DATES_PER_SEGMENT, REFUSED, REFUSED_ROW

SEGMENT_ROWS: Final = 200_000
"""Rows of a stream and table that are sealed together."""
HELD_ROWS: Final = 1_000_000
"""Rows of all streams that wait to be sealed; beyond them the fullest is sealed."""
_TEXT_CHARACTERS: Final = 4_096
_SHOWN_REASONS: Final = 3
_DAY_NS: Final = 86_400 * 10**9
_SEVERAL: Final = -1
"""Where a rank stands: that of the stream for rows of several."""
_WALL: Final = ((0, 0),)
"""Foreign times are wall times: the one anchor says that both clocks are the same."""

Shipped = Callable[[SealedFile, StreamName, bytes], None]


@dataclass(frozen=True, slots=True)
class ImportIdentity:
    """What rows are imported from.

    Attributes
    ----------
    format, mapping
        The importer, and the digest of the mapping's text; empty if it takes none.
    name, sha256
        The file's name without folders, and the digest of its bytes.
    by_name
        Whether two files of the same content are two imports, since rows depend on the name or the file's time.
    """

    format: str
    mapping: str
    name: str
    sha256: str
    by_name: bool = False

    def incarnation(self, run: str, attempt: int, rank: int) -> int:
        """Return the positive 63-bit number that stands for the import of a rank, or of `_SEVERAL`."""
        own = (self.name,) if self.by_name else ()
        whose = "ranks" if rank == _SEVERAL else str(rank)
        of = "\0".join((self.format, self.mapping, self.sha256, run, str(attempt), whose, *own))
        return (int.from_bytes(hashlib.sha256(of.encode()).digest()[:8], "big") >> 2) + 1


@dataclass
class _Lane:
    """Rows of one table that wait to be sealed: of one rank, or of all."""

    times: list[int] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    batches: list[tuple[Array, Columns, Array]] = field(default_factory=list)
    refused: list[tuple[str, str, int]] = field(default_factory=list)
    held: int = 0


@dataclass
class ImportedRun:
    """What is imported of one file into one attempt of a run. Call `close` at the end.

    Attributes
    ----------
    shipped
        Takes each segment.
    facts
        Columns of the row of ``runs`` that `close` adds, dated to the earliest row.
    says_run
        Whether there is such a row.
    rank_by_rank
        Whether each rank has segments of its own, as earlier versions made them.
    rows, refused
        Counted by table, and by reason.
    left_out
        Rows that a mapping's filters did not let through.
    first_refused
        Where the first few reasons were met first: file, line, reason.
    """

    identity: ImportIdentity
    run: str
    attempt: int
    shipped: Shipped
    day: str
    keys: ActiveKeys = NO_KEYS
    world_size: int = 1
    says_run: bool = True
    rank_by_rank: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    first_refused: list[str] = field(default_factory=list)
    _lanes: dict[tuple[int, str], _Lane] = field(default_factory=dict)
    _metas: dict[int, Meta] = field(default_factory=dict)
    _told: set[int] = field(default_factory=set)
    _held: int = 0
    _first_ns: int | None = None
    _beside: list["ImportedRun"] = field(default_factory=list)

    def beside(self, run: str, attempt: int) -> "ImportedRun":
        """Return a recording of another run or attempt in the same file; this one counts its rows, and closes it."""
        other = ImportedRun(
            self.identity, run, attempt, self.shipped, self.day, self.keys, rows=self.rows, refused=self.refused
        )
        other.rank_by_rank = self.rank_by_rank
        other.first_refused = self.first_refused
        self._beside.append(other)
        return other

    def of(self, run: str, attempt: int) -> "ImportedRun":
        """Return the recording of a run and attempt that a row names: this one, or one beside it that says the same."""
        for one in (self, *self._beside):
            if (one.run, one.attempt) == (run, attempt):
                return one
        other = self.beside(run, attempt)
        other.says_run, other.facts = self.says_run, dict(self.facts)
        return other

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found in the file: neither rows nor what could not be converted."""
        return not self._lanes

    @property
    def labels(self) -> dict[str, str]:
        """What the row of ``runs`` says of where the run came from."""
        of = self.identity
        return {"imported": of.format, "source": of.name, "source_sha256": of.sha256}

    @property
    def runs(self) -> list[str]:
        """Names of the runs that the file holds."""
        return list(dict.fromkeys(one.run for one in (self, *self._beside) if not one.is_empty)) or [self.run]

    def row(self, table: str, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401 - any column
        """Add a row.

        Parameters
        ----------
        ts_ns
            Wall time, ns since 1970.
        columns
            The contract's; NULL where left out. A row whose values do not fit them is refused when it is sealed.
        """
        lane = self._lane(rank, table)
        if lane.batches:
            self._seal(rank, table)
        lane.times.append(ts_ns)
        lane.rows.append(columns)
        lane.ranks.append(rank)
        self._took(rank, table, ts_ns, 1)

    def batch(self, table: str, ts_ns: Array, columns: Columns, ranks: Array | int = 0) -> None:
        """Add rows by columns of the contract's types, all finite; `ranks` is that of all rows, or of each."""
        if not len(ts_ns):
            return
        of_each = np.broadcast_to(np.asarray(ranks, np.int64), len(ts_ns))
        if self.rank_by_rank and (of_each != of_each[0]).any():
            for rank in np.unique(of_each):
                mine = np.flatnonzero(of_each == rank)
                chosen = {name: column.take(pa.array(mine)) for name, column in columns.items()}
                self.batch(table, ts_ns[mine], chosen, int(rank))
            return
        rank = int(of_each[0])
        lane = self._lane(rank, table)
        if lane.rows:
            self._seal(rank, table)
        lane.batches.append((ts_ns, columns, of_each))
        self._took(rank, table, int(ts_ns.min()), len(ts_ns))

    def scalar(self, metric: str, value: float, ts_ns: int, rank: int = 0, **more: Any) -> None:  # noqa: ANN401
        """Add a value; one that is not finite is flagged, as recorded values are. `more`: step and kind."""
        if math.isfinite(value):
            self.row("scalars", ts_ns, rank, metric=metric, value=float(value), **more)
        else:
            self.row("scalars", ts_ns, rank, metric=metric, value_flag=_flag(value), **more)

    def step(self, number: int, seconds: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a step that began at `ts_ns`; of loss, grad_norm and lr, what is not finite is flagged."""
        wrong = []
        for name in ("loss", "grad_norm", "lr"):
            value = columns.get(name)
            if value is not None and not math.isfinite(_narrow(value)):
                columns[name] = None
                wrong.append(f"{name}:{_flag(_narrow(value))}")
        if wrong:
            columns["non_finite"] = ",".join(wrong)
        self.row("steps", ts_ns, rank, step=number, step_time_s=seconds, **columns)

    def refuse(self, table: str, reason: str, text: str, line: int | None = None, rank: int = 0) -> None:
        """Send what could not be converted to quarantine.

        Parameters
        ----------
        table
            Where it was meant to go.
        reason
            Why; no value in it.
        text
            The foreign row; credentials in it are redacted, and it is cut at `_TEXT_CHARACTERS`.
        line
            Where in the file, from 1.
        """
        place = {"file": self.identity.name} | ({} if line is None else {"line": line})
        whole = json.dumps(place | {"text": redact(text[:_TEXT_CHARACTERS])}, ensure_ascii=False)
        lane = self._lane(rank, table)
        lane.refused.append((f"import: {reason}", whole, rank))
        if reason not in self.refused and len(self.first_refused) < _SHOWN_REASONS:
            self.first_refused.append(f"{self.identity.name}{'' if line is None else f':{line}'}: {reason}")
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self._held += 1
        if len(lane.refused) >= SEGMENT_ROWS:
            self._seal_refused(table, lane)

    def close(self) -> None:
        """Seal what is left: the row of ``runs``, and for each stream a last segment that says how much there was."""
        for other in self._beside:
            other.close()
        if self.says_run and self._first_ns is not None:
            said = json.loads(self.facts.pop("labels", "{}"))
            facts: dict[str, Any] = {
                "world_size": self.world_size,
                "ranklake_version": ranklake.__version__,
            } | self.facts
            self.row("runs", self._first_ns, labels=_compact(self.labels | said), **facts)
        tables: dict[int, list[str]] = {}
        for rank, table in self._lanes:
            tables.setdefault(rank, []).append(table)
        for rank in sorted(tables):
            for table in sorted(set(tables[rank]) - {"events"}):
                self._seal(rank, table, final=True)
            if "events" in tables[rank]:
                self._seal(rank, "events", final=True)
        for stream in sorted(self._metas.keys() - self._told):
            self._write(stream, "events", NO_ROWS, final=True)

    def _lane(self, rank: int, table: str) -> _Lane:
        key = self._key(rank, table)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = _Lane()
        return lane

    def _key(self, rank: int, table: str) -> tuple[int, str]:
        return (rank if self.rank_by_rank else _SEVERAL, table)

    def _took(self, rank: int, table: str, ts_ns: int, count: int) -> None:
        lane = self._lane(rank, table)
        lane.held += count
        self._held += count
        if self._first_ns is None or ts_ns < self._first_ns:
            self._first_ns = ts_ns
        if lane.held >= SEGMENT_ROWS:
            self._seal(rank, table)
        elif self._held >= HELD_ROWS:
            self._seal(*max(self._lanes, key=lambda key: self._lanes[key].held))

    def _seal(self, rank: int, table: str, *, final: bool = False) -> None:
        lane = self._lane(rank, table)
        if lane.rows:
            times, given, ranks = lane.times, lane.rows, lane.ranks
            lane.times, lane.rows, lane.ranks = [], [], []
            rows = self._typed(table, times, given, ranks)
        else:
            rows = _joined(table, lane.batches)
            lane.batches = []
        self._held -= lane.held
        lane.held = 0
        self._seal_refused(table, lane)
        stream, rows = _stream_of(rows)
        parts = _cuts(rows)
        for part in parts:
            self._write(stream, table, part, final=final and part is parts[-1])

    def _seal_refused(self, table: str, lane: _Lane) -> None:
        if lane.refused:
            reasons, wholes, ranks = zip(*lane.refused, strict=True)
            self._held -= len(lane.refused)
            lane.refused = []
            zeros = np.zeros(len(reasons), np.int64)
            columns = {REFUSED: texts(reasons), REFUSED_ROW: texts(wholes), _RANK: numbers(np.array(ranks), pa.int32())}
            stream, rows = _stream_of(Rows(zeros, np.arange(len(reasons)), columns, 0))
            self._write(stream, table, rows, final=False)

    def _typed(self, table: str, times: list[int], given: list[Mapping[str, Any]], ranks: list[int]) -> Rows:
        """Return rows as columns; those that do not fit are refused, one by one."""
        fields = _fields(table)
        columns = _columns(table, given, fields)
        if columns is None or not _fit(times):
            kept = []
            for ts_ns, row, rank in zip(times, given, ranks, strict=True):
                if _fit([ts_ns]) and _columns(table, [row], fields) is not None:
                    kept.append((ts_ns, row, rank))
                else:
                    self.refuse(table, "a value does not fit its column", _compact(row), rank=rank)
            times, given, ranks = [one for one, *_ in kept], [one for _, one, _ in kept], [one for *_, one in kept]
            columns = (_columns(table, given, fields) or {}) if given else {}
        if not given:
            return NO_ROWS
        columns[_RANK] = numbers(np.array(ranks), pa.int32())
        return Rows(np.array(times, np.int64), np.arange(len(times)), columns, 0)

    def _write(self, stream: int, table: str, rows: Rows, *, final: bool) -> None:
        """Seal rows as the next segment of a stream: a rank's, or that of `_SEVERAL`, whose rows say their ranks."""
        meta = self._metas.setdefault(stream, Meta())
        incarnation = self.identity.incarnation(self.run, self.attempt, stream)
        name = StreamName(self.run, self.attempt, max(stream, 0), incarnation)
        number = meta.highest.get(table, -1) + 1
        origin = Origin(name, self.world_size, "", ranks=_extent(rows) if stream == _SEVERAL else ())
        raw, footer = segment_bytes(origin, meta, table, number, rows, _WALL, final=final, keys=self.keys)
        if final and table == "events":
            self._told.add(stream)
        meta.add_sealed(table, number, len(rows), footer.gaps, final=final)
        if len(rows) and REFUSED not in rows.columns:
            self.rows[table] = self.rows.get(table, 0) + len(rows)
        digest = hashlib.sha256(raw).hexdigest()
        self.shipped(SealedFile(Path(), table, number, self.day, len(rows), digest, footer.key_id), name, raw)


def _stream_of(rows: Rows) -> tuple[int, Rows]:
    """Return the stream that rows go into, and the rows as they go there: with their ranks only where they differ."""
    low, high = _extent(rows) or (0, 0)
    if low != high:
        return _SEVERAL, rows
    return low, replace(rows, columns={name: column for name, column in rows.columns.items() if name != _RANK})


def _extent(rows: Rows) -> tuple[int, ...]:
    """Return the least and the greatest rank; nothing where there is no row."""
    ranks = rows.columns[_RANK].to_numpy() if len(rows) else NO_ROWS.slots
    return (int(ranks.min()), int(ranks.max())) if len(ranks) else ()


def _cuts(rows: Rows) -> list[Rows]:
    """Return rows in parts of no more dates than ingest takes from a segment; nearly always that is one."""
    _, firsts = np.unique(rows.mono_ns // _DAY_NS, return_index=True)
    if len(firsts) <= DATES_PER_SEGMENT:
        return [rows] if len(rows) else []
    end = int(np.sort(firsts)[DATES_PER_SEGMENT])
    return [_slice(rows, 0, end), *_cuts(_slice(rows, end, len(rows)))]


def _slice(rows: Rows, begin: int, end: int) -> Rows:
    columns = {name: column[begin:end] for name, column in rows.columns.items()}
    return Rows(rows.mono_ns[begin:end], np.arange(end - begin), columns, 0)


def today() -> str:
    """Return the UTC date: the day folder that segments go into, where ingest looks first."""
    return datetime.now(UTC).date().isoformat()


_FIELDS: dict[str, list[pa.Field]] = {}
_RANK: Final = "rank"
_ENVELOPE: Final = frozenset({"run", "attempt", "rank", "incarnation", "segment", "slot", "ts"})


def _fields(table: str) -> list[pa.Field]:
    if table not in _FIELDS:
        _FIELDS[table] = [item for item in arrow_schema(contract(table), segment=True) if item.name not in _ENVELOPE]
    return _FIELDS[table]


def _columns(table: str, given: list[Mapping[str, Any]], fields: list[pa.Field]) -> Columns | None:
    """Return the columns that rows have values for; None if a value does not fit, or a required one is missing."""
    named = set().union(*(row.keys() for row in given)) if given else set()
    unknown = named - {item.name for item in fields}
    assert not unknown, f"{table} has no {sorted(unknown)}"
    columns: Columns = {}
    try:
        for item in fields:
            if item.name in named:
                values = [row.get(item.name) for row in given]
                if not item.nullable and None in values:
                    return None
                columns[item.name] = plain(values, item.type)
            elif not item.nullable:
                return None
    except (TypeError, ValueError, OverflowError):
        return None
    return columns


def _joined(table: str, batches: list[tuple[Array, Columns, Array]]) -> Rows:
    if not batches:
        return NO_ROWS
    times = np.concatenate([times for times, *_ in batches])
    columns: Columns = {_RANK: numbers(np.concatenate([ranks for *_, ranks in batches]), pa.int32())}
    for item in _fields(table):
        if any(item.name in some for _, some, _ in batches):
            parts = [some[item.name] if item.name in some else pa.nulls(len(at), item.type) for at, some, _ in batches]
            columns[item.name] = pa.concat_arrays(parts)
    return Rows(times, np.arange(len(times)), columns, 0)


def _fit(times: list[int]) -> bool:
    return all(isinstance(ts_ns, int) and abs(ts_ns) < 1 << 62 for ts_ns in times)


def _flag(value: float) -> str:
    return FLAGS[0] if math.isnan(value) else FLAGS[1] if value > 0 else FLAGS[2]


def _narrow(value: float) -> float:
    with np.errstate(over="ignore"):
        return float(np.float32(value))


def _compact(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True, separators=(",", ":"), default=str)
