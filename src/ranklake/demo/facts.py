"""What the demo tells at its end, as facts asked from the lake; `ranklake.views.demo` shows them."""

from dataclasses import dataclass
from typing import Any

from ranklake.demo.launch import Trained
from ranklake.demo.sources import Sources, ask
from ranklake.lake.query.sql import query
from ranklake.lake.spool.spool import Spool
from ranklake.lake.status.reconciliation import TableBalance, balance
from ranklake.lake.storage.store import Lake

PHASES = ("data", "forward", "backward", "collective", "optimizer", "checkpoint")
PHASES_RATIO = """
    SELECT step.rank, sum(parts.duration_ns) / sum(CAST(step.duration_ns AS DOUBLE)) AS phases_ratio
    FROM (SELECT * FROM spans WHERE run = $run AND kind = 'step') AS step
    JOIN (
        SELECT incarnation, parent_id, sum(CAST(duration_ns AS DOUBLE)) AS duration_ns
        FROM spans WHERE run = $run AND kind <> 'step' AND stream IS NULL GROUP BY incarnation, parent_id
    ) AS parts ON parts.incarnation = step.incarnation AND parts.parent_id = step.span_id
    GROUP BY step.rank
"""
"""Phases within phases, and what ran beside the step's thread, are in the phases around or on streams of their own."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the lake knows of the demo's run.

    Attributes
    ----------
    run
        Its name.
    ranks
        Per rank: rank, n, distinct steps, missing (journalled by the trainer, not in the lake), phase means in seconds,
        and what share of the steps' spans the phases' spans directly in them are.
    loss
        Mean loss over the ranks, by step.
    summary
        The run's row of ``run_summary``, or empty.
    health
        The run's rows of ``rank_health``.
    balances
        The books of every table.
    checks
        What the pipeline's check said.
    sources
        What was recorded beside the steps.
    """

    run: str
    ranks: list[dict[str, Any]]
    loss: list[float]
    summary: dict[str, Any]
    health: list[dict[str, Any]]
    balances: list[TableBalance]
    checks: dict[str, Any]
    sources: Sources

    @property
    def lost(self) -> int:
        """Steps that the trainer journalled and the lake does not hold."""
        return sum(len(row["missing"]) for row in self.ranks)

    @property
    def repeated(self) -> int:
        """Rows of steps beyond one per rank and step."""
        return sum(row["n"] - row["distinct_steps"] for row in self.ranks)

    @property
    def books_add_up(self) -> bool:
        """True if every recorded row is accounted for."""
        return all(item.adds_up for item in self.balances)


def gather(lake_uri: str, spool_uri: str, trained: Trained, checks: dict[str, Any]) -> Facts:
    """Ask the lake what it knows of the run."""
    lake = Lake.open(lake_uri)
    run = {"run": trained.run}
    phases = ", ".join(f"avg({phase}_time_s) AS {phase}" for phase in PHASES)
    counts = "count(*) AS n, count(DISTINCT step) AS distinct_steps, avg(step_time_s) AS step"
    per_rank = f"SELECT rank, {counts}, {phases} FROM steps WHERE run = $run GROUP BY rank ORDER BY rank"  # noqa: S608
    ranks = _rows(lake, per_rank, run)
    stored = _rows(lake, "SELECT DISTINCT rank, step FROM steps WHERE run = $run", run)
    have = {(row["rank"], row["step"]) for row in stored}
    shares = {row["rank"]: row["phases_ratio"] for row in _rows(lake, PHASES_RATIO, run)}
    known = {row["rank"]: {**row, "phases_ratio": shares.get(row["rank"])} for row in ranks}
    table = []
    for rank, steps in sorted(trained.steps.items()):
        row = known.get(rank, {"rank": rank, "n": 0, "distinct_steps": 0, "step": None, **dict.fromkeys(PHASES)})
        row.setdefault("phases_ratio", None)
        table.append({**row, "counted": len(steps), "missing": [step for step in steps if (rank, step) not in have]})
    losses = _rows(lake, "SELECT avg(loss) AS loss FROM steps WHERE run = $run GROUP BY step ORDER BY step", run)
    summaries = _rows(lake, "SELECT * FROM run_summary WHERE run = $run", run)
    return Facts(
        run=trained.run,
        ranks=table,
        loss=[row["loss"] for row in losses if row["loss"] is not None],
        summary=summaries[0] if summaries else {},
        health=_rows(lake, "SELECT * FROM rank_health WHERE run = $run ORDER BY rank", run),
        balances=balance(lake, Spool(spool_uri).listing()),
        checks=checks,
        sources=ask(lake, trained),
    )


def _rows(lake: Lake, sql: str, params: dict[str, Any]) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = query(lake, sql, params).to_pylist()
    return rows
