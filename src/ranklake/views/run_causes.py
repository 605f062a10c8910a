"""Causes of a run's failure or slowness, and parts of its starts, as text."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, Final, NamedTuple

from ranklake.insight.diagnosis.critical_path import CriticalPath
from ranklake.insight.runs.asking import QueriedFacts, Row
from ranklake.insight.runs.facts import RunFacts, RunHead, place_text
from ranklake.insight.runs.slowdown import NO_SPANS, Cause
from ranklake.lake.contracts.json_text import facts_in
from ranklake.printable import counted
from ranklake.views.words import length_text, percent_text

ENDINGS: Final[Mapping[str, str]] = {
    "abandoned": "died without a word",
    "failure": "failed",
    "interruption": "was interrupted",
    "preemption": "was asked to end",
}
_NEXT: Final[Mapping[str, str]] = {
    "abandoned": "Its process was killed, ran out of memory, or lost its node: look at that node's log of then.",
    "failure": "Its traceback is in its log lines.",
    "interruption": "Somebody pressed Ctrl-C, or sent SIGINT.",
    "preemption": "Somebody, or the scheduler, sent the signal: look at the scheduler's record of the job.",
}
NOTHING_SAVED: Final = "no checkpoint recorded, so none of its work is known to be kept"
_BAD: Final = frozenset({"failed", "abandoned", "preempted", "interrupted"})


@dataclass(frozen=True, slots=True)
class FailureCause:
    """Cause of a run's last failed attempt, in a sentence, and the next step; empty if none failed."""

    summary: str
    next_step: str


def failure_cause(facts: RunHead) -> FailureCause:
    """Return the cause of the last attempt's failure, from the first failed rank."""
    last = max((row["attempt"] for row in facts.attempts.rows), default=None)
    rows = [row for row in facts.ends.rows if row["attempt"] == last]
    if not rows or facts.summary.first_row.get("status") == "finished":
        return FailureCause("", "")
    first = rows[0]
    who = f"Rank {first['rank']}"
    is_of_one_kind = len({row["event"] for row in rows}) == 1
    if first["ranks"] > 1 and is_of_one_kind:
        who = f"{counted(first['ranks'], 'rank')}, first rank {first['rank']},"
    did = ENDINGS[first["event"]]
    sentence = (
        f"{who} {did.replace('was', 'were', 1) if first['ranks'] > 1 and is_of_one_kind else did}{_end_text(first)}"
    )
    where = place_text(row for row in facts.nodes.rows if (row["attempt"], row["rank"]) == (last, first["rank"]))
    if where and not (first["ranks"] > 1 and is_of_one_kind):
        sentence += f", {where}"
    others = [row for row in rows if row["rank"] != first["rank"]]
    if others and not is_of_one_kind:
        sentence += f"; {_of_others(facts, others)}"
    injected = facts.summary.first_row.get("injected")
    return FailureCause(sentence, f"It was done on purpose: {injected}." if injected else _NEXT[first["event"]])


def saved_nothing(summary: Row) -> bool:
    """Whether a run failed without a checkpoint, so that its goodput was lost."""
    return summary.get("status") in _BAD and summary.get("checkpoints") == 0


def launcher_of(facts: RunHead, attempt: int) -> str:
    """Return the launcher of an attempt's ranks, which ends the others when one fails; empty if there is none."""
    launchers = [row["launcher"] for row in facts.code.rows if row["attempt"] == attempt and row["launcher"]]
    return "" if not launchers or launchers[0] == "none" else str(launchers[0])


def _of_others(facts: RunHead, rows: Sequence[Row]) -> str:
    count = counted(len({row["rank"] for row in rows}), "other rank")
    after = length_text(min(row["after_s"] for row in rows))
    launcher = launcher_of(facts, rows[0]["attempt"])
    first_of_each = {row["rank"]: row for row in reversed(rows)}.values()
    if launcher and all(row["ending"] == "stopped" for row in first_of_each):
        return f"the launcher ({launcher}) then ended {count}, {after} after it"
    return f"{count} ended {after} after it"


