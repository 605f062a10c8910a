"""Gaps: what could not be recorded, counted by table and reason. Nothing is ever dropped without passing here.

Misuses are calls that are recorded otherwise than their caller may have meant: reported once by name, and counted.
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
    """Redact what is reported: an error's text, or a value that is none, may hold anything."""
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
"""These are in footers without having been noted in meta.frames before."""
DELIBERATE: Final = frozenset({SAMPLED_OUT})
"""What the user wants left out: counted beside what is lost, and no reason to warn or to tell of it in an event."""


class RefusedError(Exception):
    """No slot file is available now; `reason` is what gaps are counted under."""

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.detail = reason, detail


class Gaps:
    """Counts by (table, reason), safe from any thread and from signal handlers.

    Each reason is reported once per process in one logging warning; the counts go to gap frames and segment footers.

    Attributes
    ----------
    at_once
        Called after each count, to write it down where no thread does so each second.
    """

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._fresh, self._total = _zero_counts(), _zero_counts()
        self._reported: set[str] = set()
        self._within: deque[tuple[tuple[str, str], int, int]] = deque()
        self._is_counting = False
        self.at_once: Callable[[], None] | None = None

    def count(
        self, table: str, reason: str, rows: int = 1, detail: object = "", *, is_written_down: bool = False
    ) -> None:
        """Count rows of a table that could not be recorded.

        Parameters
        ----------
        detail
            What the first warning of this reason adds, such as a name or an error; its repr is cut short.
        is_written_down
            True if they are in meta.frames already.
        """
        if rows <= 0:
            return
        with self._lock:
            self._within.append(((table, reason), 0 if is_written_down else rows, rows))
            self._add_up()
            new = reason not in self._reported and reason not in DELIBERATE
            self._reported.add(reason)
        if self.at_once is not None:
            self.at_once()
        if new:
            self.tell(reason, f"not recorded in {table}: {reason}{_detail_repr(detail)}; counted as gaps from here on")

    def _add_up(self) -> None:
        """Add what waits to the counts.

        A signal handler, or what the garbage collector calls, may run within any line here, in this thread, and so
        with its lock. Were it to add up, too, one of both would add to a number that the other has read already. So it
        leaves its own, and whoever is adding up takes it.
        """
        if self._is_counting:
            return
        self._is_counting = True
        try:
            while self._within:
                key, new, rows = self._within[0]
                fresh = self._fresh
                fresh[key] += new
                if fresh is not self._fresh:  # drained in the middle of it, without these
                    continue
                self._total[key] += rows
                self._within.popleft()
        finally:
            self._is_counting = False

    def warn(self, topic: str, text: str) -> None:
        """Log a warning that is no gap, once per topic."""
        with self._lock:
            new = topic not in self._reported
            self._reported.add(topic)
        if new:
            self.tell(topic, text)

    def lenient(self, name: str, convert: Callable[[Any], T], given: object, otherwise: D) -> T | D:
        """Convert a setting; a bad one is reported, and replaced. None stands for not given."""
        if given is None:
            return otherwise
        try:
            return convert(given)
        except Exception as error:  # noqa: BLE001 - users hand over anything
            self.warn(name, f"{name} is not usable ({type(error).__name__}: {_detail_text(error)}) and left out")
            return otherwise

    def attempt(self, doing: str, work: Callable[[], object], make_room: Callable[[], None]) -> bool:
        """Run a thread's repeated work once; each error is reported only the first time.

        Parameters
        ----------
        make_room
            Called when the disk is full.

        Returns
        -------
        False if there is nothing left to do: the recorder is closed.
        """
        try:
            work()
        except RefusedError as refused:
            return refused.reason != AFTER_CLOSE
        except OSError as error:  # the disk is full or away: the sealer sees that, too
            self.warn(doing, f"{doing}: {error}; trying again")
            if error.errno == errno.ENOSPC:
                make_room()
        except Exception as error:  # noqa: BLE001 - a bug of ours
            self.warn(doing, f"{doing} failed: {type(error).__name__}: {error}")
        return True

    @staticmethod
    def tell(topic: str, text: str) -> None:
        """Log one line; a logging handler that fails is no reason to stop training."""
        try:
            LOGGER.warning("ranklake: %s", text, extra={"topic": topic})
        except Exception:  # noqa: BLE001 - a user's own handler may raise anything
            return

    def drain(self) -> Counter[tuple[str, str]]:
        """Return the counts since the last drain, and forget them."""
        with self._lock:
            self._add_up()
            fresh, self._fresh = self._fresh, _zero_counts()
        return Counter({key: rows for key, rows in fresh.items() if rows})

    def restore(self, counts: Counter[tuple[str, str]]) -> None:
        """Take back drained counts that could not be written down."""
        with self._lock:
            self._within.extend((key, rows, 0) for key, rows in counts.items())
            self._add_up()

    def totals(self) -> dict[tuple[str, str], int]:
        """Return all counts of this process so far."""
        with self._lock:
            self._add_up()
            return dict(self._total)

    def after_fork(self) -> None:
        """Begin again in a forked child: the counts are the parent's, and the lock may be held by a lost thread."""
        self._lock = threading.RLock()
        self._fresh, self._total = _zero_counts(), _zero_counts()
        self._within.clear()
        self._is_counting = False


def _zero_counts() -> "defaultdict[tuple[str, str], int]":
    return defaultdict(int)


NOWHERE: Final = Gaps()
"""What was handed to runs and handles that came here by pickle: they record nothing, and nobody writes it down."""


def _detail_repr(detail: object) -> str:
    if detail is None or (isinstance(detail, str) and not detail):
        return ""
    return f" ({' '.join(_detail_text(detail).split())[:120]})"


def _detail_text(detail: object) -> str:
    """Return a text as it is, an error's text, or the repr of anything else, whatever these do."""
    try:
        return str(detail) if isinstance(detail, str | Exception) else repr(detail)
    except Exception:  # noqa: BLE001 - a user's object may raise anything
        return type(detail).__name__


_MOST_REPORTED: Final = 100
_NEAR: Final = 0.8


def _ignore_count(count: int) -> None:
    del count


class Misuses:
    """Misuses that one process has reported.

    Parameters
    ----------
    warn
        Told of each name: a topic, and a line.

    Attributes
    ----------
    count
        Names that were reported, or would have been except for their number.
    counted
        Called with that when it has changed.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._reported: set[str] = set()
        self._lock = threading.RLock()  # a signal handler may come in the middle
        self.counted: Callable[[int], object] = _ignore_count
        self.count = 0

    def tell(self, topic: str, line: str) -> None:
        """Tell of a misuse, once by topic."""
        with self._lock:
            if topic in self._reported:
                return
            if len(self._reported) < 10 * _MOST_REPORTED:  # a program that makes up names for ever
                self._reported.add(topic)
            self.count += 1
            is_shown = self.count <= _MOST_REPORTED
        if is_shown:
            self._warn(topic, line)
        self.counted(self.count)

    def after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()


def closest_name(name: str, known: Iterable[str]) -> str:
    """Known name nearest to a misspelt one; empty if none is near.

    A known name with something behind it (``loss_2``, ``loss/mlm``) is a name of its own.
    """
    names = list(known)
    if name in names or any(name.startswith(other) and not name[len(other)].isalpha() for other in names):
        return ""
    matches = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return matches[0] if matches else ""
