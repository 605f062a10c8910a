"""Gaps: counts of rows that could not be recorded, by table and reason. Every dropped row is counted here.

A misuse is a call that is recorded differently from what the caller may have meant. It is logged once, and counted.
"""

import difflib
import errno
import logging
import threading
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from ranklake.redaction.redact import redact
from ranklake.segments.segment import SAMPLED_OUT

T = TypeVar("T")
D = TypeVar("D")


def _without_credentials(record: logging.LogRecord) -> bool:
    """Redact a log message: the text of an error or of a bad value may contain a credential."""
    try:
        message = record.getMessage()
        shown = redact(message)
    except Exception:  # noqa: BLE001 - the text of a foreign error may raise
        message, shown = "", f"ranklake: a warning that cannot be shown ({record.msg!s:.80})"
    if shown != message:
        record.msg, record.args = shown, ()
    return True


LOGGER: Final = logging.getLogger("ranklake")
LOGGER.addFilter(_without_credentials)

BAD_VALUE: Final = "bad value"
NO_CONTRACT: Final = "no contract has the table"
BAD_STEP: Final = "bad step"
BAD_NAME: Final = "bad name"
BAD_ARGUMENTS: Final = "bad arguments"
TOO_MANY_SERIES: Final = "too many series"
UNREGISTERED: Final = "unregistered metric"
WRONG_KIND: Final = "wrong kind"
WRONG_UNIT: Final = "wrong unit"
OUT_OF_RANGE: Final = "out of range"
RETIRED: Final = "retired metric"
TOO_LARGE: Final = "too large"
NOT_MASKED: Final = "not masked"
AFTER_CLOSE: Final = "after close"
NOT_STARTED: Final = "not started here"
NOT_BEGUN: Final = "ended and never begun"
BEGUN_TWICE: Final = "a step begun or ended twice"
BEGUN_BEFORE_FORK: Final = "begun before a fork"
DEVICE_VALUE: Final = "device value"
SPOOL_FULL: Final = "spool full"
SPOOL_VANISHED: Final = "spool vanished"
SPOOL_REFUSED: Final = "spool not writable"
BACKPRESSURE: Final = "backpressure"
BLOCKED: Final = "backpressure, waited too long"
DROPPED_OLDEST: Final = "backpressure, oldest dropped"
AGGREGATED: Final = "aggregated"
DAMAGED: Final = "damaged"
UNSEALABLE: Final = "file not sealable"
UNEXPECTED: Final = "unexpected error"
LOG_QUEUE_FULL: Final = "log queue full"
MEDIA_QUEUE_FULL: Final = "media queue full"
MEDIA_LIMIT: Final = "more media than the settings allow"
NOT_IN_TIME: Final = "the run ended first"
FOUND_WHEN_SEALING: Final = frozenset({DAMAGED, OUT_OF_RANGE})
"""Reasons that sealing counts in footers only, not in meta.frames."""
DELIBERATE: Final = frozenset({SAMPLED_OUT})
"""Reasons that the user chose. They are counted, but cause no warning and no event."""


