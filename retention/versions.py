"""What a bucket with versioning keeps of what retention took: because of a lock, or for want of rights."""

from collections import Counter
from typing import TYPE_CHECKING

from ranklake.lake.plans.action_plan import purged_places
from ranklake.lake.plans.plan import read_plan
from ranklake.lake.store.versions import (
    RIGHT_LACKS,
    UNKNOWN,
    keeps_versions,
    remove_dead,
    versions,
    why_kept,
)

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake
    from ranklake.retention.proposals.retention_plans import RetentionPlan


def delete_left(lake: "Lake", found: "RetentionPlan") -> list[str]:
    """Delete what can be deleted by now of what a bucket keeps of an applied plan; return `left_in_bucket`."""
    plan = read_plan(lake, found.plan) if found.plan is not None else None
    if plan is not None:
        remove_dead(lake.fs, purged_places(lake, plan))
    return left_in_bucket(lake, found)


def left_in_bucket(lake: "Lake", found: "RetentionPlan") -> list[str]:
    """Return how many versions the bucket keeps of what an applied plan took, in lines by reason; empty if none.

    Where that cannot be told, one line says so. Raises what the store raises.
    """
    plan = read_plan(lake, found.plan) if found.plan is not None else None
    keeps = keeps_versions(lake.fs, lake.root)
    if plan is None or keeps is False:
        return []
    if keeps is None:
        return [UNKNOWN] if hasattr(lake.fs, "call_s3") else []  # of other stores it never can
    why: Counter[str] = Counter()
    for place in purged_places(lake, plan):
        for one in versions(lake.fs, place):
            if not one.is_current and not one.is_marker:
                why[why_kept(lake.fs, one) or RIGHT_LACKS] += 1
    return [f"the bucket keeps {count:,} versions of what went: {reason}" for reason, count in sorted(why.items())]
