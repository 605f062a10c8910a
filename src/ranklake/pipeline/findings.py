"""Findings: what a stage met while it did its work, and what somebody has to look at."""

from collections.abc import Sequence
from typing import Any, Final

from ranklake.errors import RanklakeError

_SHOWN: Final = 3


class FindingsError(RanklakeError):
    """A stage is done, and found something: its flow ends Failed, its command exits 1; `done` is what was done.

    What is wrong may have several lines; those after the first are its `others`.
    """

    exit_code = 1

    def __init__(self, done: dict[str, Any], what: str, *, hint: str = "") -> None:
        first, *rest = what.split("\n")
        super().__init__(first, hint=hint or (f"and {len(rest):,} more" if rest else ""))
        self.others = tuple(map(RanklakeError, rest))
        self.done = done


def first_few(texts: Sequence[str]) -> str:
    """Return the first three texts, and how many more there are.

    >>> first_few(["a", "b"]), first_few(["a", "b", "c", "d"])
    ('a; b', 'a; b; c and 1 more')
    """
    more = f" and {len(texts) - _SHOWN} more" if len(texts) > _SHOWN else ""
    return f"{'; '.join(texts[:_SHOWN])}{more}"
