"""Partitions that are held back from rollups: a check with ``on_fail: hold`` failed there, and nobody released them.

    quality_results ── the last word on a partition ──▶ failed, on_fail: hold ── not released ──▶ held

Derived when somebody asks. So a hold ends when the partition is checked anew and passes, and nothing has to be kept in
step. A check that could not be computed says nothing of the data, and holds nothing.
"""

from dataclasses import dataclass
from datetime import date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import SEVERITIES
from ranklake.lake.tables.read import read
from ranklake.retention.proposals.releases import released

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_RESULTS: Final = "quality_results"
_PLACE: Final = ("table", "partition_date")
_WHY: Final = ("check_id", "severity", "rows_failed", "message", "files_sha256", "check_run")


@dataclass(frozen=True, slots=True)
class Hold:
    """A partition that is held back.

    Attributes
    ----------
    files_sha256
        Digest of its files as the check left them.
    checks
        Ids of the checks that hold it, in order.
    severity
        The worst of theirs.
    rows_failed
        The most rows that one of them found.
    found
        When they last did.
    """

    table: str
    partition_date: date
    files_sha256: str
    checks: tuple[str, ...]
    severity: str
    rows_failed: int
    found: datetime

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "table": self.table,
            "partition_date": self.partition_date.isoformat(),
            "checks": list(self.checks),
            "severity": self.severity,
            "rows_failed": self.rows_failed,
            "found": self.found.isoformat(),
            "files_sha256": self.files_sha256,
        }


def held_partitions(lake: "Lake") -> set[tuple[str, date]]:
    """Return table and date of the partitions that are held back now."""
    return {(hold.table, hold.partition_date) for hold in holds(lake)}


def holds(lake: "Lake") -> list[Hold]:
    """Return the partitions that are held back now, by table and date."""
    told = read(lake, contract(_RESULTS), [*_PLACE, "ts", "date", "status", "on_fail"])
    failed = told.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    if not failed.num_rows:
        return []
    last = told.group_by(list(_PLACE)).aggregate([("ts", "max")]).rename_columns([*_PLACE, "ts"])
    standing = failed.select([*_PLACE, "ts", "date"]).join(last, [*_PLACE, "ts"], join_type="inner")
    if not standing.num_rows:
        return []
    rows = read(
        lake,
        contract(_RESULTS),
        [*_PLACE, *_WHY, "ts", "status", "on_fail"],
        partitions=pc.unique(standing["date"]).to_pylist(),
    )
    rows = rows.filter((pc.field("status") == "failed") & (pc.field("on_fail") == "hold"))
    rows = rows.join(last, [*_PLACE, "ts"], join_type="inner")
    return _unreleased(lake, rows)


def _unreleased(lake: "Lake", rows: pa.Table) -> list[Hold]:
    free = released(lake)
    by_place: dict[tuple[str, date, str], list[dict[str, Any]]] = {}
    for row in rows.to_pylist():
        place = (row["table"], row["partition_date"], row["files_sha256"])
        if place not in free:
            by_place.setdefault(place, []).append(row)
    return [
        Hold(
            *place,
            checks=tuple(sorted({row["check_id"] for row in some})),
            severity=min((row["severity"] for row in some), key=SEVERITIES.index),
            rows_failed=max(row["rows_failed"] or 0 for row in some),
            found=some[0]["ts"],
        )
        for place, some in sorted(by_place.items())
    ]
