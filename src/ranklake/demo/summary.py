"""What the demo says at its end: facts asked from the lake, then lines of text. Asking and drawing do not mix."""

import shutil
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ranklake.demo.launch import Trained
from ranklake.demo.plot import text_plot
from ranklake.demo.sources import Sources, ask, lines_of
from ranklake.lake.query.sql import query
from ranklake.lake.spool.spool import Spool
from ranklake.lake.status.reconciliation import TableBalance, balance
from ranklake.lake.storage.store import Lake
from ranklake.views.table import numbers, table_lines

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


def render(facts: Facts, trained: Trained, lake_uri: str) -> list[str]:
    """Return the summary as lines."""
    head = f"run {trained.run}  {facts.summary.get('status', 'unknown')}"
    if facts.summary.get("injected"):
        head += f"  [injected on purpose: {facts.summary['injected']}]"
    lines = ["", head, "", *_rank_table(facts.ranks), ""]
    lines += ["loss (nats a token, mean of the ranks)", *text_plot(facts.loss), ""]
    lines += [_mfu(facts.summary), _goodput(facts.summary), *_stragglers(facts), *lines_of(facts.sources), ""]
    lines += [*_books(facts), _checks(facts.checks), ""]
    lines += ["try next", *(f'  {program()} sql --lake {lake_uri} "{sql}"' for sql in _questions(trained.run))]
    return lines


def _rank_table(rows: Sequence[dict[str, Any]]) -> list[str]:
    phases = [phase for phase in PHASES if any(row[phase] is not None for row in rows)]
    counts = ("rank", "  trainer counted", "  rows in steps", "  mean ms a step")
    cells = [
        (
            str(row["rank"]),
            f"{row['counted']:,}",
            f"{row['n']:,}",
            _ms(row["step"]),
            *(_ms(row[phase]) for phase in phases),
            _percent(row["phases_ratio"]),
        )
        for row in rows
    ]
    return table_lines([*numbers(counts), *numbers([*phases, "in phases"], 12)], cells, gap="")


def _percent(ratio: float | None) -> str:
    return "-" if ratio is None else f"{100 * ratio:.1f} %"


def _ms(seconds: float | None) -> str:
    return "-" if seconds is None else f"{1000 * seconds:.2f}"


def _mfu(summary: dict[str, Any]) -> str:
    if summary.get("mfu_ratio") is None:
        return f"MFU         unknown: {summary.get('mfu_reason') or 'no summary of the run'}"
    return (
        f"MFU         {100 * summary['mfu_ratio']:.1f} % of a {summary['peak_dtype']} peak "
        f"({summary['peak_source']}); FLOPs {summary['flops_convention']}"
    )


def _goodput(summary: dict[str, Any]) -> str:
    if summary.get("goodput_ratio") is None:
        return "goodput     unknown: no productive step"
    return f"goodput     {100 * summary['goodput_ratio']:.1f} % of {summary['wall_ns'] / 1e9:.1f} s wall time"


def _stragglers(facts: Facts) -> list[str]:
    named = [row for row in facts.health if row["is_straggler"]]
    if not named:
        reasons = "; ".join(f"rank {row['rank']} {row['reason']}" for row in facts.health)
        return [f"stragglers  none ({reasons or 'no steps'})"]
    return [f"straggler   rank {row['rank']}: {row['reason'].removeprefix('straggler: ')}" for row in named]


def _books(facts: Facts) -> list[str]:
    total = {
        name: sum(getattr(item, name) for item in facts.balances)
        for name in ("recorded", "stored", "quarantined", "sampled_out", "gaps", "in_flight")
    }
    verdict = "the books add up" if facts.books_add_up else "THE BOOKS DO NOT ADD UP"
    fates = " + ".join(f"{total[name]:,} {name.replace('_', ' ')}" for name in total if name != "recorded")
    lines = [f"rows        {total['recorded']:,} recorded = {fates}: {verdict}"]
    lines += [f"            {item.table}: {fault}" for item in facts.balances for fault in item.faults]
    lines.append(f"            steps the trainer finished: {facts.lost} lost, {facts.repeated} twice")
    return lines


def _checks(checks: dict[str, Any]) -> str:
    outcomes = ", ".join(f"{count:,} {status}" for status, count in checks["checks"].items()) or "nothing new to check"
    return f"checks      {outcomes}; {checks['quarantined_rows']:,} rows quarantined"


def program() -> str:
    """Return what to type for ``ranklake`` here: the bare name if the shell finds it, else where it is."""
    here = Path(sys.executable).with_name("ranklake")
    found = shutil.which("ranklake")
    if found and Path(found).resolve() == here.resolve():
        return "ranklake"
    return str(here.relative_to(Path.cwd())) if here.is_relative_to(Path.cwd()) else str(here)


def _questions(run: str) -> list[str]:
    return [
        "SELECT rank, count(*) n, avg(step_time_s) FROM steps GROUP BY rank",
        f"SELECT step, max_step_time_s, slowest_rank FROM step_rollup WHERE run = '{run}' ORDER BY 2 DESC LIMIT 5",  # noqa: S608
        "SELECT run, status, steps, mfu_ratio, goodput_ratio, straggler_rank FROM run_summary",
        f"SELECT rank, step, severity_text, message FROM logs WHERE run = '{run}' ORDER BY ts",  # noqa: S608
    ]
