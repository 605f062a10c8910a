"""Log lines: write rows of the table ``logs``, redacted before they are written.

    logging, structlog ──▶ limits ──▶ queue ──▶ thread "ranklake-logs": redact, write
                                  └─ errors, and all lines of a forked child ──▶ redact and write immediately

Each template has a bucket of tokens (`Limits`): `burst` at first, and `rate_per_s` more each second. A line without a
token is suppressed and counted. The next kept line of the template reports the count. If there is none for some time, a
separate row reports it (`Limits.take_suppressed`). Of verbose lines, a share is kept, the same on every rank.

Redaction costs 0.1 µs per character, too much for a logging call, so a thread does it. If the process is killed, lines
in the queue are lost. Lines that report errors are not, because they are written before the call returns.
"""

import os
import queue
import re
import threading
import weakref
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.capture.common.gaps import LOG_QUEUE_FULL
from ranklake.capture.common.layouts import ABSENT
from ranklake.capture.common.monotonic import now
from ranklake.capture.common.ratios import checked_ratio, is_sampled, seed_of, threshold_of
from ranklake.capture.common.values import json_text, text, to_json
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.steps.progress import Progress
from ranklake.redaction.redact import redact

MOST_TEMPLATES: Final = 2048
_S: Final = 1_000_000_000


@dataclass(slots=True)
class Bucket:
    """State of one template.

    Attributes
    ----------
    tokens, at_ns
        Number of lines that may be kept, at this monotonic time.
    suppressed
        Suppressed lines that no row reports yet.
    seen
        Verbose lines so far.
    facts
        Columns of the last suppressed line, for a row about suppressed lines.
    """

    tokens: float
    at_ns: int
    seed: int
    suppressed: int = 0
    seen: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class Limits:
    """The buckets of a run's templates. If there are too many, the least recently used one is removed.

    Parameters
    ----------
    verbose
        Share of verbose lines to keep, 0 to 1.

    Notes
    -----
    The lock is re-entrant because signal handlers may log, and is taken only briefly.
    """

    def __init__(self, run: str, *, rate_per_s: float, burst: float, verbose: float) -> None:
        self._run, self._rate_per_s, self._burst = run, max(0.0, rate_per_s), max(1.0, burst)
        self._threshold = threshold_of(checked_ratio(verbose))
        self.weight = 1.0 / verbose if 0.0 < verbose < 1.0 else 1.0
        self._buckets: OrderedDict[object, Bucket] = OrderedDict()
        self._lock = threading.RLock()
        self._evicted: list[Bucket] = []

    def take(self, key: object, now_ns: int, facts: dict[str, Any], *, verbose: bool = False) -> int | None:
        """Decide whether to keep a line.

        Parameters
        ----------
        key
            Logger and template of the line.
        facts
            Columns for a row about suppressed lines of the template.

        Returns
        -------
        The number of suppressed lines before it; None if the line is not kept.
        """
        with self._lock:
            bucket = self._buckets.get(key)
            if bucket is None:
                bucket = self._new(key, now_ns)
            else:
                self._buckets.move_to_end(key)
            if verbose:
                bucket.seen += 1
                if not is_sampled(bucket.seed, bucket.seen, self._threshold):
                    return None
            tokens = min(self._burst, bucket.tokens + (now_ns - bucket.at_ns) * self._rate_per_s / _S)
            bucket.at_ns = now_ns
            if tokens < 1.0:
                bucket.tokens, bucket.facts = tokens, facts
                bucket.suppressed += 1
                return None
            bucket.tokens = tokens - 1.0
            suppressed, bucket.suppressed = bucket.suppressed, 0
            return suppressed

    def take_suppressed(self, before_ns: int) -> list[Bucket]:
        """Return and reset unreported counts of templates whose last line was before a time."""
        with self._lock:
            buckets, self._evicted = self._evicted, []
            for bucket in self._buckets.values():
                if bucket.suppressed and bucket.at_ns < before_ns:
                    buckets.append(Bucket(0.0, bucket.at_ns, 0, bucket.suppressed, 0, bucket.facts))
                    bucket.suppressed = 0
            return buckets

    def after_fork(self) -> None:
        """Reset counts and lock in a forked child: the parent reports its counts, and its threads may hold the lock."""
        self._lock = threading.RLock()
        self._evicted = []
        for bucket in self._buckets.values():
            bucket.suppressed = 0

    def _new(self, key: object, now_ns: int) -> Bucket:
        if len(self._buckets) >= MOST_TEMPLATES:
            _, oldest = self._buckets.popitem(last=False)
            if oldest.suppressed:
                self._evicted.append(oldest)
        bucket = self._buckets[key] = Bucket(self._burst, now_ns, seed_of(self._run, str(key)))
        return bucket


