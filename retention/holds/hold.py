"""A legal hold and its release, as rows of the audit log.

Releases of legal holds: proposed by one person, approved by others; from then on the hold holds no more.

    propose ─▶ approve, as often as its risk takes ─▶ row ``hold_release.applied``: the hold ended then

All of it are rows of the audit trail, as the hold is. No rows of tables change, so nothing is applied by a plan: what
the hold kept goes by the rules again.
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
    """A hold that would protect nothing, or that says nothing; none was set."""


@dataclass(frozen=True, slots=True)
class Hold:
    """A legal hold.

    Attributes
    ----------
    name
        Its identity, a digest of what it says.
    rule
        What it is about, and why; its owner is who set it.
    first, last
        Dates of the rows that it is about; None if it has no such bound.
    until
        First day on which it does not hold any more.
    since
        When it was set.
    """

    name: str
    rule: Rule
    first: date | None
    last: date | None
    until: date
    since: datetime

    def covers(self, day: date) -> bool:
        """Return whether it is about rows of a date."""
        return (self.first is None or self.first <= day) and (self.last is None or day <= self.last)

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values; who set it is in the audit log alone."""
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
    """Return every hold that was ever set, the oldest first."""
    return [_hold(row) for row in trail(tables) if row["action"] == ACTION]


def _hold(row: Mapping[str, Any]) -> Hold:
    details = json.loads(row["details"])
    where = {key: tuple(texts) for key, texts in details["where"].items()}
    first, last = span(where.pop(DATE, ()))
    rule = Rule(row["subject"], where, row["actor"], row["reason"] or "", "a legal hold", Place(TRAIL, row["seq"]))
    return Hold(row["subject"], rule, first, last, date.fromisoformat(details["until"]), row["ts"])


def span(texts: Sequence[str]) -> tuple[date | None, date | None]:
    """Return the bounds of ``FROM..TO``, of which one may be left out, or of one date."""
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
"""Action of the trail's row that says that an application began, and of the one that says that it ended. Of the end of
a purge the register alone tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BegunApplication:
    """An application, or a purge of kept files, that began before a hold was set, and had not ended by then.

    Attributes
    ----------
    proposal
        Name of what is applied; of a purge, the retention plan whose files go.
    row
        Row of the audit trail that says that it began.
    """

    proposal: str
    row: int

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"proposal": self.proposal, "row": self.row}


def begun_before(lake: "Lake", hold: Hold) -> list[BegunApplication]:
    """Return what had begun before a hold and may be about its rows, in the order of the trail.

    One that died before it wrote its plan is among them: whoever applies it again looks at holds again. Raises what
    reading the trail and the registers raises.
    """
    rows = trail(lake.tables)
    number = next(row["seq"] for row in rows if (row["action"], row["subject"]) == (ACTION, hold.name))
    earlier = {(row["action"], row["subject"]): row["seq"] for row in rows if row["seq"] < number}
    open_ = {
        subject: row
        for (action, subject), row in earlier.items()
        if action in _ENDS and (_ENDS[action], subject) not in earlier
    }
    known: dict[str, RetentionPlan | Erasure] = {}
    if open_:
        known = {**RETENTION_PLANS.register(lake), **ERASURES.register(lake)}
    return [
        BegunApplication(proposal=name, row=row)
        for name, row in sorted(open_.items(), key=lambda entry: entry[1])
        if name in known and _may_take(lake.catalog, known[name], hold)
    ]


def _may_take(catalog: "Catalog", proposal: RetentionPlan | Erasure, hold: Hold) -> bool:
    """Return whether what a proposal takes may be held, and was not gone, or safe, before the hold was set."""
    purged = proposal.purged if isinstance(proposal, RetentionPlan) else None
    if proposal.void_because or (purged is not None and purged < hold.since):
        return False
    return any(_is_about(catalog, hold, item) for item in proposal.items)


def _is_about(catalog: "Catalog", hold: Hold, item: RetentionItem | ErasureItem) -> bool:
    if item.table is None:  # of an erasure, what is no row
        return False
    known = catalog.contracts().get(item.table.removeprefix(RAW).removeprefix(ARCHIVED_ROWS))
    is_of_day = item.partition_date is None or hold.covers(item.partition_date)
    return is_of_day and (known is None or hold.rule.may_match(known))


PREFIX: Final = "release-of-"


@dataclass(frozen=True, slots=True)
class HoldRelease(Proposal):
    """The release of a hold; there is one for each."""

    hold: str

    @property
    def items_sha256(self) -> str:
        """Digest of the hold's name, which is a digest of what it says."""
        return digest_of([self.hold])

    @property
    def intact(self) -> bool:
        """Whether its name is that of its hold."""
        return self.name == f"{PREFIX}{self.hold}"

    @property
    def facts(self) -> Mapping[str, Any]:
        """What the trail says of it."""
        return {"hold": self.hold}

    @property
    def outcome(self) -> Mapping[str, Any]:
        """What the trail says when it holds no more."""
        return self.facts

    @property
    def risk(self) -> Risk:
        """What it puts at stake: what was held goes by the rules, for good."""
        return Risk()

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        times = {name: self.times[name] for name in ("proposed", "approved")}
        return {"release": self.name, "hold": self.hold, "state": self.state, **times}


def register(lake: "Lake") -> dict[str, HoldRelease]:
    """Return the releases of all holds by name; one is approved when it took effect."""
    gone = release_times(lake)
    releases = [
        HoldRelease(f"{PREFIX}{hold.name}", hold.name, approved=gone.get(hold.name)) for hold in all_holds(lake.tables)
    ]
    return {one.name: one for one in releases}


def release_times(lake: "Lake") -> dict[str, datetime]:
    """Return when holds were released, by name.

    A row that says so counts where enough people had approved then, by the keys or names of today: whoever writes a row
    into the trail releases nothing.
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
    """Propose to release a hold; whoever does may not approve it. Raises `UnknownProposalError`."""
    lifecycle.propose(lake, HOLD_RELEASES, f"{PREFIX}{hold}", by, signing)
    return HOLD_RELEASES.find(lake, f"{PREFIX}{hold}")


def approve(
    lake: "Lake",
    hold: str,
    by: str,
    reason: str | None = None,
    **options: Unpack[lifecycle.ApprovalOptions],
) -> tuple[HoldRelease, bool]:
    """Approve the release of a hold; once enough people did, it holds no more. See `lifecycle.approve`.

    Raises `HoldError` where nobody proposed it.
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
"""Releases of holds as proposals: `ranklake.retention.proposals.lifecycle` has them approved."""
