"""Misuse: calls that are recorded otherwise than their caller may have meant; reported once by name, and counted."""

import difflib
import threading
from collections.abc import Callable, Iterable
from typing import Final

_MOST_TOLD: Final = 100
_NEAR: Final = 0.8


def _nobody(count: int) -> None:
    del count


class Misuses:
    """What one process has told.

    Parameters
    ----------
    warn
        Told of each name: a topic, and a line.

    Attributes
    ----------
    count
        Names that were told, or would have been but for their number.
    counted
        Called with that when it has changed.
    """

    def __init__(self, warn: Callable[[str, str], None]) -> None:
        self._warn = warn
        self._told: set[str] = set()
        self._lock = threading.RLock()  # a signal handler may come in the middle
        self.counted: Callable[[int], object] = _nobody
        self.count = 0

    def tell(self, topic: str, line: str) -> None:
        """Tell of a misuse, once by topic."""
        with self._lock:
            if topic in self._told:
                return
            if len(self._told) < 10 * _MOST_TOLD:  # a program that makes up names for ever
                self._told.add(topic)
            self.count += 1
            is_shown = self.count <= _MOST_TOLD
        if is_shown:
            self._warn(topic, line)
        self.counted(self.count)

    def after_fork(self) -> None:
        """In a forked child: the lock may be held by a thread that is not there."""
        self._lock = threading.RLock()


def near(name: str, known: Iterable[str]) -> str:
    """Return the known name that one may be a misspelling of; empty if there is none.

    A known name with something behind it (``loss_2``, ``loss/mlm``) is a name of its own.
    """
    names = list(known)
    if name in names or any(name.startswith(one) and not name[len(one)].isalpha() for one in names):
        return ""
    found = difflib.get_close_matches(name, names, n=1, cutoff=_NEAR)
    return found[0] if found else ""
