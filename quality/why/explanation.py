"""The explanation of one failure: the value that explains it best, other values of the same rows, sample keys."""

from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from ranklake.printable import printable, shorten
from ranklake.quality.why.facets import HOUR, PROCESS

if TYPE_CHECKING:
    from ranklake.quality.why.facets import Cause, Facet

CLASSIFIED: Final = "classified"
MISSING: Final = "NULL"
LONGEST: Final = 80
"""Maximum number of characters of a value that are shown."""


@dataclass(frozen=True, slots=True)
class ShownCause:
    """A cause in words, without classified values.

    Attributes
    ----------
    facet
        Column, ``hour`` (UTC, of ``ts``) or ``process`` (a rank of a run).
    table
        Table of the facet.
    value
        The value or range; `CLASSIFIED` for a hidden value, `MISSING` for rows without a value.
    rows, failed
        Number of rows with this value, and of those that fail.
    rest_rows, rest_failed
        The same of all other rows.
    lift
        Failure rate of these rows divided by that of the rest; None if no other row fails, or there are none.
    distinct
        Number of values of the facet in the partition.
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
        """Share of the failing rows that have this value."""
        return self.failed / (self.failed + self.rest_failed)


@dataclass(frozen=True, slots=True)
class Explanation:
    """Why a check failed on a partition, as far as its rows show.

    Attributes
    ----------
    message, observed
        Texts of the check's result. A check of series names the worst series there.
    rows, failed
        Number of rows in the partition or moved to ``rejects`` for this check, and of those that fail now.
    best
        The cause that explains the failure best; None if no cause stands out.
    alike
        Other facets with as many rows and failing rows as the best.
    nearest
        The best candidate if none stands out; None if there is none.
    samples
        Keys of a few failing rows: the table's grain, with `CLASSIFIED` for classified values.
    unknown
        Why there is no explanation; empty if there is one.
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
        """Return the fields as plain JSON values."""
        names = ("table", "check_id", "column", "severity", "message", "observed", "rows", "failed")
        return {
            **{name: getattr(self, name) for name in names},
            "partition_date": self.partition_date.isoformat(),
            "best": _plain(self.best),
            "alike": [_plain(item) for item in self.alike],
            "nearest": _plain(self.nearest),
            "samples": [dict(item) for item in self.samples],
            "unknown": self.unknown or None,
        }


def shown_cause(cause: "Cause", facet: "Facet") -> ShownCause:
    """Return a cause in words, with a classified value hidden."""
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
    return shorten(printable(str(value)), LONGEST)


def _plain(cause: ShownCause | None) -> dict[str, Any] | None:
    if cause is None:
        return None
    return {**{name: getattr(cause, name) for name in ShownCause.__dataclass_fields__}, "share": cause.share}
