"""Nothing: null objects that a run without recording returns for a step, a phase or a count of FLOPs."""

from typing import Final, Self

from ranklake.capture.common.gaps import NOT_STARTED, Gaps


class NullContext:
    """A context that does nothing."""

    flops: None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


NOTHING: Final = NullContext()


class MissedContext(NullContext):
    """The context of a run that was not started here: each use is counted.

    Parameters
    ----------
    tables
        Tables for which each use counts a missing row.
    """

    def __init__(self, idle: Gaps, *tables: str) -> None:
        self._idle, self._tables = idle, tables

    def __exit__(self, *_: object) -> None:
        for table in self._tables:
            self._idle.count(table, NOT_STARTED)


def null_context(idle: Gaps | None, *tables: str) -> NullContext:
    """Return a context that counts its uses in `idle`, or one that does nothing if `idle` is None."""
    return NOTHING if idle is None else MissedContext(idle, *tables)
