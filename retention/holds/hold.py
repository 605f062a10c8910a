"""Legal holds and their releases, as rows of the audit log.

One person proposes a release and others approve it. The hold ends with the last required approval:

    propose ─▶ approve, as often as the risk requires ─▶ row ``hold_release.applied``: the hold ends at its time

A hold and its release exist only as rows of the audit log. No plan is needed, since no rows of tables change.
Afterwards the rules apply again to the rows that were on hold.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Unpack

from ranklake.errors import RanklakeError
from ranklake.lake.audit import trail as audit
from ranklake.lake.audit.trail import trail
from ranklake.lake.store.governance import RAW
from ranklake.retention.policies.model import Place, Rule
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import approval_status
from ranklake.retention.proposals.erasures import ERASURES, Erasure
from ranklake.retention.proposals.erasures import Item as ErasureItem
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.kept import ARCHIVED_ROWS
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of, recorded_actions
from ranklake.retention.proposals.retention_plans import PURGE_BEGIN, RETENTION_PLANS, RetentionPlan
from ranklake.retention.proposals.retention_plans import Item as RetentionItem

if TYPE_CHECKING:
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables


ACTION: Final = "retention.hold"
DATE: Final = "date"
_TO: Final = ".."
TRAIL: Final = Path("audit")


class HoldError(RanklakeError):
    """A hold or its release is invalid. Nothing was changed."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold.

    Attributes
    ----------
    name
        Name with a digest of the selectors, the end and the reason.
    rule
        The selectors and the reason, as a rule without a period. Its owner is the person who set the hold.
    first, last
        First and last date of the rows; None without that bound.
    until
        First day on which the hold no longer applies.
    since
        Time at which it was set.
    """

    name: str
    rule: Rule
    first: date | None
    last: date | None
    until: date
    since: datetime

    def covers(self, day: date) -> bool:
        """Return whether the hold covers rows of a date."""
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values, without the person who set the hold."""
        return {
            "hold": self.name,
            "where": {key: list(texts) for key, texts in self.rule.where.items()},
            "first_date": None if self.first is None else self.first.isoformat(),
            "last_date": None if self.last is None else self.last.isoformat(),
            "until": self.until.isoformat(),
            "since": self.since.isoformat(),
            "reason": self.rule.reason,
        }


def all_holds(tables: "Tables") -> list[Hold]:
    """Return all holds that were ever set, the oldest first."""
    return [_hold(row) for row in trail(tables) if row["action"] == ACTION]


def _hold(row: Mapping[str, Any]) -> Hold:
    details = json.loads(row["details"])
    where = {key: tuple(texts) for key, texts in details["where"].items()}
    first, last = span(where.pop(DATE, ()))
    rule = Rule(row["subject"], where, row["actor"], row["reason"] or "", "a legal hold", Place(TRAIL, row["seq"]))
    return Hold(row["subject"], rule, first, last, date.fromisoformat(details["until"]), row["ts"])


def span(texts: Sequence[str]) -> tuple[date | None, date | None]:
    """Return the bounds of a range ``FROM..TO``, one of which may be missing, or of a single date."""
    if not texts:
        return None, None
    if len(texts) > 1:
        raise HoldError("more than one range of dates", where="--where", hint="set a hold for each")
    first, to, last = texts[0].partition(_TO)
    try:
        low, high = (date.fromisoformat(text) if text else None for text in (first, last if to else first))
    except ValueError:
        hint = "write date=2026-03-01..2026-03-31, or one date"
        raise HoldError(f"{texts[0]!r} is no range of dates", where="--where", hint=hint) from None
    if low is not None and high is not None and low > high:
        raise HoldError(f"{low} is after {high}", where="--where", hint="name the first date first")
    return low, high


