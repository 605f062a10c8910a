"""What retention removed, by date: from tables, and from the raw bytes of unreadable segments."""

from datetime import date
from typing import TYPE_CHECKING, Final

from ranklake.retention.proposals.retention_plans import register

if TYPE_CHECKING:
    from ranklake.lake.store.tables import Tables

ARCHIVED_ROWS: Final = "archive/"
"""Likewise before items that are archives of its rows, by the date that those were on; `path` is an archive's name."""


def retired_dates(tables: "Tables", *, final: bool = False, of_parts: bool = False) -> dict[str, dict[date, int]]:
    """Return the dates that retention took, by table or `RAW` and table, each with the last plan that did.

    A retention plan whose items were altered took nothing that is known. Dates of which only some rows went are not
    among them, see `thinned_dates`.

    Parameters
    ----------
    final
        Leave out what can be cancelled yet.
    of_parts
        Return the dates of which it took some rows, or masked values, instead of those that it took whole.
    """
    retired: dict[str, dict[date, int]] = {}
    for plan in register(tables).values():
        for item in plan.items if plan.holds and plan.intact and not (final and plan.is_kept) else ():
            if (item.part_sha256 is not None) != of_parts:
                continue
            days = retired.setdefault(item.table, {})
            days[item.partition_date] = max(days.get(item.partition_date, 0), plan.plan or 0)
    return retired


def thinned_dates(tables: "Tables", table: str) -> set[date]:
    """Return the dates of a table of which retention took some rows, or masked values: a replay would bring them back.

    Nothing tells which rows those were.
    """
    return {
        item.partition_date
        for one in register(tables).values()
        for item in (one.items if one.holds else ())
        if item.table == table and item.part_sha256 is not None
    }
