"""Imported run: collects the converted and refused rows of a foreign file, and seals them as segments."""

import json
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa

import ranklake
from ranklake.capture.assets.media_value import MOST_BYTES, hold, personal_column
from ranklake.capture.common.arrays import Array, numbers, texts
from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.common.values import BadValueError
from ranklake.capture.histogram import Histogram
from ranklake.capture.importers.imported_rows import (
    RANK,
    ImportedStreams,
    ImportIdentity,
    ImportTarget,
    fields_of,
    flag_of,
    join_batches,
    narrow,
    typed_columns,
)
from ranklake.capture.importers.units import local_moment_ns, moment_ns
from ranklake.capture.sealing.rows import NO_ROWS, Columns, Rows
from ranklake.redaction.redact import redact
from ranklake.segments.segment import REFUSED, REFUSED_ROW

SEGMENT_ROWS: Final = 200_000
"""Rows of a table in one segment."""
HELD_ROWS: Final = 1_000_000
"""Most rows of all tables in memory; then those of the table with the most are sealed."""
FIRST_REASONS: Final = 3
_NODE_TABLES: Final = frozenset({"jobs", "gpu_samples", "host_samples"})
"""Tables whose rows belong to nodes and schedulers, not to runs."""
_TEXT_CHARACTERS: Final = 4_096
_OTHER_ZONE: Final = "Asia/Shanghai"


@dataclass
class WaitingRows:
    """Rows of one table that wait to be sealed.

    Attributes
    ----------
    times, rows, ranks
        Rows added by `ImportedRun.row`, one item each.
    batches
        Rows added by `ImportedRun.batch`: times, columns, ranks. Empty while `rows` is not.
    refused
        Reason, foreign row and rank of each refused row.
    held
        Number of rows in `rows` or `batches`.
    """

    times: list[int] = field(default_factory=list)
    rows: list[Mapping[str, Any]] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    batches: list[tuple[Array, Columns, Array]] = field(default_factory=list)
    refused: list[tuple[str, str, int]] = field(default_factory=list)
    held: int = 0


