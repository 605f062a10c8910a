"""Starts the demo's trainer on two ranks and keeps what it counted itself."""

import os
import re
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path

from ranklake.errors import RanklakeError

WORLD_SIZE = 2


class TrainingFailedError(RanklakeError):
    """The trainer ended otherwise than it was told to."""

    exit_code = 1


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

    Raises `TrainingFailedError` if it fails without having been told to; the log and everything recorded stay.
    """
    run = f"demo-{uuid.uuid4().hex[:8]}"
    journal = folder / "trainer" / run
    journal.mkdir(parents=True)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={WORLD_SIZE}"]
    command += ["--module", "ranklake.demo.train", "--run-name", run, "--spool", str(folder / "spool")]
    command += ["--local-dir", str(folder / "local"), "--journal", str(journal), "--steps", str(steps)]
    command += [] if slow_rank is None else ["--slow-rank", str(slow_rank)]
    command += [] if kill_rank is None else ["--kill-rank", str(kill_rank)]
    log = journal / "train.log"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"}
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.STDOUT, env=environment)
        try:
            ended = process.wait()
        except BaseException:
            process.terminate()  # torchrun passes it on to the ranks
            process.wait()
            raise
    if ended != 0 and kill_rank is None:
        said = re.search(r"\w+(?:Error|Exception): .*", log.read_text(errors="replace"))
        what = f"the demo's training failed: {said[0].strip()}" if said else "the demo's training failed"
        raise TrainingFailedError(what, where=str(log), mend="read the log")
    counted = {rank: _journalled(journal / f"rank-{rank}.steps") for rank in range(WORLD_SIZE)}
    return Trained(run, counted, journal)


def _journalled(path: Path) -> list[int]:
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []
