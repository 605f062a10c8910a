"""Applications that had begun when a legal hold was set: what these take is not held.

The trail has one order, and what it has first counts (decision 012).
"""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.audit.trail import trail
from ranklake.lake.store.governance import RAW
from ranklake.retention.hold import ACTION, Hold
from ranklake.retention.proposals import purges
from ranklake.retention.proposals.erasures import ERASURES, Erasure
from ranklake.retention.proposals.erasures import Item as ErasureItem
from ranklake.retention.proposals.retention_plans import RETENTION_PLANS, RetentionPlan
from ranklake.retention.proposals.retention_plans import Item as RetentionItem
from ranklake.retention.proposals.retired import ARCHIVED_ROWS

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake

_ENDS: Final = {kind.begin: kind.applied for kind in (RETENTION_PLANS, ERASURES)} | {purges.BEGIN: ""}
"""Action of the trail's row that says that an application began, and of the one that says that it ended. Of the end of
a purge the register alone tells."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
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


def begun_before(lake: "Lake", hold: Hold) -> list[Begun]:
    """Return what had begun before a hold and may be about its rows, in the order of the trail.

    One that died before it wrote its plan is among them: whoever applies it again looks at holds again. Raises what
    reading the trail and the registers raises.
    """
    rows = trail(lake)
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
        Begun(proposal=name, row=row)
        for name, row in sorted(open_.items(), key=lambda one: one[1])
        if name in known and _may_take(lake, known[name], hold)
    ]


def _may_take(lake: "Lake", one: RetentionPlan | Erasure, hold: Hold) -> bool:
    """Say whether what a proposal takes may be held, and was not gone, or safe, before the hold was set."""
    purged = one.purged if isinstance(one, RetentionPlan) else None
    if one.void_because or (purged is not None and purged < hold.since):
        return False
    return any(_is_about(lake, hold, item) for item in one.items)


def _is_about(lake: "Lake", hold: Hold, item: RetentionItem | ErasureItem) -> bool:
    if item.table is None:  # of an erasure, what is no row
        return False
    known = lake.contracts().get(item.table.removeprefix(RAW).removeprefix(ARCHIVED_ROWS))
    is_of_day = item.partition_date is None or hold.covers(item.partition_date)
    return is_of_day and (known is None or hold.rule.may_match(known))