@dataclass
class ImportedRun:
    """The rows of one file for one attempt of a run. Call `close` at the end.

    Attributes
    ----------
    facts
        Columns of the row of ``runs`` that `close` adds. Its ``ts`` is that of the earliest row.
    labels
        Labels of that row: origin of the run, and assumptions about its rows.
    has_run_row
        Whether `close` adds a row of ``runs``. A file with only samples or jobs gets none, unless `facts` is set.
    rows, refused
        Number of rows by table, and of refused rows by reason.
    left_out
        Rows that a mapping's filters excluded.
    not_imported
        Number of values of each kind that has no place here. A label says it, too.
    first_refused
        ``file:line: reason`` of the first `FIRST_REASONS` reasons.
    notes
        One sentence for each assumption, and for each kind of content that was not imported.
    zone
        Time zone of times that name none. If empty, they are read as UTC, and a note says so.
    """

    identity: ImportIdentity
    run: str
    attempt: int
    target: ImportTarget
    world_size: int = 1
    has_run_row: bool = True
    facts: dict[str, Any] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    rows: dict[str, int] = field(default_factory=dict)
    refused: dict[str, int] = field(default_factory=dict)
    left_out: int = 0
    not_imported: Counter[str] = field(default_factory=Counter)
    first_refused: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    zone: str = ""
    _waiting: dict[str, WaitingRows] = field(default_factory=dict)
    _streams: ImportedStreams = field(init=False)
    _held: int = 0
    _first_ns: int | None = None
    _siblings: list["ImportedRun"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._streams = ImportedStreams(self.identity, self.run, self.attempt, self.target)
        origin = {"imported": self.identity.format, "source": self.identity.name}
        self.labels = origin | {"source_sha256": self.identity.sha256} | self.labels

    def sibling(self, run: str, attempt: int) -> "ImportedRun":
        """Return a new recording for another run or attempt of the file. Its rows count here, and `close` closes it."""
        other = ImportedRun(
            self.identity, run, attempt, self.target,
            rows=self.rows, refused=self.refused, first_refused=self.first_refused, notes=self.notes, zone=self.zone,
        )  # fmt: skip
        self._siblings.append(other)
        return other

    def recording_of(self, run: str, attempt: int) -> "ImportedRun":
        """Return the recording of a run and attempt: this one or a sibling, which is made with copied facts if new."""
        for recording in (self, *self._siblings):
            if (recording.run, recording.attempt) == (run, attempt):
                return recording
        other = self.sibling(run, attempt)
        other.has_run_row, other.facts, other.labels = self.has_run_row, dict(self.facts), dict(self.labels)
        return other

    def moment_ns(self, text: str, form: str = "iso") -> int:
        """Convert a time of the file to ns since 1970. Raises `ValueError` with a message for users."""
        at_ns = local_moment_ns(text, form, self.zone)
        if not self.zone and at_ns != moment_ns(text, form, _OTHER_ZONE):
            self.notes[f"times name no zone and are read as UTC; set theirs with --zone, such as {_OTHER_ZONE}"] = None
        return at_ns

    @property
    def is_empty(self) -> bool:
        """Whether the file gave neither rows nor refused rows so far."""
        return not self._waiting

    @property
    def runs(self) -> list[str]:
        """Names of the runs with rows, or this run's name if no run has any."""
        recordings = (self, *self._siblings)
        return list(dict.fromkeys(recording.run for recording in recordings if not recording.is_empty)) or [self.run]

    def row(self, table: str, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401 - any column
        """Add a row.

        Parameters
        ----------
        ts_ns
            Wall time, ns since 1970.
        columns
            Columns of the contract; omitted ones are NULL. A row with a value that does not fit is refused on sealing.
        """
        waiting = self._waiting_rows(table)
        if waiting.batches:
            self._seal(table)
        waiting.times.append(ts_ns)
        waiting.rows.append(columns)
        waiting.ranks.append(rank)
        self._count_rows(table, ts_ns, 1)

    def batch(self, table: str, ts_ns: Array, columns: Columns, ranks: Array | int = 0) -> None:
        """Add rows as columns of the contract's types, all finite. `ranks`: one rank for all rows, or one for each."""
        if not len(ts_ns):
            return
        waiting = self._waiting_rows(table)
        if waiting.rows:
            self._seal(table)
        waiting.batches.append((ts_ns, columns, np.broadcast_to(np.asarray(ranks, np.int64), len(ts_ns))))
        self._count_rows(table, int(ts_ns.min()), len(ts_ns))

    def scalar(self, metric: str, value: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a value of a metric; NaN and infinity become NULL with a `value_flag`. `columns`: step and kind."""
        if math.isfinite(value):
            self.row("scalars", ts_ns, rank, metric=metric, value=float(value), **columns)
        else:
            self.row("scalars", ts_ns, rank, metric=metric, value_flag=flag_of(value), **columns)

    def unregistered(self, metric: str, value: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a value of a metric that is not in the registry: a gauge, unless `columns` has another kind."""
        columns = {"kind": "gauge", "edge_flag": "unregistered"} | columns
        self.scalar(metric, value, ts_ns, rank, **columns)

    def media(self, name: str, value: str | bytes, kind: str, ts_ns: int, **columns: Any) -> bool:  # noqa: ANN401
        """Add an image or a text to the column for personal data; return False if it is invalid or too large."""
        try:
            medium = hold(value, kind, labels=None, columns=None, most_bytes=MOST_BYTES).make()
            if len(medium.raw) > MOST_BYTES:
                return False
        except (BadValueError, RefusedError):
            return False
        column = personal_column(kind)
        is_masked = self.target.masks.masks("media", column)
        self.row("media", ts_ns, name=name, **medium.row(kind, column, has_digest=not is_masked), **columns)
        return True

    def distribution(self, metric: str, histogram: Histogram, ts_ns: int, **columns: Any) -> None:  # noqa: ANN401
        """Add a histogram; `columns` override computed ones, such as a `sum` that the file has exactly."""
        finite: dict[str, Any] = {
            name: getattr(histogram, name) if histogram.any_finite else None for name in ("sum", "min", "max")
        }
        counts = {name: getattr(histogram, name) for name in ("scale", "count", "zero_count")}
        for sign in ("positive", "negative"):
            buckets = getattr(histogram, sign)
            counts[f"{sign}_offset"] = buckets.offset if len(buckets.counts) else None
            counts[f"{sign}_counts"] = buckets.counts.tolist()
        row: dict[str, Any] = {"edge_flag": "unregistered", "zero_threshold": 0.0} | finite | counts | columns
        self.row("distributions", ts_ns, metric=metric, **row)

    def step(self, number: int, seconds: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a step that began at `ts_ns`; NaN and infinite loss, grad_norm and lr become NULL with a flag."""
        flagged = []
        for name in ("loss", "grad_norm", "lr"):
            value = columns.get(name)
            if value is not None and not math.isfinite(narrow(value)):
                columns[name] = None
                flagged.append(f"{name}:{flag_of(narrow(value))}")
        if flagged:
            columns["non_finite"] = ",".join(flagged)
        self.row("steps", ts_ns, rank, step=number, step_time_s=seconds, **columns)

    def refuse(self, table: str, reason: str, text: str, line: int | None = None, rank: int = 0) -> None:
        """Send a row that cannot be converted to quarantine.

        Parameters
        ----------
        table
            Table that the row was meant for.
        reason
            Why it is refused, without any of its values.
        text
            The foreign row. Credentials are redacted, and it is cut at `_TEXT_CHARACTERS`.
        line
            Line number in the file, from 1.
        """
        waiting, file = self._waiting_rows(table), self.identity.name
        place = {"file": file} | ({} if line is None else {"line": line})
        refused_row = json.dumps(place | {"text": redact(text[:_TEXT_CHARACTERS])}, ensure_ascii=False)
        waiting.refused.append((f"import: {reason}", refused_row, rank))
        if reason not in self.refused and len(self.first_refused) < FIRST_REASONS:
            self.first_refused.append(f"{file}{'' if line is None else f':{line}'}: {reason}")
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self._held += 1
        if len(waiting.refused) >= SEGMENT_ROWS:
            self._seal_refused(table)

    def close(self) -> None:
        """Add the row of ``runs``, and seal all rows and the last segment of each stream, which has the totals."""
        for other in self._siblings:
            other.close()
        is_of_run = bool(self.facts) or not _NODE_TABLES.issuperset(self._waiting)
        if counts := sorted((+self.not_imported).items()):
            self.labels["not_imported"] = redact(", ".join(f"{count} {kind}" for kind, count in counts))
        if self.has_run_row and is_of_run and self._first_ns is not None:
            facts: dict[str, Any] = {
                "world_size": self.world_size,
                "ranklake_version": ranklake.__version__,
            } | self.facts
            self.row("runs", self._first_ns, labels=_compact_json(self.labels), **facts)
        for table in sorted(self._waiting, key=lambda table: (table == "events", table)):
            self._seal(table, final=True)
        self._streams.end(self.world_size)

    def _waiting_rows(self, table: str) -> WaitingRows:
        waiting = self._waiting.get(table)
        if waiting is None:
            waiting = self._waiting[table] = WaitingRows()
        return waiting

    def _count_rows(self, table: str, ts_ns: int, count: int) -> None:
        waiting = self._waiting_rows(table)
        waiting.held += count
        self._held += count
        if self._first_ns is None or ts_ns < self._first_ns:
            self._first_ns = ts_ns
        if waiting.held >= SEGMENT_ROWS:
            self._seal(table)
        elif self._held >= HELD_ROWS:
            self._seal(max(self._waiting, key=lambda table: self._waiting[table].held))

    def _seal(self, table: str, *, final: bool = False) -> None:
        waiting = self._waiting_rows(table)
        if waiting.rows:
            rows = self._to_columns(table, waiting)
        else:
            rows = join_batches(fields_of(table, self.target.overlay), waiting.batches)
            waiting.batches = []
        self._held -= waiting.held
        waiting.held = 0
        self._seal_refused(table)
        self._streams.write(table, rows, self.world_size, final=final)
        if len(rows):
            self.rows[table] = self.rows.get(table, 0) + len(rows)

    def _seal_refused(self, table: str) -> None:
        waiting = self._waiting_rows(table)
        if not waiting.refused:
            return
        reasons, refused_rows, ranks = zip(*waiting.refused, strict=True)
        self._held -= len(reasons)
        waiting.refused = []
        zeros = np.zeros(len(reasons), np.int64)
        columns = {
            REFUSED: texts(reasons), REFUSED_ROW: texts(refused_rows), RANK: numbers(np.array(ranks), pa.int32()),
        }  # fmt: skip
        rows = Rows(zeros, np.arange(len(reasons)), columns, 0)
        self._streams.write(table, rows, self.world_size, final=False)

    def _to_columns(self, table: str, waiting: WaitingRows) -> Rows:
        """Take the rows out of `waiting`, and convert them to columns. Refuse rows whose values do not fit."""
        fields = fields_of(table, self.target.overlay)
        times, rows, ranks = waiting.times, waiting.rows, waiting.ranks
        waiting.times, waiting.rows, waiting.ranks = [], [], []
        columns = typed_columns(table, rows, fields)
        if columns is None or not all(map(_is_storable_time, times)):
            valid = []
            for ts_ns, row, rank in zip(times, rows, ranks, strict=True):
                if _is_storable_time(ts_ns) and typed_columns(table, [row], fields) is not None:
                    valid.append((ts_ns, row, rank))
                else:
                    self.refuse(table, "a value does not fit its column", _compact_json(row), rank=rank)
            if not valid:
                return NO_ROWS
            times, rows, ranks = map(list, zip(*valid, strict=True))
            columns = typed_columns(table, rows, fields) or {}
        columns[RANK] = numbers(np.array(ranks), pa.int32())
        return Rows(np.array(times, np.int64), np.arange(len(times)), columns, 0)


def _is_storable_time(ts_ns: int) -> bool:
    """Whether a segment can hold a time."""
    return isinstance(ts_ns, int) and abs(ts_ns) < 1 << 62


def _compact_json(value: Mapping[str, Any]) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), default=str)