def _end_text(row: Row) -> str:
    attributes = facts_in(row["attributes"])
    step = "" if row["step"] is None else f" in step {row['step']:,}"
    if not step and row["last_step"] is not None:
        step = f" after step {row['last_step']:,}"
    if attributes.get("exception"):
        return f" with {attributes['exception']}{step}"
    return f" ({attributes['signal']}){step}" if attributes.get("signal") else step


def path_words(path: CriticalPath, slow: str = "") -> str:
    """Return the rank on the critical path of a run's steps, as text; empty if there is nothing to compare.

    If `slow`, such as ``rank 3``, slows the run, its share is shown. Among equal ranks the path is on the first one,
    whose share may exceed the slow one's.
    """
    if path.holder is None:
        return ""
    (part, share), (kind, of_kind) = path.holder, next(iter(path.by_kind.items()))
    part, share = next(((slow, of) for rank, of in path.by_rank.items() if slow == f"rank {rank}"), (part, share))
    held = f"{part} holds {percent_text(share)} of the steps' critical path"
    return f"{held}; by kind of operation {kind} {percent_text(of_kind)}"


def path_line(cause: Cause) -> str:
    """Return a line for the terminal; empty for a run of one rank, or without spans."""
    if cause.simulation is None:
        return f"path        unknown: {cause.reason}" if cause.reason != NO_SPANS else ""
    words = path_words(cause.simulation.critical_path, cause.part)
    return f"path        {words} (ranklake what-if {cause.simulation.run})" if words else ""


def path_facts(cause: Cause) -> Mapping[str, Any]:
    """Return shares of the critical path, or the reason why there are none, for programs."""
    if cause.simulation is None:
        return {"by_stage": None, "by_rank": None, "by_kind": None, "reason": cause.reason}
    path = cause.simulation.critical_path
    return {"by_stage": path.by_stage, "by_rank": path.by_rank, "by_kind": path.by_kind, "reason": ""}


_PHASES: Final = ("data", "forward", "backward", "optimizer")
"""Phases of every step without waits for other ranks."""
_LONGER: Final = 1.05


def why_slow(facts: RunFacts) -> str:
    """Return the straggler's slow phase, with its time and that of other ranks; empty if unknown."""
    slow = facts.summary.first_row.get("straggler_rank")
    mine = next((row for row in facts.ranks.rows if row["rank"] == slow), None)
    others = [row for row in facts.ranks.rows if row["rank"] != slow]
    if slow is None or mine is None or not others:
        return ""
    usual = {
        phase: median(known) for phase in _PHASES if (known := [row[phase] for row in others if row[phase] is not None])
    }
    longer = {phase: mine[phase] - usual[phase] for phase in usual if mine[phase] is not None}
    phase = max(longer, key=lambda phase: longer[phase], default="")
    if not phase or mine[phase] < _LONGER * usual[phase]:
        return ""
    others_words = "the other rank's" if len(others) == 1 else "the others'"
    return f"Rank {slow}'s {phase} takes {length_text(mine[phase])} a step, {others_words} {length_text(usual[phase])}"


_UNKNOWN_PARTS: Final = {"unexplained", "first_step", "downtime"}
_MOST_PARTS: Final = 8


class Start(NamedTuple):
    """All starts of one kind together.

    Attributes
    ----------
    kind
        ``init`` or ``restart``.
    whole_ns
        Their total duration, ns.
    parts
        Rows of ``starts.sql``, the longest first; the shortest of many are merged into one row.
    """

    kind: str
    whole_ns: int
    parts: list[Row]


def starts(answer: QueriedFacts) -> Iterator[Start]:
    """Yield the starts with known parts."""
    for kind in ("init", "restart"):
        rows = [row for row in answer.rows if row["kind"] == kind]
        if {row["part"] for row in rows} <= _UNKNOWN_PARTS:
            continue
        rest = rows[_MOST_PARTS:]
        if rest:
            part = f"{len(rest)} more"
            rows[_MOST_PARTS:] = [{**rest[0], "part": part, "duration_ns": sum(row["duration_ns"] for row in rest)}]
        yield Start(kind, sum(row["duration_ns"] for row in rows), rows)


def part_text(row: Row) -> str:
    """Return a part and its duration, such as ``first step 3.1 s``."""
    part = row["part"] if ":" in row["part"] else row["part"].replace("_", " ")
    return f"{part} {length_text(row['duration_ns'] / 1e9)}"
