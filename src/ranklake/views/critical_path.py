"""Who holds the critical path of a run's steps, in words."""

from collections.abc import Mapping
from typing import Any

from ranklake.insight.diagnosis.critical_path import CriticalPath
from ranklake.insight.runs.slowdown import NO_SPANS, Cause
from ranklake.views.words import percent_text


def path_words(path: CriticalPath, slow: str = "") -> str:
    """Return in words who holds the critical path of a run's steps; empty where there is nothing to compare.

    `slow` is the rank that slows the run, such as ``rank 3``: then its share is told. Where all are alike the path is
    on the first of them, and of thousands that may be more than the slow one's.
    """
    if path.holder is None:
        return ""
    (part, share), (kind, of_kind) = path.holder, next(iter(path.by_kind.items()))
    part, share = next(((slow, of) for rank, of in path.by_rank.items() if slow == f"rank {rank}"), (part, share))
    held = f"{part} holds {percent_text(share)} of the steps' critical path"
    return f"{held}; by kind of operation {kind} {percent_text(of_kind)}"


def path_line(cause: Cause) -> str:
    """Return a line for the prompt; empty for a run of one rank, or of no spans at all, of which there is none."""
    if cause.found is None:
        return f"path        unknown: {cause.reason}" if cause.reason != NO_SPANS else ""
    told = path_words(cause.found.critical_path, cause.what)
    return f"path        {told} (ranklake what-if {cause.found.run})" if told else ""


def path_facts(cause: Cause) -> Mapping[str, Any]:
    """Return shares of the critical path, or the reason why there are none, for programs."""
    if cause.found is None:
        return {"by_stage": None, "by_rank": None, "by_kind": None, "reason": cause.reason}
    path = cause.found.critical_path
    return {"by_stage": path.by_stage, "by_rank": path.by_rank, "by_kind": path.by_kind, "reason": ""}
