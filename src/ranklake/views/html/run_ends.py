"""What ended a run's attempts, as a table: the first rank on top, and which ranks ended because of it."""

from collections.abc import Mapping
from typing import Final

from ranklake.insight.runs.facts import RunFacts
from ranklake.views.endings import DID, launcher_of
from ranklake.views.html.figures import Column, FactTable, moment_text, sourced
from ranklake.views.words import time_text as length_text

_STATES: Final[Mapping[str, str]] = {
    "abandoned": "failing", "failure": "failing", "interruption": "warning", "preemption": "warning",
    "stopped": "skipped",
}  # fmt: skip


def ends_table(facts: RunFacts) -> FactTable:
    """Return all that ended attempts badly."""
    found = facts.ends
    told = f"Unknown: {found.reason}." if found.reason else "Nothing did."
    launcher = launcher_of(facts, found.rows[-1]["attempt"]) if found.rows else ""
    words = {**DID, "stopped": f"ended by the launcher ({launcher})" if launcher else DID["preemption"]}
    columns = (
        Column("rank", "Global rank.", "rank"),
        Column("what", "How it ended. What a launcher ends after another rank is a consequence.", "ending",
               text=lambda ending: words.get(ending, ending)),
        Column("after rank", "The rank whose death or failure came first, where it was at most 60 s before.", "follows",
               is_number=True),
        Column("after the first", "How long after the attempt's first bad end.", "after_s", "s", is_number=True,
               text=length_text),
        Column("in step", "Step that it was in and did not end, where it said so; steps are numbered from 0.", "step",
               is_number=True),
        Column("last step", "The last that the rank recorded, in whatever way it ended.", "last_step", is_number=True),
        Column("when", "By its host's clock; of one that died, the last thing seen of it.", "ts", text=moment_text),
        Column("ranks alike", "Ranks of the attempt with the same event.", "ranks", "{rank}", is_number=True),
        Column("attempt", "Restart number, from 0.", "attempt", is_number=True),
    )  # fmt: skip
    return FactTable(
        "What ended attempts", sourced("ends", found), columns, ["attempt", "rank", "ending"], "ends", found.rows, {},
        _STATES, told,
    )  # fmt: skip
