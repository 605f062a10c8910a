"""What ended a run, in a sentence and a table: which rank first, how, and what to look at."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.runs.asking import Row
from ranklake.lake.runs.facts import RunFacts
from ranklake.views.html.figures import Column, FactTable, moment_text, sourced
from ranklake.views.words import counted
from ranklake.views.words import time_text as length_text

_DID: Final[Mapping[str, str]] = {
    "abandoned": "died without a word",
    "failure": "failed",
    "preemption": "was asked to end",
}
_NEXT: Final[Mapping[str, str]] = {
    "abandoned": "Its process was killed, ran out of memory, or lost its node: look at that node's log of then.",
    "failure": "Its traceback is in its log lines.",
    "preemption": "Somebody, or the scheduler, sent the signal: look at the scheduler's record of the job.",
}
_ENDS: Final = (
    Column("attempt", "Restart number, from 0.", "attempt"),
    Column("what", "How it ended; abandoned: its process died without a word.", "event"),
    Column("rank", "Global rank.", "rank", is_number=True),
    Column("when", "By its host's clock; of one that died, the last thing seen of it.", "ts", text=moment_text),
    Column("step", "Step that it was in, where it said so.", "step", is_number=True),
    Column("ranks alike", "Ranks of the attempt that ended in this way.", "ranks", "{rank}", is_number=True),
)  # fmt: skip
_STATES: Final = {"abandoned": "failing", "failure": "failing", "preemption": "warning"}


@dataclass(frozen=True, slots=True)
class Ended:
    """What ended a run's last bad attempt: in a sentence, and what to look at; empty where nothing did."""

    what: str
    next_step: str


def ended(facts: RunFacts) -> Ended:
    """Return what ended the last attempt, if that ended badly: the first rank of which that is told."""
    last = max((row["attempt"] for row in facts.attempts.rows), default=None)
    rows = [row for row in facts.ends.rows if row["attempt"] == last]
    if not rows or facts.summary.one.get("status") == "finished":
        return Ended("", "")
    first = rows[0]
    who, others = f"Rank {first['rank']}", {row["rank"] for row in rows} - {first["rank"]}
    alike = [row for row in rows if row["event"] == first["event"]]
    if first["ranks"] > 1 and len({row["event"] for row in rows}) == 1:
        who, others = f"{counted(first['ranks'], 'rank')}, first rank {first['rank']},", set()
    what = f"{who} {_DID[first['event']]}{_how(first)}"
    if others and len(alike) < len(rows):
        after = min((row["ts"] - first["ts"]).total_seconds() for row in rows if row["rank"] != first["rank"])
        what += f"; {counted(len(others), 'other rank')} ended {length_text(after)} after it"
    injected = facts.summary.one.get("injected")
    return Ended(what, f"It was done on purpose: {injected}." if injected else _NEXT[first["event"]])


def ends_table(facts: RunFacts) -> FactTable:
    """Return all that ended attempts badly."""
    found = facts.ends
    told = f"Unknown: {found.reason}." if found.reason else "Nothing did."
    return FactTable(
        "What ended attempts", sourced("ends", found), _ENDS, ["attempt", "rank", "event"], "ends", found.rows, {},
        _STATES, told,
    )  # fmt: skip


def _how(row: Row) -> str:
    said = facts_in(row["attributes"])
    step = "" if row["step"] is None else f" in step {row['step']:,}"
    if said.get("exception"):
        return f" with {said['exception']}{step}"
    return f" ({said['signal']}){step}" if said.get("signal") else step
