"""Imported run: takes rows of a foreign file, converted or refused, and seals them as a rank's own are sealed."""

import json
import math
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
"""Rows of a table that are sealed together."""
HELD_ROWS: Final = 1_000_000
"""Rows of all tables that wait to be sealed; beyond them the fullest table's are sealed."""
FIRST_REASONS: Final = 3
_BESIDE_RUNS: Final = frozenset({"jobs", "gpu_samples", "host_samples"})
"""Tables whose rows are of nodes and schedulers."""
_TEXT_CHARACTERS: Final = 4_096
_OTHER_ZONE: Final = "Asia/Shanghai"


@dataclass
class WaitingRows:
    """Rows of one table that wait to be sealed.

    Attributes
    ----------
    times, rows, ranks
        Rows that were given one by one.
    batches
        Those that were given as columns: times, columns, ranks. Only one of the two waits at a time.
    refused
        Reason, foreign row and rank of what could not be converted.
    held
        How many wait, without those.
    """

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
    facts
        Columns of the row of ``runs`` that `close` adds, dated to the earliest row.
    labels
        What that row says of where the run came from, and how sure its rows are.
    has_run_row
        Whether there is such a row. There is none in any case for a file of samples or jobs alone, which is no run,
        unless facts of one were reported.
    rows, refused
        Counted by table, and by reason.
    left_out
        Rows that a mapping's filters did not let through.
    first_refused
        Where the first few reasons were met first: file, line, reason.
    notes
        What was assumed of the file, or left out of it, a sentence each, in the order of its rows.
    zone
        Of times that name none; empty: they are taken as UTC, and a note says so.
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
    first_refused: list[str] = field(default_factory=list)
    notes: dict[str, None] = field(default_factory=dict)
    zone: str = ""
    _waiting: dict[str, WaitingRows] = field(default_factory=dict)
    _streams: ImportedStreams = field(init=False)
    _held: int = 0
    _first_ns: int | None = None
    _beside: list["ImportedRun"] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._streams = ImportedStreams(self.identity, self.run, self.attempt, self.target)
        origin = {"imported": self.identity.format, "source": self.identity.name}
        self.labels = origin | {"source_sha256": self.identity.sha256} | self.labels

    def sibling(self, run: str, attempt: int) -> "ImportedRun":
        """Return a recording of another run or attempt in the same file; this one counts its rows, and closes it."""
        other = ImportedRun(
            self.identity, run, attempt, self.target,
            rows=self.rows, refused=self.refused, first_refused=self.first_refused, notes=self.notes, zone=self.zone,
        )  # fmt: skip
        self._beside.append(other)
        return other

    def recording_of(self, run: str, attempt: int) -> "ImportedRun":
        """Return the recording of a run and attempt that a row names: this one, or one beside it with its facts."""
        for recording in (self, *self._beside):
            if (recording.run, recording.attempt) == (run, attempt):
                return recording
        other = self.sibling(run, attempt)
        other.has_run_row, other.facts, other.labels = self.has_run_row, dict(self.facts), dict(self.labels)
        return other

    def moment_ns(self, text: str, form: str = "iso") -> int:
        """Return the moment that a text of the file names, ns since 1970. Raises `ValueError`, fit to be shown."""
        at_ns = local_moment_ns(text, form, self.zone)
        if not self.zone and at_ns != moment_ns(text, form, _OTHER_ZONE):
            self.notes[f"times name no zone, and are taken as UTC: --zone names theirs, such as {_OTHER_ZONE}"] = None
        return at_ns

    @property
    def is_empty(self) -> bool:
        """Whether nothing was found in the file: neither rows nor what could not be converted."""
        return not self._waiting

    @property
    def runs(self) -> list[str]:
        """Names of the runs that the file holds."""
        all_ = (self, *self._beside)
        return list(dict.fromkeys(recording.run for recording in all_ if not recording.is_empty)) or [self.run]

    def row(self, table: str, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401 - any column
        """Add a row.

        Parameters
        ----------
        ts_ns
            Wall time, ns since 1970.
        columns
            The contract's; NULL where left out. A row whose values do not fit them is refused when it is sealed.
        """
        waiting = self._of(table)
        if waiting.batches:
            self._seal(table)
        waiting.times.append(ts_ns)
        waiting.rows.append(columns)
        waiting.ranks.append(rank)
        self._count_rows(table, ts_ns, 1)

    def batch(self, table: str, ts_ns: Array, columns: Columns, ranks: Array | int = 0) -> None:
        """Add rows by columns of the contract's types, all finite; `ranks` is that of all rows, or of each."""
        if not len(ts_ns):
            return
        waiting = self._of(table)
        if waiting.rows:
            self._seal(table)
        waiting.batches.append((ts_ns, columns, np.broadcast_to(np.asarray(ranks, np.int64), len(ts_ns))))
        self._count_rows(table, int(ts_ns.min()), len(ts_ns))

    def scalar(self, metric: str, value: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a value; one that is not finite is flagged, as recorded values are. `columns`: step and kind."""
        if math.isfinite(value):
            self.row("scalars", ts_ns, rank, metric=metric, value=float(value), **columns)
        else:
            self.row("scalars", ts_ns, rank, metric=metric, value_flag=flag_of(value), **columns)

    def unregistered(self, metric: str, value: float, ts_ns: int, rank: int = 0, **columns: Any) -> None:  # noqa: ANN401
        """Add a value of a metric that no registry knows: a gauge, unless `columns` say another kind."""
        columns = {"kind": "gauge", "edge_flag": "unregistered"} | columns
        self.scalar(metric, value, ts_ns, rank, **columns)

    def media(self, name: str, value: str | bytes, kind: str, ts_ns: int, **columns: Any) -> bool:  # noqa: ANN401
        """Add an image or a text, which may be about persons; return whether it was kept."""
        try:
            made = hold(value, kind, labels=None, columns=None, most_bytes=MOST_BYTES).make()
            if len(made.raw) > MOST_BYTES:
                return False
        except (BadValueError, RefusedError):
            return False
        column = personal_column(kind)
        is_masked = self.target.masks.masks("media", column)
        self.row("media", ts_ns, name=name, **made.row(kind, column, has_digest=not is_masked), **columns)
        return True

    def distribution(self, metric: str, histogram: Histogram, ts_ns: int, **columns: Any) -> None:  # noqa: ANN401
        """Add a histogram; `columns` replace those computed from it, such as a `sum` that its bins do not give."""
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
        """Add a step that began at `ts_ns`; of loss, grad_norm and lr, what is not finite is flagged."""
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
        """Send what could not be converted to quarantine.

        Parameters
        ----------
        table
            Where it was meant to go.
        reason
            Why; no value in it.
        text
            The foreign row: credentials in it are redacted, and it is cut at `_TEXT_CHARACTERS`.
        line
            Where in the file, from 1.
        """
        waiting, file = self._of(table), self.identity.name
        place = {"file": file} | ({} if line is None else {"line": line})
        whole = json.dumps(place | {"text": redact(text[:_TEXT_CHARACTERS])}, ensure_ascii=False)
        waiting.refused.append((f"import: {reason}", whole, rank))
        if reason not in self.refused and len(self.first_refused) < FIRST_REASONS:
            self.first_refused.append(f"{file}{'' if line is None else f':{line}'}: {reason}")
        self.refused[reason] = self.refused.get(reason, 0) + 1
        self._held += 1
        if len(waiting.refused) >= SEGMENT_ROWS:
            self._seal_refused(table)

    def close(self) -> None:
        """Seal what is left: the row of ``runs``, and for each stream a last segment that says how much there was."""
        for other in self._beside:
            other.close()
        is_of_run = bool(self.facts) or not _BESIDE_RUNS.issuperset(self._waiting)
        if self.has_run_row and is_of_run and self._first_ns is not None:
            facts: dict[str, Any] = {
                "world_size": self.world_size,
                "ranklake_version": ranklake.__version__,
            } | self.facts
            self.row("runs", self._first_ns, labels=_compact(self.labels), **facts)
        for table in sorted(self._waiting, key=lambda table: (table == "events", table)):
            self._seal(table, final=True)
        self._streams.end(self.world_size)

    def _of(self, table: str) -> WaitingRows:
        waiting = self._waiting.get(table)
        if waiting is None:
            waiting = self._waiting[table] = WaitingRows()
        return waiting

    def _count_rows(self, table: str, ts_ns: int, count: int) -> None:
        waiting = self._of(table)
        waiting.held += count
        self._held += count
        if self._first_ns is None or ts_ns < self._first_ns:
            self._first_ns = ts_ns
        if waiting.held >= SEGMENT_ROWS:
            self._seal(table)
        elif self._held >= HELD_ROWS:
            self._seal(max(self._waiting, key=lambda table: self._waiting[table].held))

    def _seal(self, table: str, *, final: bool = False) -> None:
        waiting = self._of(table)
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
        waiting = self._of(table)
        if not waiting.refused:
            return
        reasons, wholes, ranks = zip(*waiting.refused, strict=True)
        self._held -= len(reasons)
        waiting.refused = []
        zeros = np.zeros(len(reasons), np.int64)
        columns = {REFUSED: texts(reasons), REFUSED_ROW: texts(wholes), RANK: numbers(np.array(ranks), pa.int32())}
        rows = Rows(zeros, np.arange(len(reasons)), columns, 0)
        self._streams.write(table, rows, self.world_size, final=False)

    def _to_columns(self, table: str, waiting: WaitingRows) -> Rows:
        """Take the rows that were given one by one as columns; those that do not fit are refused."""
        fields = fields_of(table, self.target.overlay)
        times, given, ranks = waiting.times, waiting.rows, waiting.ranks
        waiting.times, waiting.rows, waiting.ranks = [], [], []
        columns = typed_columns(table, given, fields)
        if columns is None or not all(map(_is_storable_time, times)):
            kept = []
            for ts_ns, row, rank in zip(times, given, ranks, strict=True):
                if _is_storable_time(ts_ns) and typed_columns(table, [row], fields) is not None:
                    kept.append((ts_ns, row, rank))
                else:
                    self.refuse(table, "a value does not fit its column", _compact(row), rank=rank)
            if not kept:
                return NO_ROWS
            times, given, ranks = map(list, zip(*kept, strict=True))
            columns = typed_columns(table, given, fields) or {}
        columns[RANK] = numbers(np.array(ranks), pa.int32())
        return Rows(np.array(times, np.int64), np.arange(len(times)), columns, 0)


def _is_storable_time(ts_ns: int) -> bool:
    """Whether a segment can hold a time."""
    return isinstance(ts_ns, int) and abs(ts_ns) < 1 << 62


def _compact(of: Mapping[str, Any]) -> str:
    return json.dumps(of, sort_keys=True, separators=(",", ":"), default=str)
