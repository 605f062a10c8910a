"""Nodes: on which of a run's hosts its ranks are, by number, as pages that show no hosts tell it."""

from collections.abc import Collection, Iterable

from ranklake.insight.runs import statements
from ranklake.insight.runs.asking import Answered, Ask, Row

_MOST_NAMED = 8


def nodes(ask: Ask, runs: Collection[str], ranks: Collection[int] | None = None) -> Answered:
    """Return where ranks of some runs are, or some of their ranks: a row an attempt and rank; nothing of no rank."""
    if not runs or (ranks is not None and not ranks):
        return Answered("")
    return ask(statements.nodes(statements.among(tuple(sorted(runs))), ranks))


def placed(rows: Iterable[Row]) -> str:
    """Return where ranks of one attempt are, such as ``on node 3 of 0 to 15, local rank 1``; empty if nobody knows."""
    known = [row for row in rows if row["node"] is not None]
    if not known:
        return ""
    found = sorted({row["node"] for row in known})
    count = known[0]["node_count"]
    if count == 1:
        where = "on the run's only node"
    elif len(found) == 1:
        where = f"{'all ' * (len(known) > 1)}on node {found[0]} of 0 to {count - 1}"
    else:
        shown = ", ".join(map(str, found[:_MOST_NAMED])) + (", …" if len(found) > _MOST_NAMED else "")
        return f"on {len(found):,} of {count:,} nodes: {shown}"
    local = known[0]["local_rank"]
    return f"{where}, local rank {local}" if len(known) == 1 and local is not None else where