class RefusedError(Exception):
    """No slot file is available now. Rows are counted as gaps under `reason`."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Gaps:
    """Counts of rows by (table, reason). Any thread and any signal handler may count.

    Each reason is logged once per process as a warning. The counts are written to gap frames and segment footers.

    Attributes
    ----------
    on_count
        Called after each count, to write it in processes without a thread that does so each second.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fresh, self._total = _zero_counts(), _zero_counts()
        self._reported: set[str] = set()
        self._pending: deque[tuple[tuple[str, str], int, int]] = deque()
        self._is_counting = False
        self.on_count: Callable[[], None] | None = None

    def count(
        self, table: str, reason: str, rows: int = 1, detail: object = "", *, is_written_down: bool = False
    ) -> None:
        """Count rows of a table that could not be recorded.

        Parameters
        ----------
        detail
            Detail for the first warning of this reason, such as a name or an error; its repr is truncated.
        is_written_down
            True if the rows are already counted in meta.frames.
        """
        if rows <= 0:
            return
        with self._lock:
            self._pending.append(((table, reason), 0 if is_written_down else rows, rows))
            self._add_up()
            new = reason not in self._reported and reason not in DELIBERATE
            self._reported.add(reason)
        if self.on_count is not None:
            self.on_count()
        if new:
            self.log_warning(
                reason, f"not recorded in {table}: {reason}{_detail_repr(detail)}; counted as gaps from here on"
            )

    def _add_up(self) -> None:
        """Add the pending counts to the totals.

        A signal handler or a finalizer may run between any two lines of this method, in this thread, which has the
        lock. If it added counts itself, one of the two additions would be lost. So it only appends to the pending
        counts, and the interrupted call adds them.
        """
        if self._is_counting:
            return
        self._is_counting = True
        try:
            while self._pending:
                key, new, rows = self._pending[0]
                fresh = self._fresh
                fresh[key] += new
                if fresh is not self._fresh:  # `drain` ran in between, without these rows
                    continue
                self._total[key] += rows
                self._pending.popleft()
        finally:
            self._is_counting = False

    def warn(self, topic: str, text: str) -> None:
        """Log a warning that is not about a gap, once per topic."""
        with self._lock:
            new = topic not in self._reported
            self._reported.add(topic)
        if new:
            self.log_warning(topic, text)

    def lenient(self, name: str, convert: Callable[[Any], T], value: object, default: D) -> T | D:
        """Return the converted value, or `default` if it is None. A bad value is logged and replaced by `default`."""
        if value is None:
            return default
        try:
            return convert(value)
        except Exception as error:  # noqa: BLE001 - users pass any value
            self.warn(name, f"{name} is not usable ({type(error).__name__}: {_detail_text(error)}) and left out")
            return default

    def attempt(self, doing: str, work: Callable[[], object], make_room: Callable[[], None]) -> bool:
        """Run a thread's periodic work once; log an error only the first time.

        Parameters
        ----------
        doing
            Description of the work for messages.
        make_room
            Called when the disk is full.

        Returns
        -------
        False if the recorder is closed, so that the thread can end.
        """
        try:
            work()
        except RefusedError as refused:
            return refused.reason != AFTER_CLOSE
        except OSError as error:  # the disk is full or missing; the sealer's next attempt shows the same
            self.warn(doing, f"{doing}: {error}; trying again")
            if error.errno == errno.ENOSPC:
                make_room()
        except Exception as error:  # noqa: BLE001 - a bug of ours
            self.warn(doing, f"{doing} failed: {type(error).__name__}: {error}")
        return True

    @staticmethod
    def log_warning(topic: str, text: str) -> None:
        """Log one line as a warning. An error of a logging handler is ignored, so that training continues."""
        try:
            LOGGER.warning("ranklake: %s", text, extra={"topic": topic})
        except Exception:  # noqa: BLE001 - a user's own handler may raise anything
            return

    def drain(self) -> Counter[tuple[str, str]]:
        """Return the counts since the last call, and reset them to zero."""
        with self._lock:
            self._add_up()
            fresh, self._fresh = self._fresh, _zero_counts()
        return Counter({key: rows for key, rows in fresh.items() if rows})

    def restore(self, counts: Counter[tuple[str, str]]) -> None:
        """Add drained counts back that could not be written."""
        with self._lock:
            self._pending.extend((key, rows, 0) for key, rows in counts.items())
            self._add_up()

    def totals(self) -> dict[tuple[str, str], int]:
        """Return all counts of this process so far."""
        with self._lock:
            self._add_up()
            return dict(self._total)

    def after_fork(self) -> None:
        """Reset in a forked child: the parent keeps its counts, and a thread of the parent may hold the lock."""
        self._lock = threading.RLock()
        self._fresh, self._total = _zero_counts(), _zero_counts()
        self._pending.clear()
        self._is_counting = False


def _zero_counts() -> "defaultdict[tuple[str, str], int]":
    return defaultdict(int)


NOWHERE: Final = Gaps()
"""Counts of rows passed to unpickled runs and handles. These record nothing, and the counts are not written."""


def _detail_repr(detail: object) -> str:
    if detail is None or (isinstance(detail, str) and not detail):
        return ""
    return f" ({' '.join(_detail_text(detail).split())[:120]})"


def _detail_text(detail: object) -> str:
    """Return a text unchanged, the text of an error, or the repr of any other object. Never raises."""
    try:
        return str(detail) if isinstance(detail, str | Exception) else repr(detail)
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return type(detail).__name__


_MOST_REPORTED: Final = 100
_NEAR: Final = 0.8


def _ignore_count(count: int) -> None:
    del count


class Misuses:
    """Counts and logs the misuses of one process.

    Parameters
    ----------
    warn
        Called with a topic and a line for each misuse.

    Attributes
    ----------
    count
        Number of different misuses so far, including those that are too many to log.
    on_count
        Called with `count` when it has changed.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._reported: set[str] = set()
        self._lock = threading.RLock()  # a signal handler may run within `report`
        self.on_count: Callable[[int], object] = _ignore_count
        self.count = 0

    def report(self, topic: str, line: str) -> None:
        """Count and log a misuse, once per topic."""
        with self._lock:
            if topic in self._reported:
                return
            if len(self._reported) < 10 * _MOST_REPORTED:  # a program may generate names without end
                self._reported.add(topic)
            self.count += 1
            is_shown = self.count <= _MOST_REPORTED
        if is_shown:
            self._warn(topic, line)
        self.on_count(self.count)

    def after_fork(self) -> None:
        """Replace the lock in a forked child: a thread of the parent may hold it."""
        self._lock = threading.RLock()


def closest_name(name: str, known: Iterable[str]) -> str:
    """Return the known name that is most similar to a misspelt one; empty if none is similar.

    A known name with a suffix (``loss_2``, ``loss/mlm``) does not count as misspelt.
    """
    names = list(known)
    if name in names or any(name.startswith(other) and not name[len(other)].isalpha() for other in names):
        return ""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return matches[0] if matches else ""
