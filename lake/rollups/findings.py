"""Runs detectors on tables; their findings are the rows of ``run_findings`` and ``node_findings``.

Each detector gets the rows of one subject at a time, in order, as NumPy arrays. If a detector raises an error or
exceeds its time limit, the error is logged, the result is a finding ``detector_failed``, and other detectors continue.
"""

import hashlib
import inspect
import json
import logging
import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import UTC, date, datetime, timedelta
from importlib.resources import files
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.detection.declaration import COOLDOWN, MIN_EFFECT, Detection, Detector, Series, of_detector
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.query.literal import literal
from ranklake.lake.rollups.deadline import Deadline, TimeLimitError
from ranklake.lake.rollups.declaration import SqlBody, replace_table
from ranklake.lake.rollups.detectors import devices, hosts
from ranklake.lake.rollups.hardware import xid_meanings

if TYPE_CHECKING:
    from ranklake.lake.query.engine import SessionContext

LOGGER: Final = logging.getLogger(__name__)
FAILED: Final = "detector_failed"
SUBJECT: Final = ("run", "attempt", "rank", "host", "device_uuid")
MOST_A_SERIES: Final = 100
"""Most findings of a detector in a series; later ones are dropped, since many findings add no information."""
MOST_DETECTIONS: Final = 100_000
"""Most detections that are read from a detector in a series, so that an endless detector cannot fill the memory."""
LIMIT_S: Final = 60.0
_SECOND: Final = 1_000_000
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_EARLIEST_US: Final = (datetime(1, 1, 2, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_LATEST_US: Final = (datetime(9999, 12, 30, tzinfo=UTC) - _EPOCH) // timedelta(microseconds=1)
_SPANS: Final = "SELECT run, attempt, ts, end_ts, status FROM goodput"
_INJECTED: Final = "SELECT run, attempt, injected FROM attempt_facts WHERE injected IS NOT NULL"


@dataclass(frozen=True)
class Findings:
    """The body of a rollup of findings.

    Attributes
    ----------
    table
        Name of the computed table.
    detectors
        Detectors to run.
    within
        SQL condition that selects the input rows of the dates or runs to compute.
    limit_s
        CPU seconds that a detector may take for a series. A detector that exceeds it gets no further series.
    """

    table: str
    detectors: tuple[Detector, ...]
    within: str
    limit_s: float = LIMIT_S

    @property
    def source(self) -> str:
        """Text of the detectors' declarations and of all modules that compute findings."""
        modules = {detector.find.__module__ for detector in self.detectors} | {__name__}
        texts = [inspect.getsource(sys.modules[name]) for name in sorted(modules)]
        # all algorithms, not only the imported ones, so that each process computes the same digest
        algorithms = sorted(files("ranklake.detection").iterdir(), key=lambda file: file.name)
        texts += [file.read_text(encoding="utf-8") for file in algorithms if file.name.endswith(".py")]
        return "\n".join([*map(_declaration, self.detectors), *texts])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the findings of the affected runs, or the findings that begin on the dates ``date`` to ``last``."""
        now = datetime.now(UTC)
        with Deadline(self.limit_s) as deadline:
            guard = _Guard(deadline, self.limit_s)
            rows = [
                row
                for group in _group_by_input(self.detectors)
                for row in self._detect_group(ctx, group, values, now, guard)
            ]
        if "date" in values:
            first: date = values["date"].as_py()
            last: date = values["last"].as_py() if "last" in values else first
            rows = [row for row in rows if first <= row["date"] <= last]
        else:
            _within_attempts(ctx, rows)
        injected = {}
        if any(row["run"] for row in rows):
            attempts = ctx.sql(_INJECTED).to_arrow_table().to_pylist()
            injected = {(row["run"], row["attempt"]): row["injected"] for row in attempts}
        for row in rows:
            row["injected"] = injected.get((row["run"], row["attempt"]))
        return pa.Table.from_pylist(rows, schema=arrow_schema(contract(self.table)))

    def _detect_group(
        self,
        ctx: "SessionContext",
        group: Sequence[Detector],
        values: Mapping[str, Any],
        now: datetime,
        guard: "_Guard",
    ) -> Iterator[dict[str, Any]]:
        limits = [of_detector(detector.name, values) for detector in group]
        dates = {name: value for name, value in values.items() if "." not in name}
        for series in read_series(ctx, group, self.within, dates):
            for detector, thresholds in zip(group, limits, strict=True):
                for detection in guard.detections(detector, series, thresholds):
                    yield finding(detector, series, detection, now)


def _within_attempts(ctx: "SessionContext", rows: list[dict[str, Any]]) -> None:
    """Limit the times of findings to those of their attempt.

    A finding from daily data starts no earlier than its attempt. A finding of an attempt that is over ends no later.
    """
    spans = {(row["run"], row["attempt"]): row for row in ctx.sql(_SPANS).to_arrow_table().to_pylist()}
    for row in rows:
        span = spans.get((row["run"], row["attempt"]))
        if span is None:
            continue
        if row["start_ts"] < span["ts"] and row["date"] == span["ts"].date():
            row["message"] = row["message"].replace(_since(row["start_ts"]), _since(span["ts"]))
            row["start_ts"] = span["ts"]
        is_over = span["status"] != "running"
        if is_over and (row["end_ts"] is None or row["end_ts"] > span["end_ts"]):
            row["end_ts"] = max(span["end_ts"], row["start_ts"])


def _group_by_input(detectors: Iterable[Detector]) -> list[list[Detector]]:
    """Group the detectors that read the same rows, so that these are read once."""
    groups: dict[tuple[Any, ...], list[Detector]] = {}
    for detector in detectors:
        groups.setdefault((detector.table, detector.where, detector.grain, detector.order), []).append(detector)
    return list(groups.values())


def read_series(
    ctx: "SessionContext", detectors: Sequence[Detector], within: str, values: Mapping[str, Any]
) -> Iterator[Series]:
    """Read the input of detectors that read the same rows; yield one series per subject, ordered by the grain.

    Parameters
    ----------
    within
        SQL condition for the rows.
    values
        Values of the condition's ``$name`` placeholders.
    """
    detector = detectors[0]
    columns = [name for other in detectors for name in other.columns]
    names = list(dict.fromkeys((*detector.grain, *detector.order, *columns)))
    conditions = " AND ".join(f"({condition})" for condition in (within, detector.where) if condition)
    quoted_names = ", ".join(f'"{name}"' for name in names)
    sql = f"SELECT {quoted_names} FROM {detector.table} WHERE {conditions}"  # noqa: S608 - ours
    yield from split(ctx.sql(sql, param_values=dict(values)).to_arrow_table(), detector.grain, detector.order)


def split(rows: pa.Table, grain: Sequence[str], order: Sequence[str]) -> Iterator[Series]:
    """Split rows into one series per subject, in the order of the grain. The grain's texts are in the subject only."""
    if not rows.num_rows:
        return
    # stored rows are almost in order: the engine's sort, which compares encoded rows, costs eight times as much
    keys = [_sort_key(rows[name]) for name in (*grain, *order)]
    places = np.lexsort(keys[::-1])
    texts = {name for name in grain if not pa.types.is_primitive(rows[name].type)}
    columns = {name: _array(rows[name]) for name in rows.column_names if name not in texts}
    if (np.diff(places) != 1).any():
        columns = {name: column[places] for name, column in columns.items()}
    is_new = np.zeros(rows.num_rows, bool)
    is_new[0] = True
    for key in keys[: len(grain)]:
        is_new[1:] |= np.diff(key[places]) != 0
    starts = np.flatnonzero(is_new)
    for start, end in zip(starts, [*starts[1:], rows.num_rows], strict=True):
        subject = {name: rows[name][int(places[start])].as_py() for name in grain}
        yield Series(subject, {name: column[start:end] for name, column in columns.items()})


def _sort_key(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    """Return integers in the order of a column's values, NULL last."""
    is_whole = pa.types.is_integer(column.type) or pa.types.is_temporal(column.type)
    if is_whole and not column.null_count:
        return _array(column)
    if pa.types.is_string_view(column.type):
        column = column.cast(pa.string())  # Arrow neither sorts views nor keeps their NULL
    codes = pc.dictionary_encode(column, null_encoding="encode").combine_chunks()
    codes = codes if isinstance(codes, pa.DictionaryArray) else pa.concat_arrays(codes.chunks)
    ranks = np.argsort(pc.sort_indices(codes.dictionary).to_numpy())
    keys: np.ndarray[Any, Any] = ranks[codes.indices.to_numpy(zero_copy_only=False)]
    return keys


def _array(column: pa.ChunkedArray) -> np.ndarray[Any, Any]:
    values: np.ndarray[Any, Any] = _plain_column(column).to_numpy()
    return values


def _plain_column(column: pa.ChunkedArray) -> pa.ChunkedArray:
    kind = column.type
    if pa.types.is_timestamp(kind):
        # a row without a time gets the earliest one, so that no detector takes it for the latest row
        return pc.fill_null(column.cast(pa.int64()), 0)
    if pa.types.is_date(kind):
        return column.cast(pa.timestamp("us")).cast(pa.int64())
    if pa.types.is_boolean(kind):
        return column.cast(pa.int8()).cast(pa.float64())
    if pa.types.is_integer(kind) and not column.null_count:
        return column.cast(pa.int64())
    # integers beyond 2^53 are rounded, which is precise enough for detectors
    is_number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
    return column.cast(pa.float64(), safe=False) if is_number else column


@dataclass
class _Guard:
    """Runs detectors with a time limit, and converts their errors to findings."""

    deadline: Deadline
    limit_s: float
    endless: set[str] = field(default_factory=set)

    def detections(self, detector: Detector, series: Series, thresholds: Mapping[str, float]) -> list[Detection]:
        """Return the detections of a series after the cool-down, or one detection that says how the detector failed."""
        if detector.name in self.endless:
            return [_detector_failure(detector, series, "is not asked again, since it did not end before")]
        try:
            return self.deadline.call(lambda: _detections(detector, series, thresholds))
        except TimeLimitError:
            self.endless.add(detector.name)
            LOGGER.warning("detector %s did not end within %g s on %s rows of %s", detector.name, self.limit_s,
                           len(series), detector.table)  # fmt: skip
            return [_detector_failure(detector, series, f"did not end within {self.limit_s:g} s of CPU time")]
        except Exception as error:  # noqa: BLE001 - the others' findings must not wait for it
            LOGGER.warning("detector %s failed on %s rows of %s: %r", detector.name, len(series), detector.table, error)
            return [_detector_failure(detector, series, f"failed with {type(error).__name__}")]


def _detections(detector: Detector, series: Series, thresholds: Mapping[str, float]) -> list[Detection]:
    with np.errstate(all="ignore"):
        detections = list(islice(detector.find(series, thresholds), MOST_DETECTIONS))
    return apply_cooldown(detections, thresholds[COOLDOWN], thresholds[MIN_EFFECT])[:MOST_A_SERIES]


def _detector_failure(detector: Detector, series: Series, how: str) -> Detection:
    times = series.columns.get("ts", series.columns.get("date", series.columns.get("first_ts")))
    moment = 0 if times is None or not len(times) else int(times[-1])
    message = f"Detector {detector.name} {how}, and says nothing"
    return Detection(moment, moment, message, severity="warning", evidence={"detector": FAILED})


def apply_cooldown(detections: Iterable[Detection], cooldown_s: float, min_effect: float) -> list[Detection]:
    """Return detections in order of time; a detection within the cool-down after another one is merged with it.

    The merged detection has the first start, the latest end, and the other values of the detection with the largest
    effect. Detections with an effect below `min_effect` are dropped. Detections without an effect are kept.
    """
    last_index: dict[tuple[Any, ...], int] = {}
    result: list[Detection] = []
    for detection in sorted(detections, key=lambda detection: (detection.start, detection.step or 0)):
        if detection.effect is not None and abs(detection.effect) < min_effect:
            continue
        key = tuple(detection.subject.get(name) for name in SUBJECT)
        index = last_index.get(key)
        before = None if index is None else result[index]
        if before is not None and index is not None and _is_near(before, detection, cooldown_s):
            result[index] = _merge(before, detection)
            continue
        last_index[key] = len(result)
        result.append(detection)
    return result


def _is_near(before: Detection, after: Detection, cooldown_s: float) -> bool:
    return before.end is None or after.start <= before.end + cooldown_s * _SECOND


def _merge(first: Detection, other: Detection) -> Detection:
    worst = max(first, other, key=lambda detection: abs(detection.effect or 0))
    ends = (first.end, other.end)
    steps = [step for step in (first.end_step, other.end_step, other.step) if step is not None]
    evidence = {**worst.evidence, "times": int(first.evidence.get("times", 1)) + 1}
    rank = ("", "info", "warning", "error", "critical").index
    return replace(
        worst,
        start=first.start,
        step=first.step,
        end=None if None in ends else max(end for end in ends if end is not None),
        end_step=max(steps, default=None),
        severity=max(first.severity, other.severity, key=rank),
        evidence=evidence,
    )


def finding(detector: Detector, series: Series, detection: Detection, now: datetime) -> dict[str, Any]:
    """Return a detection as a row of the findings' table."""
    subject = {name: {**series.subject, **detection.subject}.get(name) for name in SUBJECT}
    name = detection.evidence.get("detector", detector.name)
    start = _moment(detection.start)
    end = None if detection.end is None else _moment(max(detection.start, detection.end))
    metric = detection.evidence.get("metric")
    parts = (name, detector.name, *subject.values(), detection.start, *(() if metric is None else (metric,)))
    identity = "\n".join(map(str, parts))
    row: dict[str, Any] = {
        "finding_id": hashlib.sha256(identity.encode()).hexdigest()[:16],
        "detector": name,
        "severity": detection.severity or detector.severity,
        **subject,
        "step": detection.step,
        "end_step": detection.end_step,
        "start_ts": start,
        "end_ts": end,
        **{number: _finite(getattr(detection, number)) for number in ("value", "baseline", "effect")},
        "message": _message(detection.message, subject, start),
        "evidence": json.dumps({key: _json_value(value) for key, value in detection.evidence.items()}, sort_keys=True),
        "runbook": FAILED.replace("_", "-") if name == FAILED else detector.runbook,
        "computed_ts": now,
        "date": start.date(),
    }
    row["evidence_sql"] = _fill_sql(detector.evidence_sql, row, metric)
    return row


def _message(text: str, subject: Mapping[str, Any], start: datetime) -> str:
    where = [f"{name} {subject[name]}" for name in ("run", "attempt", "rank") if subject[name] is not None]
    return f"{text} ({', '.join([*where, _since(start)])})"


_SUBJECT: Final = re.compile(r" \([^()]*since \d{4}-\d\d-\d\d \d\d:\d\d UTC\)$")


def short_message(message: str) -> str:
    """Return a finding's message without its run, attempt, rank and start, for output that shows them separately.

    >>> short_message("The loss is NaN (run a, attempt 0, since 2026-03-01 12:00 UTC)")
    'The loss is NaN'
    """
    return _SUBJECT.sub("", message)


def _since(start: datetime) -> str:
    return f"since {start:%Y-%m-%d %H:%M} UTC"


def _fill_sql(sql: str, row: Mapping[str, Any], metric: object) -> str:
    end = row["end_ts"] or row["start_ts"] + timedelta(days=1)
    texts = {name: "NULL" if row[name] is None else literal(str(row[name])) for name in ("run", "host", "device_uuid")}
    whole = {name: "NULL" if row[name] is None else str(row[name]) for name in ("attempt", "rank", "step", "end_step")}
    times = {
        "start_ts": f"TIMESTAMP '{row['start_ts']:%Y-%m-%dT%H:%M:%S}Z'",
        "end_ts": f"TIMESTAMP '{end + timedelta(seconds=1):%Y-%m-%dT%H:%M:%S}Z'",
        "date": f"DATE '{row['start_ts'].date()}'",
        "end_date": f"DATE '{end.date()}'",
    }
    return sql.format(**texts, **whole, **times, metric="NULL" if metric is None else literal(str(metric)))


def _moment(us: int) -> datetime:
    # A wrong clock may give any year. One day is left at both ends, so that adding a time cannot overflow.
    return _EPOCH + timedelta(microseconds=min(max(int(us), _EARLIEST_US), _LATEST_US))


def _finite(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _json_value(value: object) -> object:
    if isinstance(value, np.generic):
        value = value.item()
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def _declaration(detector: Detector) -> str:
    return repr({item.name: getattr(detector, item.name) for item in fields(detector) if item.name != "find"})


_MINUTES: Final = "node_minutes"
_COLUMNS: Final = ("first_ts", "last_ts", "newest_ts", "value", "baseline", "detail", "amount", "node", "device_index")
_ORDER: Final = ("first_ts", "last_ts", "detail")
_SQL: Final = SqlBody("node_findings")


@dataclass(frozen=True)
class NodeFindings(Findings):
    """The body of the rollup ``node_findings``.

    One SQL file selects the minutes of devices and hosts in which a rule is true.
    Then each detector reads the query's rows under its name, in place of its declared table.
    """

    @property
    def source(self) -> str:
        """Text of the SQL, of the detectors' declarations, and of all modules that compute findings."""
        modules = [inspect.getsource(module) for module in (sys.modules[__name__], devices, hosts)]
        return "\n".join([_SQL.source, super().source, *modules, repr(dict(xid_meanings()))])

    def rows(self, ctx: "SessionContext", values: Mapping[str, Any]) -> pa.Table:
        """Return the findings of a date."""
        replace_table(ctx, _MINUTES, _SQL.rows(ctx, {name.replace(".", "_"): value for name, value in values.items()}))
        minutes = tuple(
            replace(detector, table=_MINUTES, columns=_COLUMNS, order=_ORDER, where=f"detector = '{detector.name}'")
            for detector in self.detectors
        )
        try:
            rows = Findings(self.table, minutes, "", self.limit_s).rows(ctx, values)
        finally:
            ctx.deregister_table(_MINUTES)
        first_index = {name: index for index, name in reversed(list(enumerate(rows["finding_id"].to_pylist())))}
        return rows.take(pa.array(sorted(first_index.values()), pa.int64()))  # drops faults that were recorded twice