_ENDS: Final = {kind.begin: kind.applied for kind in (RETENTION_PLANS, ERASURES)} | {PURGE_BEGIN: ""}
"""Action of the audit row that ends an application, by the action that begins it. A purge has no such row: only the
register records its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunApplication:
    """An application or a purge that had begun, and not ended, when a hold was set.

    Attributes
    ----------
    proposal
        Name of the proposal; for a purge, the name of the retention plan.
    row
        Number of the audit row of the begin.
    """

    proposal: str
    row: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"proposal": self.proposal, "row": self.row}


def begun_before(lake: "Lake", hold: Hold) -> list[BegunApplication]:
    """Return the applications that began before a hold and may remove rows that it covers, in the order of the log.

    This includes applications that crashed before they wrote a plan. These check holds again when they are repeated.
    Raises the errors of reading the audit log and the registers.
    """
    rows = trail(lake.tables)
    number = next(row["seq"] for row in rows if (row["action"], row["subject"]) == (ACTION, hold.name))
    earlier = {(row["action"], row["subject"]): row["seq"] for row in rows if row["seq"] < number}
    unfinished = {
        subject: row
        for (action, subject), row in earlier.items()
        if action in _ENDS and (_ENDS[action], subject) not in earlier
    }
    proposals: dict[str, RetentionPlan | Erasure] = {}
    if unfinished:
        proposals = {**RETENTION_PLANS.register(lake), **ERASURES.register(lake)}
    return [
        BegunApplication(proposal=name, row=row)
        for name, row in sorted(unfinished.items(), key=lambda entry: entry[1])
        if name in proposals and _may_remove_held(lake.catalog, proposals[name], hold)
    ]


def _may_remove_held(catalog: "Catalog", proposal: RetentionPlan | Erasure, hold: Hold) -> bool:
    """Return whether a proposal may remove rows that a hold covers: it is not void, and was not purged before."""
    purged = proposal.purged if isinstance(proposal, RetentionPlan) else None
    if proposal.void_because or (purged is not None and purged < hold.since):
        return False
    return any(_is_about(catalog, hold, item) for item in proposal.items)


def _is_about(catalog: "Catalog", hold: Hold, item: RetentionItem | ErasureItem) -> bool:
    if item.table is None:  # an item of an erasure without a table
        return False
    contract = catalog.contracts().get(item.table.removeprefix(RAW).removeprefix(ARCHIVED_ROWS))
    covers_date = item.partition_date is None or hold.covers(item.partition_date)
    return covers_date and (contract is None or hold.rule.may_match(contract))


PREFIX: Final = "release-of-"


@dataclass(frozen=True, slots=True)
class HoldRelease(Proposal):
    """A proposal to release a hold. Each hold has at most one."""

    hold: str

    @property
    def items_sha256(self) -> str:
        """Digest of the hold's name, which contains a digest of the hold."""
        return digest_of([self.hold])

    @property
    def intact(self) -> bool:
        """Whether the name matches the hold."""
        return self.name == f"{PREFIX}{self.hold}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """Details of its audit rows for approval and begin."""
        return {"hold": self.hold}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """Details of the audit row that ends the hold."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """Unknown size, and irreversible: the rules may delete the rows afterwards."""
        return Risk()

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: self.times[name] for name in ("proposed", "approved")}
        return {"release": self.name, "hold": self.hold, "state": self.state, **times}


def register(lake: "Lake") -> dict[str, HoldRelease]:
    """Return the releases of all holds by name. A release is approved when its hold has ended."""
    times = release_times(lake)
    releases = [
        HoldRelease(f"{PREFIX}{hold.name}", hold.name, approved=times.get(hold.name)) for hold in all_holds(lake.tables)
    ]
    return {release.name: release for release in releases}


def release_times(lake: "Lake") -> dict[str, datetime]:
    """Return the times at which holds were released, by name of the hold.

    A release row counts only if enough people had approved by then, checked with the keys or names of today. So a row
    that somebody adds to the audit log without approvals releases nothing.
    """
    trail = recorded_actions(lake.tables, HOLD_RELEASES)
    dates: dict[str, datetime] = {}
    for name, rows in trail.items():
        release = HoldRelease(name, name.removeprefix(PREFIX))
        for step in rows.get(HOLD_RELEASES.applied, []):
            if release.intact and not approval_status(lake, HOLD_RELEASES, release, trail, step.ts).lacking:
                dates.setdefault(release.hold, step.ts)
    return dates


def propose(lake: "Lake", hold: str, by: str, signing: Signing = NOT_SIGNING) -> HoldRelease:
    """Propose to release a hold. The proposer may not approve the release. Raises `UnknownProposalError`."""
    lifecycle.propose(lake, HOLD_RELEASES, f"{PREFIX}{hold}", by, signing)
    return HOLD_RELEASES.find(lake, f"{PREFIX}{hold}")


def approve(
    lake: "Lake",
    hold: str,
    by: str,
    reason: str | None = None,
    **options: Unpack[lifecycle.ApprovalOptions],
) -> tuple[HoldRelease, bool]:
    """Approve the release of a hold. The last required approval ends the hold. See `lifecycle.approve`.

    Raises `HoldError` if nobody proposed the release.
    """
    name = f"{PREFIX}{hold}"
    release = HOLD_RELEASES.find(lake, name)
    if release.approved is None and not recorded_actions(lake.tables, HOLD_RELEASES).get(name, {}).get(
        HOLD_RELEASES.propose
    ):
        raise HoldError(
            "nobody proposed to release it", where=hold, hint=f"ranklake retain release plan {hold} --by NAME"
        )
    return lifecycle.approve(lake, HOLD_RELEASES, name, by, reason, **options)


def _take_effect(lake: "Lake", release: HoldRelease, by: str) -> bool:
    return audit.record(lake, by, HOLD_RELEASES.applied, release.name, None, dict(release.facts), once=True) is not None


HOLD_RELEASES: Final = ProposalKind(
    noun="release of a hold",
    action="hold_release",
    command="ranklake retain release",
    register=register,
    add_approval=_take_effect,
)
"""Releases of holds as proposals, for `ranklake.retention.proposals.lifecycle`."""
