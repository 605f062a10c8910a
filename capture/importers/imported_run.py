"""Imported run: turns rows of a foreign file into segments, with the same code that seals a rank's own.

A stream's incarnation is made from what is imported (`ImportIdentity`), and slots are positions in the file's order. So
the same file gives the same keys, whoever imports it and however often, and ingest stores nothing twice.

A file may speak of thousands of ranks in a row or two each. So what waits of a table is sealed as one segment: in the
stream of its rank where it is of one, else in a stream of the file's, whose footers say of which ranks (decision 027).
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa

import ranklake
from ranklake.capture.common.arrays import Array, numbers
from ranklake.capture.importers.import_identity import ImportIdentity
from ranklake.capture.importers.imported_streams import ImportedStreams, Shipped
from ranklake.capture.importers.typed_rows import (
    RANK,
    SEVERAL,
    cuts_of,
    fields_of,
    fit,
    flag_of,
    joined,
    narrow,
    stream_of,
    typed_columns,
)
from ranklake.capture.importers.waiting_rows import WaitingRows
from ranklake.capture.sealing.keys import NO_KEYS, ActiveKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.capture.sealing.rows import NO_ROWS, Columns, Rows
from ranklake.lake.contracts.overlay import Overlay
from ranklake.segments.segment import REFUSED

SEGMENT_ROWS: Final = 200_000
"""Rows of a stream and table that are sealed together."""
HELD_ROWS: Final = 1_000_000
"""Rows of all streams that wait to be sealed; beyond them the fullest is sealed."""
_SHOWN_REASONS: Final = 3


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
    overlay
        Operators' contracts.
    masks
        What is masked before it is sealed.
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
    overlay: Overlay | None = None
    masks: SealedMasks | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    first_refused: list[str] = field(default_factory=list)
    _lanes: dict[tuple[int, str], WaitingRows] = field(default_factory=dict)
    _streams: ImportedStreams = field(init=False)
    _held: int = 0
    _first_ns: int | None = None
    _beside: list["ImportedRun"] = field(default_factory=list)

    def __post_init__(self) -> None:
        of = (self.identity, self.run, self.attempt)
        self._streams = ImportedStreams(*of, self.shipped, self.day, self.keys, self.overlay, self.masks)

    def beside(self, run: str, attempt: int) -> "ImportedRun":
        """Return a recording of another run or attempt in the same file; this one counts its rows, and closes it."""
        other = ImportedRun(
            self.identity,
            run,
            attempt,
            self.shipped,
            self.day,
            self.keys,
            rows=self.rows,
            refused=self.refused,
            overlay=self.overlay,
            masks=self.masks,
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
            self.row("scalars", ts_ns, rank, metric=metric, value_flag=flag_of(value), **more)

    def step(self, number: int, seconds: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a step that began at `ts_ns`; of loss, grad_norm and lr, what is not finite is flagged."""
        wrong = []
        for name in ("loss", "grad_norm", "lr"):
            value = columns.get(name)
            if value is not None and not math.isfinite(narrow(value)):
                columns[name] = None
                wrong.append(f"{name}:{flag_of(narrow(value))}")
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
            The foreign row; see `WaitingRows.refuse`.
        line
            Where in the file, from 1.
        """
        lane = self._lane(rank, table)
        lane.refuse(reason, self.identity.name, line, text, rank)
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
        self._streams.end(self.world_size)

    def _lane(self, rank: int, table: str) -> WaitingRows:
        key = self._key(rank, table)
        lane = self._lanes.get(key)
        if lane is None:
            lane = self._lanes[key] = WaitingRows()
        return lane

    def _key(self, rank: int, table: str) -> tuple[int, str]:
        return (rank if self.rank_by_rank else SEVERAL, table)

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
            rows = self._typed(table, *lane.take_rows())
        else:
            rows = joined(fields_of(table, self.overlay), lane.batches)
            lane.batches = []
        self._held -= lane.held
        lane.held = 0
        self._seal_refused(table, lane)
        stream, rows = stream_of(rows)
        parts = cuts_of(rows)
        for part in parts:
            self._write(stream, table, part, final=final and part is parts[-1])

    def _seal_refused(self, table: str, lane: WaitingRows) -> None:
        if lane.refused:
            self._held -= len(lane.refused)
            stream, rows = stream_of(lane.take_refused())
            self._write(stream, table, rows, final=False)

    def _write(self, stream: int, table: str, rows: Rows, *, final: bool) -> None:
        self._streams.write(stream, table, rows, self.world_size, final=final)
        if len(rows) and REFUSED not in rows.columns:
            self.rows[table] = self.rows.get(table, 0) + len(rows)

    def _typed(self, table: str, times: list[int], given: list[Mapping[str, Any]], ranks: list[int]) -> Rows:
        """Return rows as columns; those that do not fit are refused, one by one."""
        fields = fields_of(table, self.overlay)
        columns = typed_columns(table, given, fields)
        if columns is None or not fit(times):
            kept = []
            for ts_ns, row, rank in zip(times, given, ranks, strict=True):
                if fit([ts_ns]) and typed_columns(table, [row], fields) is not None:
                    kept.append((ts_ns, row, rank))
                else:
                    self.refuse(table, "a value does not fit its column", _compact(row), rank=rank)
            times, given, ranks = [one for one, *_ in kept], [one for _, one, _ in kept], [one for *_, one in kept]
            columns = (typed_columns(table, given, fields) or {}) if given else {}
        if not given:
            return NO_ROWS
        columns[RANK] = numbers(np.array(ranks), pa.int32())
        return Rows(np.array(times, np.int64), np.arange(len(times)), columns, 0)


def today() -> str:
    """Return the UTC date: the day folder that segments go into, where ingest looks first."""
    return datetime.now(UTC).date().isoformat()


def _compact(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True, separators=(",", ":"), default=str)
