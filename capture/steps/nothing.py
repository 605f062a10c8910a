"""Nothing: null objects that a run which records nothing returns for a step, a phase or a count."""

from typing import Final, Self

from ranklake.capture.common.gaps import NOT_STARTED, Gaps


class NullContext:
    """What a run that records nothing gives for a step, a phase or a count."""

    flops: None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        return None


NOTHING: Final = NullContext()


class MissedContext(NullContext):
    """What a run that was never started gives: each passage is counted.

    Parameters
    ----------
    tables
        That lack a row for each.
    """

    def __init__(self, idle: Gaps, *tables: str) -> None:
        self._idle, self._tables = idle, tables

    def __exit__(self, *_: object) -> None:
        for table in self._tables:
            self._idle.count(table, NOT_STARTED)


def null_context(idle: Gaps | None, *tables: str) -> NullContext:
    """Return what a run gives that counts so; see `ranklake.capture.lanes.sink.Sink`."""
    return NOTHING if idle is None else MissedContext(idle, *tables)
