"""Releases of legal holds: proposed by one person, approved by others; from then on the hold holds no more.

    propose ─▶ approve, as often as its risk takes ─▶ row ``hold_release.applied``: the hold ended then

All of it are rows of the audit trail, as the hold is. No rows of tables change, so nothing is applied by a plan: what
the hold kept goes by the rules again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final, Unpack

from ranklake.lake.audit import trail as audit
from ranklake.retention.holds.hold import HoldError, all_holds
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.approvals import approval_status
from ranklake.retention.proposals.identities import NOT_SIGNING, Signing
from ranklake.retention.proposals.proposals import Proposal, ProposalKind, Risk, digest_of, recorded_actions

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

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