ERROR: Final = 17
INFO: Final = 9
MOST_WAITING: Final = 10_000
_LONGEST: Final = {
    "message": 16_384,
    "template": 1024,
    "exception_message": 4096,
    "exception_stacktrace": 65_536,
    "exception_type": 256,
    "source_file": 1024,
    "source_function": 256,
    "thread_name": 128,
    "logger": 256,
}
_LONGEST_FIELDS: Final = 65_536
_REPORT_AFTER_NS: Final = 10_000_000_000
_MARK: Final = object()
_VARIABLE_PART: Final = re.compile(
    r"""'[^'\n]*'|"[^"\n]*"|(?P<word>[^\s=:,;(\[{'"/\\\d]++(?![/\\\d]))"""
    r"""|[^\s=:,;(\[{'"/\\\d]*+(?:[/\\][^\s,;)\]}]*+|\d[^\s=:,;)\]}]*+)"""
)
_NON_SPACES: Final = re.compile(r"\S++")


class LogLines:
    """Writes the log lines of one run.

    Parameters
    ----------
    limits
        Rate limits and sampling.
    trace_id
        Id of the run's trace; None without one.
    """

    def __init__(self, sink: Sink, progress: Progress, limits: Limits, trace_id: str | None = None) -> None:
        self._sink, self._progress, self.limits, self._trace_id = sink, progress, limits, trace_id
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inside = threading.local()
        self._thread: threading.Thread | None = None
        self._at_once = False
        _instances.add(self)

    def start(self) -> None:
        """Start the thread. If the system cannot start one, lines are written by the calls that log them."""
        thread = threading.Thread(target=self._keep_writing, name="ranklake-logs", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._at_once = True
        else:
            self._thread = thread

    def admits(self, columns: dict[str, Any], key: object) -> bool:
        """Whether to keep a line. If so, the columns ``suppressed_count`` and ``weight`` are added.

        Parameters
        ----------
        columns
            At least severity_number, template (None to derive it from the message), logger, stream.
        key
            Logger and template of the line.
        """
        if not self._sink.enabled or getattr(self._inside, "writing", False):
            return False
        is_verbose = columns["severity_number"] < INFO
        suppressed = self.limits.take(key, now(), columns, verbose=is_verbose)
        if suppressed is None:
            return False
        columns["suppressed_count"] = suppressed or None
        columns["weight"] = self.limits.weight if is_verbose and self.limits.weight > 1.0 else None
        return True

    def put(self, columns: dict[str, Any], fields: dict[str, Any] | None = None) -> None:
        """Record a line: errors immediately, others soon. Never raises, never blocks.

        Parameters
        ----------
        columns
            Columns of the table; texts are not redacted yet.
        fields
            Further facts, with values of any type.
        """
        frame = self._progress.stack.top
        step = self._progress.current if frame is None else frame.step
        if step is not None and step.number != ABSENT:
            columns["step"] = step.number
        if frame is not None:
            columns["span_id"] = frame.span_id
        time_ns = now()
        if self._at_once or columns["severity_number"] >= ERROR:
            self._write(columns, fields, time_ns)
        elif self._queue.qsize() < MOST_WAITING:
            # Convert fields now, because they may change after the call has returned.
            self._queue.put((columns, None if not fields else to_json(fields), time_ns))
        else:
            self._sink.refuse("logs", LOG_QUEUE_FULL)

    def trouble(self, error: Exception) -> None:
        """Count a line that could not be recorded."""
        self._sink.trouble("recording a log line", error, "logs")

    def drain(self, timeout_s: float) -> None:
        """Wait until all lines so far are written, and report suppressed lines."""
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            done = threading.Event()
            self._queue.put((_MARK, done, 0))
            done.wait(timeout_s)
        self.report_suppressed(now())

    def stop(self) -> None:
        """Stop the thread. Later lines are written immediately, if the run still records."""
        self._at_once = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._queue.put((None, None, 0))
            thread.join(1.0)
        self.report_suppressed(now())

    def report_suppressed(self, before_ns: int | None = None) -> None:
        """Write a row of weight 0 for each template with unreported suppressed lines."""
        for bucket in self.limits.take_suppressed(now() - _REPORT_AFTER_NS if before_ns is None else before_ns):
            row = {**bucket.facts, "suppressed_count": bucket.suppressed, "weight": 0.0}
            self._write(row, None, bucket.at_ns)

    def after_fork(self) -> None:
        """Reset in a forked child, which has no thread and writes immediately; the parent writes queued lines."""
        self._queue, self._thread, self._at_once = queue.SimpleQueue(), None, True
        self._inside = threading.local()
        self.limits.after_fork()

    def _keep_writing(self) -> None:
        while True:
            columns, fields, time_ns = self._queue.get()
            if columns is None:
                return
            if columns is _MARK:
                fields.set()
            else:
                self._write(columns, fields, time_ns)

    def _write(self, columns: dict[str, Any], fields: dict[str, Any] | None, time_ns: int) -> None:
        self._inside.writing = True
        try:
            with self._sink.recording("logs"):
                row = _redact_columns(columns, fields, guesses=not self._sink.masks("logs", "message"))
                if self._trace_id is not None:
                    row["trace_id"] = self._trace_id
                self._sink.record("logs", row, time_ns)
        finally:
            self._inside.writing = False


def _redact_columns(columns: dict[str, Any], fields: dict[str, Any] | None, *, guesses: bool) -> dict[str, Any]:
    """Return the columns redacted and truncated.

    Parameters
    ----------
    guesses
        Whether to derive a missing template from the message.
    """
    row = {name: value for name, value in columns.items() if value is not None}
    if guesses and "message" in row and "template" not in row:
        row["template"] = shape_of(text(row["message"], _LONGEST["message"]))
    for name, longest in _LONGEST.items():
        if name in row:
            # Redact before truncation: half of a secret would not be recognized.
            redacted = redact(text(row[name]))
            row[name] = _tail(redacted, longest) if name == "exception_stacktrace" else text(redacted, longest)
    if fields:
        converted = to_json(fields)
        size = len(json_text(converted) or "")  # checked before redaction, which is slow for a megabyte
        row["fields"] = json_text(redact(converted) if size <= _LONGEST_FIELDS else {"left_out": f"{size} characters"})
    return row


def shape_of(line: str) -> str:
    """Return a line with its variable parts removed: numbers, quoted texts, paths, addresses.

    It is the template of a line that was formatted before it was logged. Templates may be kept where personal data must
    not be. The time is proportional to the length of the line.
    """
    if "@" in line:
        line = _NON_SPACES.sub(lambda match: "<…>" if "@" in match[0] else match[0], line)
    return _VARIABLE_PART.sub(lambda match: match["word"] or "<…>", line)


def _tail(trace: str, longest: int) -> str:
    """Return the end of a traceback, which has the error."""
    return trace if len(trace) <= longest else f"[…] {trace[4 - longest :]}"


_instances: "weakref.WeakSet[LogLines]" = weakref.WeakSet()


def after_fork() -> None:
    """Reset all log lines in a forked child."""
    for lines in list(_instances):
        lines.after_fork()


os.register_at_fork(after_in_child=after_fork)
