"""Rehydrations: archived rows that come back for some days, proposed by one person and approved by another.

    plan ─▶ row ``rehydration.plan`` of the trail: which archives, until when ─▶ approve, as often as its risk takes
        ─▶ rows copied back (`ranklake.retention.archive.rehydrate`)

Where every archive may come back freely, nobody has to approve it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.read import read
from ranklake.retention.archive.register import Archive, archives
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import approval_status
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, Step, digest_of, recorded_actions

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

MOST_DAYS: Final = 366
_PLANNED: Final = "rehydration.plan"


class RehydrationError(RanklakeError):
    """A rehydration that cannot be proposed, or carried out. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Rehydration(Proposal):
    """A proposal to bring archives back until a day."""

    archives: tuple[str, ...]
    until: date
    reason: str | None = None

    @property
    def items_sha256(self) -> str:
        """Digest of which archives come back, and until when."""
        return digest_of([*self.archives, self.until.isoformat()])

    @property
    def intact(self) -> bool:
        """Whether its name is that of its archives and its day."""
        return self.name == name_of(self.archives, self.until)

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it."""
        return {"archives": list(self.archives), "until": self.until.isoformat()}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when rows are back."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: rows that were out of sight are seen again for some days; nothing goes."""
        return Risk(irreversible=False)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        moments = {"proposed": self.proposed, "approved": self.approved}
        times = {name: None if when is None else when.isoformat() for name, when in moments.items()}
        return {"rehydration": self.name, "state": self.state, **self.facts, **times}


def name_of(names: Iterable[str], until: date) -> str:
    """Return the name of the rehydration of some archives until a day."""
    return f"rh-{digest_of([*names, until.isoformat()])[:16]}"


def register(lake: "Lake") -> dict[str, Rehydration]:
    """Return every rehydration by name, oldest first, from the trail."""
    rows = read(lake.tables, contract(audit.TABLE), ["seq", "ts", "actor", "action", "subject", "reason", "details"])
    rehydrations: dict[str, Rehydration] = {}
    planned = (
        [Step.of(row) for row in rows.sort_by("seq").to_pylist() if row["action"] == _PLANNED] if rows.num_rows else []
    )
    for step in planned:
        try:
            names = tuple(map(str, step.details["archives"]))
            until = date.fromisoformat(str(step.details["until"]))
        except (KeyError, TypeError, ValueError):
            continue
        ends = datetime(until.year, until.month, until.day, tzinfo=UTC)
        rehydrations[step.subject] = Rehydration(
            step.subject, names, until, step.reason, proposed=step.ts, expires=ends
        )
    return {name: replace(one, approved=_approval_time(lake, one)) for name, one in rehydrations.items()}


def _approval_time(lake: "Lake", rehydration: Rehydration) -> datetime | None:
    """Return when enough people had approved it; None if they have not."""
    trail = recorded_actions(lake.tables, _KIND)
    steps = trail.get(rehydration.name, {}).get(_KIND.applied, [])
    enough = [
        step.ts
        for step in steps
        if rehydration.intact and not approval_status(lake, _KIND, rehydration, trail, step.ts).lacking
    ]
    return enough[0] if enough else None


def select_archives(tables: "Tables", table: str, first: date, last: date) -> list[Archive]:
    """Return the archives of a table in a range of dates. Raises `RehydrationError` where there are none."""
    every = archives(tables)
    selected = [one for one in every if one.table == table and first <= one.partition_date <= last]
    if not selected:
        known = sorted({one.table for one in every})
        hint = did_you_mean(table, known) if table not in known else "see 'ranklake retain archives list'"
        raise RehydrationError(
            f"nothing of {table} is archived from {first} to {last}", hint=hint or "nothing is archived"
        )
    return selected


def write_down(
    lake: "Lake",
    chosen_archives: Iterable[Archive],
    until: date,
    by: str,
    reason: str | None = None,
    today: date | None = None,
) -> Rehydration:
    """Write into the trail which archives would come back until a day; equal ones are one proposal.

    Raises `RehydrationError`. Its authors are those who propose it.
    """
    day = today or datetime.now(UTC).date()
    if not day < until <= day + timedelta(days=MOST_DAYS):
        hint = f"name a day to come, at most {MOST_DAYS} days from now"
        raise RehydrationError(f"rows cannot come back until {until}", where="--until", hint=hint)
    names = tuple(sorted(one.archive for one in chosen_archives))
    made = Rehydration(name_of(names, until), names, until)
    audit.record(lake, by, _PLANNED, made.name, reason, dict(made.facts), once=True)
    return REHYDRATIONS.find(lake, made.name)


def propose(lake: "Lake", rehydration: Rehydration, by: str, signing: Signing = NOT_SIGNING) -> None:
    """Write into the trail who proposed a rehydration, and so may not approve it."""
    lifecycle.propose(lake, REHYDRATIONS, rehydration.name, by, signing)


def _take_effect(lake: "Lake", rehydration: Rehydration, by: str) -> bool:
    return audit.record(lake, by, _KIND.applied, rehydration.name, None, dict(rehydration.facts), once=True) is not None


REHYDRATIONS: Final = ProposalKind(
    noun="rehydration",
    action="rehydration",
    command="ranklake retain rehydrate",
    register=register,
    add_approval=_take_effect,
)
"""Rehydrations as proposals: `ranklake.retention.proposals.lifecycle` has them approved."""
_KIND: Final = REHYDRATIONS
approve = lifecycle.approving(REHYDRATIONS)
"""Approves one; see `ranklake.retention.proposals.lifecycle.approve`."""
