"""What the demo tells at its end, as facts asked from the lake; `ranklake.views.demo` shows them."""

from dataclasses import dataclass
from typing import Any

from ranklake.allowed import allowed_places
from ranklake.artifacts import last_record, verify
from ranklake.demo.launch import TrainingResult
from ranklake.insight.runs import facts as runs
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import RunFacts
from ranklake.insight.runs.slowdown import Cause, slowdown_cause
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import TableBalance, balance
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake


@dataclass(frozen=True, slots=True)
class Facts:
    """What the lake knows of the demo's run, and what the trainer itself counted.

    Attributes
    ----------
    of_run
        What the lake knows.
    counted, missing
        By rank: how many steps the trainer journalled, and which of them the lake does not hold.
    verified
        By name, what hashing it again said.
    balances
        The balance of every table.
    checks
        What the pipeline's check said.
    cause
        What slowed the run, and who holds its critical path.
    """

    of_run: RunFacts
    counted: dict[int, int]
    missing: dict[int, list[int]]
    verified: dict[str, str]
    balances: list[TableBalance]
    checks: dict[str, Any]
    cause: Cause

    @property
    def lost(self) -> int:
        """Steps that the trainer journalled and the lake does not hold."""
        return sum(map(len, self.missing.values()))

    @property
    def repeated(self) -> int:
        """Rows of steps beyond one per rank and step."""
        return sum(row["n"] - row["distinct_steps"] for row in self.of_run.ranks.rows)

    @property
    def books_add_up(self) -> bool:
        """True if every recorded row is accounted for."""
        return all(item.adds_up for item in self.balances)


def gather(lake_uri: str, spool_uri: str, trained: TrainingResult, checks: dict[str, Any]) -> Facts:
    """Ask the lake what it knows of the run; artifacts are hashed once more."""
    lake = Lake.open(lake_uri)
    stored = query(lake, "SELECT DISTINCT rank, step FROM steps WHERE run = $run", {"run": trained.run}).to_pylist()
    have = {(row["rank"], row["step"]) for row in stored}
    ask = asking(lake)
    of_run = runs.gather(ask, trained.run)
    made = dict.fromkeys(row["name"] for row in reversed(of_run.artifacts.rows) if row["action"] == "created")
    own = allowed_places([str(trained.journal)], [])
    return Facts(
        of_run=of_run,
        counted={rank: len(steps) for rank, steps in sorted(trained.steps.items())},
        missing={rank: [step for step in steps if (rank, step) not in have] for rank, steps in trained.steps.items()},
        verified={name: verify(lake.store, last_record(lake, name, trained.run), own).status for name in made},
        balances=balance(lake, Spool(spool_uri).listing()),
        checks=checks,
        cause=slowdown_cause(lake, ask, trained.run),
    )
