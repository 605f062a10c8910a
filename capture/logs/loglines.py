"""Log lines: rows of the table ``logs``, redacted before they are written anywhere.

    logging, structlog ──▶ limits ──▶ queue ──▶ thread "ranklake-logs": redact, write
                                  └─ errors, and all in a forked child ──▶ redact, write, at once

A template has a bucket of tokens (`Limits`): `burst` at first, `rate_per_s` more each second. A record that finds none
is suppressed: counted, and reported by the next record of its template that is kept, or, when that is long in coming,
by a row of its own that stands for nothing else (`Limits.take_suppressed`). Of verbose records a share is
kept, the same on every rank.

Redaction costs more than a logging call may (0.1 µs a character), so it is left to a thread. What is in the queue
when a process is killed is lost; lines that report errors are not, since they are written before the call returns.
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
    """What is known of one template.

    Attributes
    ----------
    tokens, at_ns
        Records that may be kept, and when that was found out.
    suppressed
        Records that no kept one reports yet.
    seen
        Verbose records so far.
    facts
        Of the last suppressed record: what a row about it says.
    """

    tokens: float
    at_ns: int
    seed: int
    suppressed: int = 0
    seen: int = 0
    facts: dict[str, Any] = field(default_factory=dict)


class Limits:
    """The buckets of a run's templates; the least recently used give way when there are too many.

    Parameters
    ----------
    verbose
        Share of verbose records to keep, 0 to 1.

    Notes
    -----
    The lock is re-entrant for the sake of signal handlers, and held for no more than a look at one bucket.
    """

    def __init__(self, run: str, *, rate_per_s: float, burst: float, verbose: float) -> None:
        self._run, self._rate_per_s, self._burst = run, max(0.0, rate_per_s), max(1.0, burst)
        self._threshold = threshold_of(checked_ratio(verbose))
        self.weight = 1.0 / verbose if 0.0 < verbose < 1.0 else 1.0
        self._buckets: OrderedDict[object, Bucket] = OrderedDict()
        self._lock = threading.RLock()
        self._evicted: list[Bucket] = []

    def take(self, key: object, now_ns: int, facts: dict[str, Any], *, verbose: bool = False) -> int | None:
        """Ask whether a record is kept.

        Parameters
        ----------
        key
            Its template, and whose it is.
        facts
            What a row about suppressed records of the template says.

        Returns
        -------
        How many before it were suppressed; None if it is not kept.
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
        """Return, and forget, counts that no kept record has reported, of templates last heard of before a time."""
        with self._lock:
            buckets, self._evicted = self._evicted, []
            for bucket in self._buckets.values():
                if bucket.suppressed and bucket.at_ns < before_ns:
                    buckets.append(Bucket(0.0, bucket.at_ns, 0, bucket.suppressed, 0, bucket.facts))
                    bucket.suppressed = 0
            return buckets

    def after_fork(self) -> None:
        """In a forked child: what was suppressed is the parent's to tell of; a lost thread may hold the lock."""
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
_OWED_AFTER_NS: Final = 10_000_000_000
_MARK: Final = object()
_VARIES: Final = re.compile(
    r"""'[^'\n]*'|"[^"\n]*"|(?P<word>[^\s=:,;(\[{'"/\\\d]++(?![/\\\d]))"""
    r"""|[^\s=:,;(\[{'"/\\\d]*+(?:[/\\][^\s,;)\]}]*+|\d[^\s=:,;)\]}]*+)"""
)
_UNBROKEN: Final = re.compile(r"\S++")


