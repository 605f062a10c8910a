"""Why a run was slower than necessary: by how much, because of which part, and the remedy."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from ranklake.insight.diagnosis.run_spans import read_spans, trace_of
from ranklake.insight.diagnosis.simulate import WhatIfError
from ranklake.insight.diagnosis.spans import COLUMNS
from ranklake.insight.diagnosis.what_if import Slowdowns, slowdowns, what_if
from ranklake.insight.runs.asking import Ask
from ranklake.lake.query.errors import QueryError
from ranklake.lake.query.literal import literal

if TYPE_CHECKING:
    from ranklake.lake.query.roles import Role
    from ranklake.lake.store.lake import Lake

MOST_SPANS: Final = 1_000_000
"""Most spans of a run that is simulated for its page; use ``ranklake what-if`` for more."""
NO_SPANS: Final = "no spans of its steps were recorded"
SLOW: Final = 1.02
"""Slowdowns below this are ignored."""
MANY: Final = "many parts, none of which stands out"
MAJOR: Final = 0.5
"""A part with this share of the loss is its cause: the paper's threshold for M_S and M_W."""
_MOST_NAMED: Final = 8


@dataclass(frozen=True, slots=True)
class Cause:
    """Why a run was slower than necessary.

    Attributes
    ----------
    simulation
        The simulation; None with a `reason`.
    part
        The cause in words, such as ``the last stage``; empty if the run was not slowed.
    share
        Share of the loss that disappears if only this part is ideal; None if it was chosen by its slowdown.
    next_step
        The remedy.
    """

    simulation: Slowdowns | None
    reason: str = ""
    part: str = ""
    share: float | None = None
    next_step: str = ""


def slowdown_cause(lake: "Lake", ask: Ask, run: str, role: "Role | None" = None, most: int = MOST_SPANS) -> Cause:
    """Return why a run was slowed, by simulating its last attempt that has spans, as a role sees them.

    `ask` queries as the same role; more than `most` spans are not simulated. Raises what queries raise.
    """
    names = ", ".join(COLUMNS)
    counted = ask(f"SELECT count(*) AS n FROM (SELECT {names} FROM spans WHERE run = {literal(run)}) AS of_run")  # noqa: S608 - quoted
    if counted.reason:
        return Cause(None, counted.reason)
    count = counted.first_row["n"]
    if not count:
        return Cause(None, NO_SPANS)
    if count > most:
        return Cause(None, f"{count:,} spans are too many to simulate here; run 'ranklake what-if {run}'")
    try:
        chosen, rows, notes = read_spans(lake, run, role=role)
        slow = slowdowns(run, chosen, what_if(trace_of(rows, notes)))
    except WhatIfError as error:
        return Cause(None, error.what)
    except QueryError as error:
        if role is None:
            raise
        return Cause(None, f"role {role.name} does not see it ({error.what})")
    return _cause(slow)


def _cause(analysis: Slowdowns) -> Cause:
    """Return the cause, by the paper's shares first, else by the slowdown of single parts."""
    stages = len(analysis.by_stage)
    if analysis.s < SLOW:
        return Cause(analysis)
    if analysis.m_s is not None and analysis.m_s >= MAJOR:
        part = f"the last stage (stage {stages - 1} of 0 to {stages - 1})"
        step = "Give it fewer layers: the loss is computed there, too. Its timeline:"
        return Cause(analysis, "", part, analysis.m_s, f"{step} ranklake what-if {analysis.run} --timeline FILE")
    if analysis.m_w is not None and analysis.m_w >= MAJOR:
        slow = _slow_ones(analysis)
        shown = ", ".join(map(str, slow[:_MOST_NAMED])) + (f", … ({len(slow):,})" if len(slow) > _MOST_NAMED else "")
        part = f"rank{'s' * (len(slow) > 1)} {shown}"
        return Cause(
            analysis, "", part, analysis.m_w, "Look at the host and device there: clocks, throttling, neighbours."
        )
    parts: list[tuple[float, str, str]] = []
    if stages > 1:
        stage, s = _slowest_part(analysis.by_stage)
        parts.append((s, f"stage {stage} of 0 to {stages - 1}", "Move layers away from it."))
    if len(analysis.by_dp_rank) > 1:
        rank, s = _slowest_part(analysis.by_dp_rank)
        parts.append((s, f"data-parallel rank {rank}", "Look at its hosts, and at the length of its sequences."))
    kind, s = next(iter(analysis.by_kind.items()))
    parts.append((s, f"{kind} operations on all ranks", "Their times differ from each other: look for uneven work."))
    worst, part, step = max(parts, key=lambda part: part[0])
    if worst - 1 >= MAJOR * (analysis.s - 1):
        return Cause(analysis, "", part, None, step)
    return Cause(analysis, "", MANY, None, "Compare stages, ranks and kinds below.")


def _slow_ones(slow: Slowdowns) -> Sequence[int]:
    """Return the worst ranks that are nearly as slow as the worst one.

    Among 4,096 ranks 123 count as worst, though perhaps only one is slow.
    """
    by_rank = {one.rank: one.s - 1 for one in slow.by_worker}
    worst = max((by_rank.get(rank, 0.0) for rank in slow.worst_ranks), default=0.0)
    return [rank for rank in slow.worst_ranks if by_rank.get(rank, worst) >= MAJOR * worst]


def _slowest_part(parts: Mapping[int, float]) -> tuple[int, float]:
    """Return the slowest part and its slowdown; 1.0 (none) if another part is about as slow."""
    (slowest, s), (_, second) = list(parts.items())[:2]
    return slowest, s if second - 1 < MAJOR * (s - 1) else 1.0
