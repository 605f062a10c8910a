"""Modes: whether approvals are signed, said in the trail whenever it changes, and never weakened in silence."""

from datetime import datetime
from typing import TYPE_CHECKING, Final

from ranklake.errors import RanklakeError
from ranklake.lake.audit import clock
from ranklake.lake.audit import trail as audit
from ranklake.lake.store.lake_config import MODES, SIGNED, UNSIGNED
from ranklake.lake.store.ssh_signatures import load_signers
from ranklake.retention.proposals.identities import About, Identity
from ranklake.retention.proposals.proposals import digest_of
from ranklake.retention.proposals.statements import DIGEST
from ranklake.retention.proposals.steps import MODE, SKEW, Actions, Step

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

SUBJECT: Final = "approvals"
_FACTS: Final = frozenset({"mode", "signers_sha256"})
LOWERED: Final = About(SUBJECT, SUBJECT, digest_of([UNSIGNED]))
"""What somebody signs who says that nobody checks names any more."""
UNSIGNED_NOTE: Final = "approvals are unsigned here: nobody checks names (docs/approvals.md)"
"""What every output of an unsigned lake says."""


class DowngradeError(RanklakeError):
    """Approvals of this lake were held to more than the configuration here asks for. Nothing was written."""

    def __init__(self, step: Step, now: str) -> None:
        keys = {"signed": "allowed_signers", "command": "identity"}
        was = mode_of(step)
        message = (
            f"approvals of this lake are {was} since row {step.seq} of the audit trail, and {now} is configured here"
        )
        hint = (
            f"configure {keys.get(was, 'it')} under [approvals] again, or say that nobody does so any more: "
            "ranklake approvals downgrade --by NAME --reason TEXT"
        )
        super().__init__(message, hint=hint)


class ClockError(RanklakeError):
    """A clock that is behind the trail's end: what expired would not look so. Nothing was written."""

    def __init__(self, now: datetime, end: datetime) -> None:
        message = (
            f"this machine's clock says {now:%Y-%m-%d %H:%M} UTC, and the audit trail ends at {end:%Y-%m-%d %H:%M}"
        )
        super().__init__(message, hint="set the clock; 'ranklake audit show' shows who wrote that row")


def last_mode(trail: Actions) -> Step | None:
    """Return the row that said the mode last; None where it never was other than unsigned."""
    return next(reversed(trail.get(SUBJECT, {}).get(MODE, [])), None)


def mode_of(step: Step | None) -> str:
    """Return the mode that a row says."""
    mode = UNSIGNED if step is None else step.details.get("mode")
    return mode if mode in MODES else SIGNED  # whoever writes nonsense gets the strictest


def refuse_downgrade(lake: "Lake", trail: Actions) -> None:
    """Raise `DowngradeError` where less is configured than the trail says was, `ClockError` where time went back."""
    now = clock.now()
    if lake.config.approvals.mode != UNSIGNED and trail.end is not None and now < trail.end - SKEW:
        raise ClockError(now, trail.end)
    mode, last = lake.config.approvals.mode, last_mode(trail)
    if last is not None and MODES.index(mode) < MODES.index(mode_of(last)):
        raise DowngradeError(last, mode)


def note_mode(lake: "Lake", trail: Actions, by: str) -> None:
    """Write into the trail which mode is on, where that, or the file of keys, is another than it says."""
    section, last = lake.config.approvals, last_mode(trail)
    facts = {"mode": section.mode}
    if section.mode == SIGNED:
        facts["signers_sha256"] = load_signers(section.allowed_signers).sha256
    known = {"mode": UNSIGNED} if last is None else {name: last.details[name] for name in _FACTS & last.details.keys()}
    if facts != known:
        audit.record(lake, by, MODE, SUBJECT, None, facts)


def downgrade(lake: "Lake", trail: Actions, who: Identity, reason: str) -> bool:
    """Say in the trail that nobody checks names from now on; False where nobody does."""
    if mode_of(last_mode(trail)) == UNSIGNED:
        return False
    details = {**who.details, "mode": UNSIGNED, "by_mode": who.mode, DIGEST: LOWERED.items_sha256}
    audit.record(lake, who.name, MODE, SUBJECT, reason, details)
    return True
