"""The demo's training on two ranks, and its result as facts from the lake; `ranklake.commands.demo` shows them."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Any, Final

from ranklake.allowed import allowed_places
from ranklake.artifacts import last_record, verify
from ranklake.insight.runs import facts as runs
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import RunFacts
from ranklake.insight.runs.slowdown import Cause, slowdown_cause
from ranklake.lake.ingest.spool.spool import Spool
from ranklake.lake.ingest.status.reconciliation import TableBalance, balance
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.torchrun import torchrun

WORLD_SIZE = 2
_EVERY_S: Final = 0.5


@dataclass(frozen=True, slots=True)
class TrainingResult:
    """A training run that has ended.

    Attributes
    ----------
    run
        Its name.
    steps
        Numbers of the steps that the trainer journalled as finished, by rank.
    journal
        Folder with the trainer's journals, log and checkpoint.
    """

    run: str
    steps: dict[int, list[int]]
    journal: Path


def launch(
    folder: Path,
    steps: int,
    slow_rank: int | None,
    kill_rank: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> TrainingResult:
    """Train under torchrun until it ends. The trainer's output goes to a log; `progress` gets its steps.

    Raises `ranklake.torchrun.TrainingFailedError` if training fails unexpectedly. The log and all records are kept.
    """
    run = f"demo-{uuid.uuid4().hex[:8]}"
    journal = folder / "trainer" / run
    journal.mkdir(parents=True)
    words = ["--run-name", run, "--spool", str(folder / "spool"), "--local-dir", str(folder / "local")]
    words += ["--journal", str(journal), "--steps", str(steps)]
    words += [] if slow_rank is None else ["--slow-rank", str(slow_rank)]
    words += [] if kill_rank is None else ["--kill-rank", str(kill_rank)]
    journals = {rank: journal / f"rank-{rank}.steps" for rank in range(WORLD_SIZE)}
    with _show_progress(journals.values(), steps, progress):
        torchrun("ranklake.demo.train", words, WORLD_SIZE, journal / "train.log", may_fail=kill_rank is not None)
    counted = {rank: _journalled_steps(path) for rank, path in journals.items()}
    return TrainingResult(run, counted, journal)


def _journalled_steps(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().split("\n")[:-1]] if path.exists() else []


@contextmanager
def _show_progress(journals: Iterable[Path], steps: int, progress: Callable[[int, int], None] | None) -> Iterator[None]:
    """Report the step of the slowest rank twice a second while a block runs."""
    if progress is None:
        yield
        return
    paths, ended = list(journals), Event()

    def watch() -> None:
        while not ended.wait(_EVERY_S):
            progress(min(len(_journalled_steps(path)) for path in paths), steps)

    watcher = Thread(target=watch, name="ranklake-demo-progress", daemon=True)
    watcher.start()
    try:
        yield
    finally:
        ended.set()
        watcher.join()


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts of the demo's run in the lake, and the trainer's own counts.

    Attributes
    ----------
    of_run
        Facts in the lake.
    counted, missing
        By rank: number of steps that the trainer journalled, and those that the lake lacks.
    verified
        Result of verifying each artifact, by name.
    balances
        The balance of every table.
    checks
        Result of the pipeline's check.
    cause
        Cause of the run's slowness, and the rank on its critical path.
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
        """Steps that the trainer journalled and the lake lacks."""
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
    """Read the run's facts from the lake, and verify its artifacts again."""
    lake = Lake.open(lake_uri)
    stored = query(lake, "SELECT DISTINCT rank, step FROM steps WHERE run = $run", {"run": trained.run}).to_pylist()
    stored_steps = {(row["rank"], row["step"]) for row in stored}
    ask = asking(lake)
    of_run = runs.gather(ask, trained.run)
    result = dict.fromkeys(row["name"] for row in reversed(of_run.artifacts.rows) if row["action"] == "created")
    own = allowed_places([str(trained.journal)], [])
    return Facts(
        of_run=of_run,
        counted={rank: len(steps) for rank, steps in sorted(trained.steps.items())},
        missing={
            rank: [step for step in steps if (rank, step) not in stored_steps] for rank, steps in trained.steps.items()
        },
        verified={name: verify(lake.store, last_record(lake, name, trained.run), own).status for name in result},
        balances=balance(lake, Spool(spool_uri).listing()),
        checks=checks,
        cause=slowdown_cause(lake, ask, trained.run),
    )
