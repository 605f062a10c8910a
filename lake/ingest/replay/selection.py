"""Selects the dates of a fact table that a replay rebuilds, and the segments to rebuild them from.

A replay does not bring back removed rows. Of a date that retention removed, only rows that were ingested later are
rebuilt. If a plan of a kind that a replay cannot repeat has changed a date, the replay is refused.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import RanklakeError
from ranklake.lake.contracts.load import contract
from ranklake.lake.ingest.deduplication import joined_slots
from ranklake.lake.plans.kinds import is_replayable
from ranklake.lake.plans.plan import LEDGER, read_plan
from ranklake.lake.query.scan import live_files
from ranklake.lake.store.governance import is_all_retired, retired_dates, thinned_dates
from ranklake.lake.store.planned_segment import PlannedSegment
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read
from ranklake.lake.tables.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.ingest.spool.spool import Spool
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.tables import Tables


class ReplayError(RanklakeError):
    """A replay is impossible, or would not restore the rows of the table. The table is unchanged."""


class MissingSegmentsError(ReplayError):
    """Segments with rows of the partitions are no longer in the spool.

    Attributes
    ----------
    segments
        Number of missing segments.
    days
        Dates that need them, in order.
    """

    def __init__(self, table: str, segments: int, days: Iterable[date]) -> None:
        self.segments, self.days = segments, tuple(sorted(days))
        message = f"{segments} segments are no longer in the spool, for {shown_days(self.days)}"
        hint = "replay other dates, or bring the segments back; ingest keeps them for --keep-days"
        super().__init__(message, where=table, hint=hint)


def shown_days(days: Sequence[date]) -> str:
    """Return sorted dates as text for errors: the first and the last."""
    return f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"


_ORDER: Final = ("run", "attempt", "rank", "incarnation", "segment", "plan", "sha256")
_FACTS: Final = ("sha256", "table", "run", "attempt", "rank", "incarnation", "segment", "plan", "rows", "bytes")


@dataclass(frozen=True, slots=True)
class Selection:
    """Dates, live files and segments of a replay of a fact table.

    Attributes
    ----------
    days, kept
        Dates to rebuild, and dates that retention removed and that are left unchanged.
    live
        Live files of the dates: rows of `ranklake.lake.tables.live_files.files`.
    segments
        Each segment as an entry of a plan, with the dates for which its rows may be used.
    """

    days: tuple[date, ...]
    kept: tuple[date, ...]
    live: pa.Table
    segments: list[tuple[PlannedSegment, frozenset[date]]]


def select(tables: "Tables", spool: "Spool", table: str, first: date, last: date) -> Selection:
    """Select the dates and segments for a replay of a fact table from `first` to `last`. Raises `ReplayError`."""
    retired = retired_dates(tables).get(table, {})
    handle = delta_table(tables.store, table)
    copies: dict[str, list[str]] = defaultdict(list)
    for item in spool.listing():
        if item.table == table:
            copies[item.sha256].append(item.path)
    known = read(tables, contract("segments"), [*_FACTS, "unreadable", "rows_stored", "slots", "ts_min", "ts_max"])
    sound = pc.and_(pc.equal(known["table"], table), pc.is_null(known["unreadable"]))
    sound_rows = known.filter(sound).sort_by([(name, "ascending") for name in _ORDER]).to_pylist()
    earlier_slots = _earlier_slots(sound_rows)
    all_live_days = set() if handle is None else set(files(handle)["date"].to_pylist())
    # If retention removed all rows of a segment, its file was deleted from the spool and is not needed.
    missing = (row for row in sound_rows if row["sha256"] not in copies)
    unneeded = {(row["sha256"], row["plan"]) for row in missing if is_all_retired(row, retired, all_live_days)}
    rows = [row for row in sound_rows if row["rows_stored"] > 0 and (row["sha256"], row["plan"]) not in unneeded]
    span = {first + timedelta(days=offset) for offset in range((last - first).days + 1)}
    wanted: list[tuple[dict[str, Any], frozenset[date]]] = []
    segment_days: set[date] = set()
    for row in rows:
        allowed_days = frozenset(day for day in span if row["plan"] > retired.get(day, 0))
        if days := {day for day in allowed_days if _spans(row, day)}:
            wanted.append((row, allowed_days))
            segment_days |= days
    live = live_files(handle, span)
    live_days = set(live["date"].to_pylist())
    _refuse_changed(tables, table, live_days | segment_days)
    # A retired date has no rows and gets none, unless rows of it were ingested later.
    kept = {day for day in span if day in retired and day not in segment_days and day not in live_days}
    lost = [row for row, _ in wanted if row["sha256"] not in copies]
    if lost:
        lost_days = {day for day in segment_days if any(_spans(row, day) for row in lost)}
        raise MissingSegmentsError(table, len(lost), lost_days)
    segments = [
        (_as_planned(row, copies[row["sha256"]], earlier_slots.get(_sort_key(row), "")), days) for row, days in wanted
    ]
    return Selection(tuple(sorted(live_days | segment_days)), tuple(sorted(kept)), live, segments)


def _earlier_slots(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], str]:
    """Return, for segments of a slot file with earlier segments, the slots of the earlier ones, by `_sort_key`.

    Parameters
    ----------
    rows
        Sound segments of a table in the order `_ORDER`, which is the order in which ingest read them.
    """
    earlier: dict[tuple[Any, ...], str] = {}
    slots_so_far: dict[tuple[int, int], str] = {}
    for row in rows:
        slot_file = (row["incarnation"], row["segment"])
        if slot_file in slots_so_far:
            earlier[_sort_key(row)] = slots_so_far[slot_file]
            slots_so_far[slot_file] = joined_slots((slots_so_far[slot_file], row["slots"] or ""))
        else:
            slots_so_far[slot_file] = row["slots"] or ""
    return earlier


def _sort_key(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _ORDER)


def _spans(row: Mapping[str, Any], day: date) -> bool:
    """Whether a segment can have rows of a date. A segment without readable times can have rows of any date."""
    low, high = row["ts_min"], row["ts_max"]
    return low is None or high is None or low.date() <= day <= high.date()


def _as_planned(row: Mapping[str, Any], paths: Sequence[str], seen: str) -> PlannedSegment:
    """Return a segment as an entry of a plan, like in plans of kind ``ingest``."""
    path, *others = sorted(paths)
    return {
        "path": path,
        "others": others,
        "table": row["table"],
        "bytes": row["bytes"],
        "rows": row["rows"],
        "sha256": row["sha256"],
        "seen": seen,
        "incarnation": row["incarnation"],
        "segment": row["segment"],
    }


def _refuse_changed(tables: "Tables", table: str, days: set[date]) -> None:
    """Raise `ReplayError` if a plan of a kind that a replay cannot repeat has changed one of the dates."""
    for row in read(tables, contract(LEDGER), ["plan", "kind"]).to_pylist():
        if is_replayable(row["kind"]):
            continue
        plan = read_plan(tables.store, row["plan"])
        if plan is None or _changed_dates(plan, table) & {day.isoformat() for day in days}:
            message = f"plan {row['plan']} ({row['kind']}) changed rows here, and a replay would undo that"
            raise ReplayError(message, where=table, hint="replay other dates")
    if thinned := thinned_dates(tables, table) & days:
        message = (
            f"retention removed or masked some rows of {min(thinned)} by a rule, and a replay would bring them back"
        )
        raise ReplayError(message, where=table, hint="replay other dates")


def _changed_dates(plan: "Plan", table: str) -> set[str]:
    """Return the dates (ISO) of a table that an action plan changed."""
    dropped = {file["date"] for file in plan.body.get("remove", {}).get(table, [])}
    return dropped | {file["partition"] for file in plan.body.get("add", []) if file["table"] == table}
