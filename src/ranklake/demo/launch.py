"""Starts the demo's trainer on two ranks and keeps what it counted itself."""

import uuid
from dataclasses import dataclass
from pathlib import Path

from ranklake.torchrun import torchrun

WORLD_SIZE = 2


@dataclass(frozen=True, slots=True)
class Trained:
    """A training run that has ended.

    Attributes
    ----------
    run
        Its name.
    steps
        Per rank, the numbers of the steps that the trainer itself journalled as finished.
    journal
        Folder with the trainer's journals, log and checkpoint.
    """

    run: str
    steps: dict[int, list[int]]
    journal: Path


def launch(folder: Path, steps: int, slow_rank: int | None, kill_rank: int | None) -> Trained:
    """Train under torchrun until it ends; the trainer's output goes to a log.

    Raises `ranklake.torchrun.TrainingFailedError` if it fails without having been told to; the log and everything
    recorded stay.
    """
    run = f"demo-{uuid.uuid4().hex[:8]}"
    journal = folder / "trainer" / run
    journal.mkdir(parents=True)
    words = ["--run-name", run, "--spool", str(folder / "spool"), "--local-dir", str(folder / "local")]
    words += ["--journal", str(journal), "--steps", str(steps)]
    words += [] if slow_rank is None else ["--slow-rank", str(slow_rank)]
    words += [] if kill_rank is None else ["--kill-rank", str(kill_rank)]
    torchrun("ranklake.demo.train", words, WORLD_SIZE, journal / "train.log", may_fail=kill_rank is not None)
    counted = {rank: _journalled(journal / f"rank-{rank}.steps") for rank in range(WORLD_SIZE)}
    return Trained(run, counted, journal)


def _journalled(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
