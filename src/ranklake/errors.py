"""The base class of all errors that are shown as a single line."""

import difflib
import re
from collections.abc import Iterable
from typing import Any


class RanklakeError(Exception):
    """An error that the user can fix.

    Parameters
    ----------
    what
        The fault, in one clause without a full stop.
    where
        The file, URI, option or name with the fault.
    hint
        How to fix it.

    Subclasses have further facts as attributes. `str()` is always a single line.

    Attributes
    ----------
    others
        Further faults of the same file. The command line shows each on its own line.
    """

    exit_code = 2
    others: tuple["RanklakeError", ...] = ()

    def __init__(self, what: str, *, where: str = "", hint: str = "") -> None:
        super().__init__(what, where, hint)
        self.what, self.where, self.hint = what, where, hint

    def __reduce__(self) -> tuple[Any, ...]:
        # Errors of worker processes are pickled, and subclasses may have other constructor arguments.
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
    """Return the similarity of two names; a name that contains the other, or begins a word of it, scores highest."""
    words = re.split(r"[^a-z0-9]+", other)
    begins = any(word.startswith(name) or (word and name.startswith(word)) for word in words)
    return 2.0 * (name in other) + begins + difflib.SequenceMatcher(None, name, other).ratio()


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``did you mean 'x'?`` with the nearest known name, else all known names, or the nearest few."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.6)
    if near:
        return f"did you mean {near[0]!r}?"
    if len(names) > _SHOWN:  # a shortened list has the most similar names; a whole list keeps its order
        names.sort(key=lambda other: -_likeness(name.lower(), other.lower()))
    shown = ", ".join(names[:_SHOWN])
    if len(names) > _SHOWN:
        return f"the nearest of {len(names):,} names: {shown}"
    return f"known: {shown}" if names else ""
