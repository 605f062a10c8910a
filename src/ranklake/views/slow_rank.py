"""Why a rank holds the others up, in words: the phase that takes it longest beside the others."""

from statistics import median
from typing import Final

from ranklake.insight.runs.facts import RunFacts
from ranklake.views.words import time_text

_PHASES: Final = ("data", "forward", "backward", "optimizer")
"""Of every step, and not spent waiting for other ranks."""
_LONGER: Final = 1.05


def why_slow(facts: RunFacts) -> str:
    """Return which phase of the run's straggler takes how long, and that of the others; empty where nobody knows."""
    slow = facts.summary.one.get("straggler_rank")
    mine = next((row for row in facts.ranks.rows if row["rank"] == slow), None)
    others = [row for row in facts.ranks.rows if row["rank"] != slow]
    if slow is None or mine is None or not others:
        return ""
    usual = {
        phase: median(known) for phase in _PHASES if (known := [row[phase] for row in others if row[phase] is not None])
    }
    longer = {phase: mine[phase] - usual[phase] for phase in usual if mine[phase] is not None}
    phase = max(longer, key=lambda one: longer[one], default="")
    if not phase or mine[phase] < _LONGER * usual[phase]:
        return ""
    whose = "the other rank's" if len(others) == 1 else "the others'"
    return f"Rank {slow}'s {phase} takes {time_text(mine[phase])} a step, {whose} {time_text(usual[phase])}"