class LogLines:
    """Where the log lines of one run go.

    Parameters
    ----------
    limits
        What is kept of them.
    trace_id
        Of the trace that the run belongs to, if it does.
    """

    def __init__(self, sink: Sink, progress: Progress, limits: Limits, trace_id: str | None = None) -> None:
        self._sink, self._progress, self.limits, self._trace_id = sink, progress, limits, trace_id
        self._queue: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._inside = threading.local()
        self._thread: threading.Thread | None = None
        self._at_once = False
        _all.add(self)

    def start(self) -> None:
        """Start the thread; without one to be had, lines are written by those who log."""
        thread = threading.Thread(target=self._keep_writing, name="ranklake-logs", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._at_once = True
        else:
            self._thread = thread

    def admits(self, columns: dict[str, Any], key: object) -> bool:
        """Whether a line is kept; if so, its columns report those suppressed before it, and of its weight.

        Parameters
        ----------
        columns
            At least severity_number, template (None for one that must be guessed from the message), logger, stream.
        key
            Its template and whose it is.
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
        """Record a line, in a moment or at once; never raises, never waits.

        Parameters
        ----------
        columns
            Of the table, texts as they are.
        fields
            What else is known of it, whatever it is.
        """
        frame = self._progress.stack.top
        step = self._progress.current if frame is None else frame.step
        if step is not None and step.number != ABSENT:
            columns["step"] = step.number
        if frame is not None:
            columns["span_id"] = frame.span_id
        moment = now()
        if self._at_once or columns["severity_number"] >= ERROR:
            self._write(columns, fields, moment)
        elif self._queue.qsize() < MOST_WAITING:
            # Fields may change when the call has returned: what they are now is what is reported.
            self._queue.put((columns, None if not fields else to_json(fields), moment))
        else:
            self._sink.refuse("logs", LOG_QUEUE_FULL)

    def trouble(self, error: Exception) -> None:
        """Count a line that could not be recorded."""
        self._sink.trouble("recording a log line", error, "logs")

    def drain(self, timeout_s: float) -> None:
        """Wait until what was logged so far is written, and tell of what was suppressed."""
        if self._thread is not None and self._thread.is_alive() and self._thread is not threading.current_thread():
            done = threading.Event()
            self._queue.put((_MARK, done, 0))
            done.wait(timeout_s)
        self.tell_suppressed(now())

    def stop(self) -> None:
        """End the thread; what is logged from here on is written at once, if the run takes it."""
        self._at_once = True
        thread, self._thread = self._thread, None
        if thread is not None and thread is not threading.current_thread():
            self._queue.put((None, None, 0))
            thread.join(1.0)
        self.tell_suppressed(now())

    def tell_suppressed(self, before_ns: int | None = None) -> None:
        """Write a row for each template whose suppressed lines no other reports; its own weight is 0."""
        for bucket in self.limits.take_suppressed(now() - _OWED_AFTER_NS if before_ns is None else before_ns):
            row = {**bucket.facts, "suppressed_count": bucket.suppressed, "weight": 0.0}
            self._write(row, None, bucket.at_ns)

    def after_fork(self) -> None:
        """In a forked child, which has no thread: lines are written at once; those in the queue are the parent's."""
        self._queue, self._thread, self._at_once = queue.SimpleQueue(), None, True
        self._inside = threading.local()
        self.limits.after_fork()

    def _keep_writing(self) -> None:
        while True:
            columns, fields, moment = self._queue.get()
            if columns is None:
                return
            if columns is _MARK:
                fields.set()
            else:
                self._write(columns, fields, moment)

    def _write(self, columns: dict[str, Any], fields: dict[str, Any] | None, moment: int) -> None:
        self._inside.writing = True
        try:
            with self._sink.recording("logs"):
                shown = _redact_columns(columns, fields, guesses=not self._sink.masks("logs", "message"))
                if self._trace_id is not None:
                    shown["trace_id"] = self._trace_id
                self._sink.record("logs", shown, moment)
        finally:
            self._inside.writing = False


def _redact_columns(columns: dict[str, Any], fields: dict[str, Any] | None, *, guesses: bool) -> dict[str, Any]:
    """Return the columns as they may be written: bounded, without secrets.

    Parameters
    ----------
    guesses
        Whether a template may be made of the message, where there is none.
    """
    row = {name: value for name, value in columns.items() if value is not None}
    if guesses and "message" in row and "template" not in row:
        row["template"] = shape_of(text(row["message"], _LONGEST["message"]))
    for name, longest in _LONGEST.items():
        if name in row:
            # Looked through before it is cut: a secret that is cut in two looks like none.
            whole = redact(text(row[name]))
            row[name] = _tail(whole, longest) if name == "exception_stacktrace" else text(whole, longest)
    if fields:
        known = to_json(fields)
        size = len(json_text(known) or "")  # before they are looked through: a megabyte of them takes a while
        shown = json_text(redact(known) if size <= _LONGEST_FIELDS else {"left_out": f"{size} characters"})
        row["fields"] = shown
    return row


def shape_of(line: str) -> str:
    """Return a line without what differs from one of its kind to the next: numbers, quoted texts, paths, addresses.

    Stands for the template of a line that was formatted before it was logged. Such a template is kept where personal
    data may not be. Takes time in proportion to the line.
    """
    if "@" in line:
        line = _UNBROKEN.sub(lambda match: "<…>" if "@" in match[0] else match[0], line)
    return _VARIES.sub(lambda match: match["word"] or "<…>", line)


def _tail(whole: str, longest: int) -> str:
    """Return the end of a traceback, where the error is."""
    return whole if len(whole) <= longest else f"[…] {whole[4 - longest :]}"


_all: "weakref.WeakSet[LogLines]" = weakref.WeakSet()


def after_fork() -> None:
    """In a forked child."""
    for lines in list(_all):
        lines.after_fork()


os.register_at_fork(after_in_child=after_fork)
