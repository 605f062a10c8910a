"""Starts the demo's trainer on two ranks and keeps what it counted itself."""

import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Event, Thread
from typing import Final

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
        Per rank, the numbers of the steps that the trainer itself journalled as finished.
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
    """Train under torchrun until it ends; the trainer's output goes to a log, and `progress` hears of its steps.

    Raises `ranklake.torchrun.TrainingFailedError` if it fails and should not; the log and everything
    recorded stay.
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
    """Tell twice a second how far the slowest rank is, while a block runs."""
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
