"""Purges what applied retention plans kept, when their grace is over: each by a numbered plan of its own.

First clock and uptime must say that it is over, and no legal hold may be about any of it. Then comes a row of the audit
trail, then the plan: files deleted, the register's row.
"""

from dataclasses import dataclass
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.plans.action_plan import ENDED, QUARANTINED
from ranklake.lake.plans.driver import drive
from ranklake.lake.plans.workers import InProcess
from ranklake.lake.store.governance import RAW
from ranklake.lake.tables.table_schema import as_read
from ranklake.lake.tables.tables import latest
from ranklake.retention.archive.rehydrated import rehydrated, remove_expired
from ranklake.retention.archive.sweeping import forget_ended, sweep_archives
from ranklake.retention.grace.cancel import rows_of
from ranklake.retention.holds import holds_of
from ranklake.retention.parts import Parts, RunFacts, Values, run_facts
from ranklake.retention.proposals import purges
from ranklake.retention.proposals.kept import Kept, kept
from ranklake.retention.proposals.restorations import MEND, restored
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS
from ranklake.retention.proposals.retired import ARCHIVED_ROWS
from ranklake.retention.rules.order import Level
from ranklake.retention.versions import left_in_bucket

if TYPE_CHECKING:
    from ranklake.lake.plans.plan import Plan
    from ranklake.lake.store.store import Lake
    from ranklake.retention.hold import Hold


@dataclass(frozen=True, slots=True, kw_only=True)
class Purged:
    """What a call did about kept files.

    Attributes
    ----------
    plans
        Retention plans whose files went.
    waiting
        Those whose files stay for now, each with the reason.
    left
        What a bucket keeps of the former all the same, in lines.
    """

    plans: tuple[str, ...] = ()
    waiting: tuple[tuple[str, str], ...] = ()
    left: tuple[str, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        waiting = [{"plan": name, "why": why} for name, why in self.waiting]
        return {"plans": list(self.plans), "waiting": waiting, "versions_left": list(self.left)}


def purge_due(lake: "Lake", by: str, *, dry_run: bool = False) -> Purged:
    """Delete what was kept, and whose grace is over; killed on the way, the next call goes on.

    Where a legal hold is about any of a plan's rows, all that it took stays as it is, and can be cancelled; it stays,
    too, where another program restored a table that has some of it again. Raises what the stores raise.
    """
    gone: list[str] = []
    waiting: list[tuple[str, str]] = []
    for one in kept(lake):
        name = one.proposal.name
        if why := _why_not(lake, one):
            waiting.append((name, why))
            continue
        if not dry_run:
            drive(lake, lambda number, name=name: _plan(lake, name, by, number), InProcess())  # type: ignore[misc]
        gone.append(name)
    if dry_run or not gone:
        return Purged(plans=tuple(gone), waiting=tuple(waiting))
    sweep_archives(lake)
    left = [line for name in gone for line in left_in_bucket(lake, RETENTION_PLANS.find(lake, name))]
    return Purged(plans=tuple(gone), waiting=tuple(waiting), left=tuple(left))


def _plan(lake: "Lake", name: str, by: str, number: int) -> "Plan | None":
    seen = audit.length(lake)
    one = next((one for one in kept(lake) if one.proposal.name == name), None)
    if one is None or _why_not(lake, one):  # it was cancelled, or purged, or is held by now
        return None
    facts = {"rows": one.proposal.rows, "files": len(one.files), "kept_until": one.until.isoformat()}
    if audit.record(lake, by, purges.BEGIN, name, None, facts, once=True) != seen and _held(lake, one):
        return None  # by a hold that was set since, and so before this purge
    return purges.compose(lake, one, by, number)


def _why_not(lake: "Lake", one: Kept) -> str:
    """Return why what a plan took stays for now; empty if it goes."""
    return one.why_not_over() or _held(lake, one) or _restored(lake, one)


def _restored(lake: "Lake", one: Kept) -> str:
    """Return which tables have files of it again, which they would lack; empty if none has."""
    again = [f"{table} has {rows:,} rows of it again" for table, rows in restored(lake, one).items()]
    return f"{' and '.join(again)}: another program restored the table; {MEND}" if again else ""


def _held(lake: "Lake", one: Kept) -> str:
    """Return which legal hold keeps what a plan took; empty if none does."""
    holds = holds_of(lake, clock.now().date())
    facts = run_facts(lake, [hold.rule for hold in holds])
    for hold in holds:
        rows = _held_rows(lake, one, hold, facts)
        if rows:
            return f"the legal hold {hold.name} is about {rows:,} rows or files of it until {hold.until}"
    return ""


def _held_rows(lake: "Lake", one: Kept, hold: "Hold", facts: RunFacts) -> int:
    count = 0
    raw = one.plan.body["facts"].get(QUARANTINED, {})
    for name, days in raw.items():
        known = lake.contracts().get(name.removeprefix(RAW))
        if known is None or hold.rule.may_match(known):
            count += sum(map(len, days.values()))
    for name, days in one.plan.body["facts"].get(ENDED, {}).items():
        known = lake.contracts().get(name.removeprefix(ARCHIVED_ROWS))
        for day, archives in days.items():
            if known is None or (hold.covers(date.fromisoformat(day)) and hold.rule.may_match(known)):
                count += len(archives)  # whose rows they have nobody looks up
    for file in one.files:
        known = lake.contracts().get(file.table)
        if known is None or not hold.covers(file.day) or not hold.rule.may_match(known):
            continue
        parts = Parts(lake, known, (), (hold.rule,), facts)
        if not parts.columns:
            count += file.rows if parts.of_table().level is Level.HOLD else 0
            continue
        rows = rows_of(lake, as_read(latest(lake, file.table), known), file)
        count += int(pc.sum(parts.mask(rows, partial(_is_held, parts))).as_py() or 0)
    return count


def _is_held(parts: Parts, values: Values) -> bool:
    return parts.of(values).level is Level.HOLD


def expired_names(lake: "Lake", *, dry_run: bool = False) -> list[str]:
    """Delete rehydrated rows whose day, or archive, is over, and return the names of what they came back by."""
    today = clock.now().date()
    ended = forget_ended(lake, dry_run=dry_run)
    if not dry_run:
        return sorted([*ended, *remove_expired(lake, today)])
    return sorted({*ended, *(one.name for one in rehydrated(lake) if one.until <= today)})
