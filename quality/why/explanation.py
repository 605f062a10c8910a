"""What is said of one failure: the value that explains it best, what has the same rows, keys of some."""

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ranklake.printable import printable
from ranklake.quality.why.facets import HOUR, PROCESS

if TYPE_CHECKING:
    from ranklake.quality.why.facets import Cause, Facet

CLASSIFIED: Final = "classified"
MISSING: Final = "NULL"
LONGEST: Final = 80
"""Characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class ShownCause:
    """A cause, in words that anybody may read.

    Attributes
    ----------
    facet
        Column, ``hour`` (UTC, of ``ts``) or ``process`` (a rank of a run); `table` is where it stands.
    value
        Its value or range; `CLASSIFIED` for what is not shown, `MISSING` for rows without one.
    rows, failed
        Rows that have it, and those of them that fail.
    rest_rows, rest_failed
        All others.
    lift
        How many times as often as the rest they fail; None where none of the rest does, or there is no rest.
    distinct
        Values of the facet in the partition.
    """

    facet: str
    table: str
    value: str
    rows: int
    failed: int
    rest_rows: int
    rest_failed: int
    lift: float | None
    distinct: int

    @property
    def share(self) -> float:
        """Share of the failing rows that have it."""
        return self.failed / (self.failed + self.rest_failed)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a check failed on a partition, as far as its rows tell.

    Attributes
    ----------
    message, observed
        As the check wrote them down. What judges series names the worst of them there.
    rows, failed
        Rows that stand in the partition or were taken out of it for this check, and those of them that fail now.
    best
        What explains it best; None where nothing stands out.
    alike
        Other facets with as many rows, and as many failing ones, as the best.
    nearest
        The best candidate where nothing stands out; None where there is none.
    samples
        Keys of some failing rows: the table's grain, with `CLASSIFIED` for values that are.
    unknown
        Why nothing can be said; empty where something is.
    """

    table: str
    partition_date: date
    check_id: str
    column: str | None
    severity: str
    message: str | None = None
    observed: str | None = None
    rows: int = 0
    failed: int = 0
    best: ShownCause | None = None
    alike: tuple[ShownCause, ...] = ()
    nearest: ShownCause | None = None
    samples: tuple[dict[str, Any], ...] = ()
    unknown: str = ""

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        names = ("table", "check_id", "column", "severity", "message", "observed", "rows", "failed")
        return {
            **{name: getattr(self, name) for name in names},
            "partition_date": self.partition_date.isoformat(),
            "best": _plain(self.best),
            "alike": [_plain(one) for one in self.alike],
            "nearest": _plain(self.nearest),
            "samples": [dict(one) for one in self.samples],
            "unknown": self.unknown or None,
        }


def shown_cause(cause: "Cause", facet: "Facet") -> ShownCause:
    """Return a cause in words."""
    return ShownCause(
        cause.facet,
        facet.table,
        CLASSIFIED if facet.classified and cause.low is not None else _value(cause),
        cause.here.rows,
        cause.here.failed,
        cause.rest.rows,
        cause.rest.failed,
        cause.lift if cause.rest.rows else None,
        cause.distinct,
    )


def _value(cause: "Cause") -> str:
    if cause.low is None:
        return MISSING
    if cause.facet == PROCESS:
        run, rank = cause.low
        return f"rank {_text(rank)} of {_text(run)}"
    if cause.facet == HOUR:
        return f"{cause.low:02}:00 to {cause.high + 1:02}:00"
    return _text(cause.low) if cause.low == cause.high else f"{cause.low} to {cause.high}"


def _text(value: object) -> str:
    if value is None:
        return MISSING
    text = printable(str(value))
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def _plain(cause: ShownCause | None) -> dict[str, Any] | None:
    if cause is None:
        return None
    return {**{name: getattr(cause, name) for name in ShownCause.__dataclass_fields__}, "share": cause.share}
