"""The truth of an experiment: the planned size of each step's work, and its ranks' own measurements."""

import json
import uuid
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from ranklake.torchrun import torchrun

RANKS: Final = 2
SLOW_RANK: Final = 0
SILENT_RANK: Final = 1


@dataclass(frozen=True, slots=True)
class Step:
    """One step of one rank, by that rank's own clock.

    Attributes
    ----------
    began_ns
        When it began, in ns since 1970.
    step_ns, data_ns, forward_ns
        Durations of the step, its waits for data, and its forward pass.
    """

    rank: int
    step: int
    began_ns: int
    step_ns: int
    data_ns: int
    forward_ns: int


@dataclass(frozen=True, slots=True)
class Truth:
    """Measurements of an experiment by its own ranks.

    Attributes
    ----------
    steps
        All steps that were recorded.
    missing
        Number of steps that a rank ran without recording them.
    reduced_bytes, written_bytes, flops
        Bytes that all ranks reduced and wrote, FLOPs of one counted step of each rank.
    slow_rank
        The rank that was slowed down.
    """

    run: str
    steps: tuple[Step, ...]
    missing: int
    reduced_bytes: int
    written_bytes: int
    flops: float
    slow_rank: int = SLOW_RANK

    @property
    def tokens(self) -> int:
        """Tokens of all steps recorded."""
        return len(self.steps) * TOKENS

    @property
    def samples(self) -> int:
        """Samples of all steps recorded."""
        return len(self.steps) * SAMPLES

    @property
    def squares(self) -> int:
        """Sum of the logged scalar, the square of the step's number."""
        return sum(step.step**2 for step in self.steps)


def experiment(folder: Path, steps: int) -> Truth:
    """Run the experiment with `RANKS` ranks, `steps` steps each, and return its truth.

    Leaves its record below `folder`: sealed segments in ``spool``, unsent files in ``local``. Raises
    `ranklake.torchrun.TrainingFailedError`; the log and all records are kept.
    """
    run = f"calibration-{uuid.uuid4().hex[:8]}"
    journal = folder / "calibration" / run
    journal.mkdir(parents=True)
    silent = range(steps // 2, steps // 2 + max(1, steps // 6))
    words = ["--run-name", run, "--spool", str(folder / "spool"), "--local-dir", str(folder / "local")]
    words += ["--journal", str(journal), "--steps", str(steps), "--slow-rank", str(SLOW_RANK)]
    words += ["--silent-rank", str(SILENT_RANK), "--silent-from", str(silent.start), "--silent-to", str(silent.stop)]
    torchrun("ranklake.calibration.experiment", words, RANKS, journal / "ranks.log")
    journals: list[dict[str, Any]] = [json.loads((journal / f"truth-{rank}.json").read_text()) for rank in range(RANKS)]
    return Truth(
        run,
        tuple(Step(facts["rank"], *row) for facts in journals for row in facts["steps"]),
        missing=len(silent),
        reduced_bytes=sum(facts["reduced"] for facts in journals),
        written_bytes=sum(facts["written"] for facts in journals),
        flops=journals[0]["flops"],
    )


SIDE: Final = 128
PRODUCTS: Final = 4
FLOPS: Final = PRODUCTS * 2 * SIDE**3
"""A product of two square matrices has side^3 multiplications and as many additions."""
REDUCED_BYTES: Final = 1 << 18
WRITTEN_BYTES: Final = 1 << 16
TOKENS: Final = 2048
SAMPLES: Final = 4
DATA_S: Final = 0.002
FORWARD_S: Final = 0.008
SLOW_S: Final = 0.012
"""Least delay of the slow rank's forward pass."""
_NOISE_RATIO: Final = 1.5
_MOST_SLOW_S: Final = 0.5
_STEPS: Final = 20


class Noise:
    """Recent delays of a rank's own work by other processes on the machine."""

    def __init__(self) -> None:
        self._delays_s: deque[float] = deque(maxlen=_STEPS)

    def add(self, planned_s: float, took_s: Iterable[float]) -> None:
        """Record the duration of a step's own work, without waits for other ranks."""
        self._delays_s.append(max(sum(took_s) - planned_s, 0.0))

    @property
    def slow_s(self) -> float:
        """Delay of the slow rank's next forward pass, larger than the noise of either rank.

        On a machine where noise delays every other step by tens of milliseconds, 12 ms more do not make a rank slow.
        """
        return min(max(SLOW_S, _NOISE_RATIO * max(self._delays_s, default=0.0)), _MOST_SLOW_S)
