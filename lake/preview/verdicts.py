"""Checks that come out otherwise on a clone than they did in the lake."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.read import read
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_FAILED: Final = frozenset({"failed", "errored"})


@dataclass(frozen=True, slots=True)
class CheckDifference:
    """A check that comes out otherwise on some dates.

    Attributes
    ----------
    dates
        How many.
    before, after
        How it came out on them: ``passed``, ``failed``, ``errored``, ``skipped``, ``unknown`` (never run), ``none``
        (there is no such check any more).
    rows_failed
        Rows that fail afterwards.
    """

    table: str
    check: str
    dates: int
    before: str
    after: str
    rows_failed: int

    @property
    def is_worse(self) -> bool:
        """Whether it fails where it did not."""
        return self.after in _FAILED and self.before not in _FAILED


def standing(lake: "Lake", tables: Iterable[str]) -> dict[tuple[str, str, str], str]:
    """Return how each check came out last, by table, check and date."""
    results = as_read(latest(lake, "quality_results"), contract("quality_results"))
    rows = read(lake, results, ["table", "check_id", "partition_date", "status", "ts"])
    wanted = set(tables)
    return {
        (row["table"], row["check_id"], str(row["partition_date"])): row["status"]
        for row in rows.sort_by("ts").to_pylist()
        if row["table"] in wanted
    }


def differing(
    before: Mapping[tuple[str, str, str], str], rows: Sequence[Mapping[str, Any]]
) -> Iterator[CheckDifference]:
    """Yield checks that come out otherwise than before, of those that new rows of ``quality_results`` are about."""
    after = {(row["table"], row["check_id"], str(row["partition_date"])): row for row in rows}
    judged = {(table, day) for table, _, day in after}
    gone = {key for key in before if key not in after and (key[0], key[2]) in judged}
    sums: dict[tuple[str, str, str, str], list[int]] = {}
    for key in sorted(after.keys() | gone):
        row = after.get(key)
        was, now = before.get(key, "unknown"), "none" if row is None else str(row["status"])
        if was != now and not (was == "unknown" and now in {"passed", "skipped"}):
            some = sums.setdefault((key[0], key[1], was, now), [0, 0])
            some[0] += 1
            some[1] += int((row or {}).get("rows_failed") or 0)
    for (table, check, was, now), (dates, failed) in sums.items():
        yield CheckDifference(table, check, dates, was, now, failed)
