"""Rules that somebody should have looked at: told with plans, and once for each date in the audit trail."""

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Final

from ranklake.lake.audit.trail import Entry, record_all

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.rules.model import Rule
    from ranklake.retention.rules.policies import Policies

ACTION: Final = "retention.review_overdue"


def record_overdue(lake: "Lake", policies: "Policies", by: str) -> "tuple[Rule, ...]":
    """Return the rules whose review date has passed; the trail gets a row for each, once for each date."""
    overdue = policies.overdue(datetime.now(UTC).date())
    if overdue:
        entries = [
            Entry(by, ACTION, f"{rule.name} {rule.review}", None, {"policy_sha256": policies.sha256}, once=True)
            for rule in overdue
        ]
        record_all(lake, entries)
    return overdue


def overdue_line(rule: "Rule") -> str:
    """Return what to tell of a rule, in one line."""
    return f"{rule.at}: the review of rule {rule.name} was due on {rule.review} ({rule.owner})"
