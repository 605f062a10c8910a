"""Which dates of a fact table a replay rebuilds, and from which segments.

Nothing comes back that was taken out since: of a date that retention took, only what came later is rebuilt; and where a
plan of a kind that nothing here can redo changed a date, the replay is refused.
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
    """A replay that cannot be done, or would not give the rows that were there; nothing was changed."""


class MissingSegmentsError(ReplayError):
    """Segments that the partitions were made of are no longer in the spool.

    Attributes
    ----------
    segments
        How many.
    days
        Dates that need them.
    """

    def __init__(self, table: str, segments: int, days: Iterable[date]) -> None:
        self.segments, self.days = segments, tuple(sorted(days))
        message = f"{segments} segments are no longer in the spool, for {shown_days(self.days)}"
        hint = "replay other dates, or bring the segments back; ingest keeps them for --keep-days"
        super().__init__(message, where=table, hint=hint)


def shown_days(days: Sequence[date]) -> str:
    """Return dates, in order, as errors show them: the first and the last."""
    return f"{days[0]}" if len(days) == 1 else f"{days[0]} to {days[-1]}"


_ORDER: Final = ("run", "attempt", "rank", "incarnation", "segment", "plan", "sha256")
_FACTS: Final = ("sha256", "table", "run", "attempt", "rank", "incarnation", "segment", "plan", "rows", "bytes")


@dataclass(frozen=True, slots=True)
class Selection:
    """What a replay of facts is about.

    Attributes
    ----------
    days, kept
        Dates to rebuild, and those to leave alone.
    live
        The files that they have: rows of `ranklake.lake.tables.live_files.files`.
    segments
        Each segment as a row of a plan, with the dates that may be taken from it.
    """

    days: tuple[date, ...]
    kept: tuple[date, ...]
    live: pa.Table
    segments: list[tuple[PlannedSegment, frozenset[date]]]


def select(tables: "Tables", spool: "Spool", table: str, first: date, last: date) -> Selection:
    """Return what a replay of a fact table's dates takes. Raises `ReplayError`."""
    taken = retired_dates(tables).get(table, {})
    handle = delta_table(tables.store, table)
    copies: dict[str, list[str]] = defaultdict(list)
    for item in spool.listing():
        if item.table == table:
            copies[item.sha256].append(item.path)
    known = read(tables, contract("segments"), [*_FACTS, "unreadable", "rows_stored", "slots", "ts_min", "ts_max"])
    sound = pc.and_(pc.equal(known["table"], table), pc.is_null(known["unreadable"]))
    every = known.filter(sound).sort_by([(name, "ascending") for name in _ORDER]).to_pylist()
    seen = _earlier_slots(every)
    there = set() if handle is None else set(files(handle)["date"].to_pylist())
    # A segment all of whose rows retention took is wanted for nothing, and was swept from the spool.
    lost = (row for row in every if row["sha256"] not in copies)
    swept = {(row["sha256"], row["plan"]) for row in lost if is_all_retired(row, taken, there)}
    rows = [row for row in every if row["rows_stored"] > 0 and (row["sha256"], row["plan"]) not in swept]
    span = {first + timedelta(days=offset) for offset in range((last - first).days + 1)}
    wanted: list[tuple[dict[str, Any], frozenset[date]]] = []
    coming: set[date] = set()
    for row in rows:
        may = frozenset(day for day in span if row["plan"] > taken.get(day, 0))
        if mine := {day for day in may if _spans(row, day)}:
            wanted.append((row, may))
            coming |= mine
    live = live_files(handle, span)
    held = set(live["date"].to_pylist())
    _refuse_changed(tables, table, held | coming)
    # A date that retention took, and of which nothing came later, has no rows and gets none.
    kept = {day for day in span if day in taken and day not in coming and day not in held}
    gone = [row for row, _ in wanted if row["sha256"] not in copies]
    if gone:
        raise MissingSegmentsError(table, len(gone), {day for day in coming if any(_spans(row, day) for row in gone)})
    segments = [(_as_planned(row, copies[row["sha256"]], seen.get(_place(row), "")), days) for row, days in wanted]
    return Selection(tuple(sorted(held | coming)), tuple(sorted(kept)), live, segments)


def _earlier_slots(rows: Iterable[Mapping[str, Any]]) -> dict[tuple[Any, ...], str]:
    """Return by place (`_place`) which slots came before a segment, of those that are another cut of a slot file.

    Parameters
    ----------
    rows
        Sound segments of a table in the order of `_ORDER`, which is that in which ingest took them.
    """
    seen: dict[tuple[Any, ...], str] = {}
    before: dict[tuple[int, int], str] = {}
    for row in rows:
        slot_file = (row["incarnation"], row["segment"])
        if slot_file in before:
            seen[_place(row)] = before[slot_file]
            before[slot_file] = joined_slots((before[slot_file], row["slots"] or ""))
        else:
            before[slot_file] = row["slots"] or ""
    return seen


def _place(row: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(row[name] for name in _ORDER)


def _spans(row: Mapping[str, Any], day: date) -> bool:
    """Whether a segment can hold rows of a date; one whose times nobody can read may hold any."""
    low, high = row["ts_min"], row["ts_max"]
    return low is None or high is None or low.date() <= day <= high.date()


def _as_planned(row: Mapping[str, Any], paths: Sequence[str], seen: str) -> PlannedSegment:
    """Return a segment as plans of kind ``ingest`` name it."""
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
    """Raise `ReplayError` where a plan of a kind that cannot be followed changed the partitions."""
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
