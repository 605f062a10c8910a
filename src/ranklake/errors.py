"""The one base class of every error that a caller or the command line may show as a single line."""

import difflib
import re
from collections.abc import Iterable
from typing import Any


class RanklakeError(Exception):
    """Something the user can fix.

    Parameters
    ----------
    what
        What went wrong, in one clause without a full stop.
    where
        The file, URI, option or name it went wrong at.
    hint
        What to do about it.

    Subclasses keep their own facts as attributes. `str()` is always a single line.

    Attributes
    ----------
    others
        What else is wrong with the same file. The command line shows each on a line of its own.
    """

    exit_code = 2
    others: tuple["RanklakeError", ...] = ()

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what, self.where, self.hint = what, where, hint

    def __reduce__(self) -> tuple[Any, ...]:
        # A subclass may build itself from other facts than it shows; an error of a worker process comes back by pickle.
        return _rebuild, (type(self), self.args, self.__dict__)

    def __str__(self) -> str:
        line = f"{self.where}: {self.what}" if self.where else self.what
        if self.hint:
            line += f"; {self.hint}"
        return " ".join(line.split())


def _rebuild(kind: type[RanklakeError], args: tuple[str, ...], facts: dict[str, Any]) -> RanklakeError:
    error = kind.__new__(kind, *args)
    error.__dict__.update(facts)
    return error


_SHOWN = 12


def _likeness(name: str, other: str) -> float:
    """Return how like two names are: one that holds the other, or begins a word of it, more than any that does not."""
    words = re.split(r"[^a-z0-9]+", other)
    begins = any(word.startswith(name) or (word and name.startswith(word)) for word in words)
    return 2.0 * (name in other) + begins + difflib.SequenceMatcher(None, name, other).ratio()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` for the nearest known name, else known names: all, or the nearest few."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(names) > _SHOWN:  # what is cut off is least like it; a list that is whole is easier to read in its order
        names.sort(key=lambda other: -_likeness(name.lower(), other.lower()))
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        return f"the nearest of {len(names):,} names: {shown}"
    return f"known: {shown}" if names else ""
