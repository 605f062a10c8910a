"""The synthetic job: the part of a training run that all ranks share. A pure function of a seed.

    attempt 0    starts, trains, and dies when one rank fails
    attempt 1    starts again from the last checkpoint; one rank's GPU is throttled, and all others wait for it

Each random value has its own generator, seeded with its name and its node. So a node's rows do not depend on the
process that makes them, nor on the order.
"""

import hashlib
import uuid
from dataclasses import astuple, dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property
from typing import Final

import numpy as np

from ranklake.capture.common.arrays import Array
from ranklake.capture.common.settings import CaptureSettings

RANKS_PER_NODE: Final = 8
DEVICE_NAME: Final = "NVIDIA H100 80GB HBM3"
DEFAULT_START: Final = datetime(2026, 3, 2, 8, tzinfo=UTC)
"""A fixed date, so that the same options always give the same bytes."""

_INIT_S, _DOWN_S = 20.0, 45.0
_MOST_OF: Final = 0.05  # upper limit of either, as a share of the job
_FEWEST_STEPS: Final = 20  # a shorter job has no restart
_FIRST_STEP: Final = 6.0  # time of the first step with its compilation, in steps
_STALLS: Final = 0.004  # share of steps that wait for input


@dataclass(frozen=True, slots=True)
class Attempt:
    """One attempt of the run. Times are seconds since the job's start; arrays have one value per step.

    Attributes
    ----------
    begin_s, end_s
        When its processes started and ended.
    steps
        Step numbers.
    start_s, step_s
        Start and length of each step.
    checkpoint_s, stall_s
        Parts of the step spent saving a checkpoint and waiting for input; mostly 0.
    failed
        True if it died.
    """

    number: int
    begin_s: float
    end_s: float
    steps: Array
    start_s: Array
    step_s: Array
    checkpoint_s: Array
    stall_s: Array
    failed: bool

    def steps_between(self, begin_s: float, end_s: float) -> slice:
        """Return the steps that end within an interval."""
        ends = self.start_s + self.step_s
        first, last = np.searchsorted(ends, [begin_s, end_s], side="left")
        return slice(int(first), int(last))


@dataclass(frozen=True)
class Job:
    """Options of the synthetic job.

    Attributes
    ----------
    gpus
        Number of ranks; each has a GPU, and a node has eight.
    seconds
        Duration of the job.
    seed
        Seed of all numbers, which also determines the run's name.
    step_s
        Mean duration of a step.
    start
        Start of the job.
    metrics
        Number of scalars that each rank logs per step.
    seal_s
        Time that each process records before it seals; 0 is the default for this number of ranks.
    """

    gpus: int
    seconds: float
    seed: int = 0
    step_s: float = 1.0
    start: datetime = DEFAULT_START
    metrics: int = 20
    seal_s: float = 0.0

    @cached_property
    def digest(self) -> str:
        """Digest of the options, eight hex digits."""
        return hashlib.sha256(repr(astuple(self)).encode()).hexdigest()[:8]

    @property
    def run(self) -> str:
        """Name of the run."""
        return f"synthetic-{self.gpus}gpu-{self.digest}"

    @property
    def nodes(self) -> int:
        """Number of nodes; the last may have fewer than eight ranks."""
        return -(-self.gpus // RANKS_PER_NODE)

    @property
    def windows(self) -> int:
        """Number of windows; each rank seals at the end of each window."""
        return max(1, int(np.ceil(self.seconds / self.window_s)))

    @property
    def window_s(self) -> float:
        """Time between two sealings of a rank."""
        return self.seal_s or CaptureSettings().seal_slots_every_s(self.gpus)

    def ranks(self, node: int) -> range:
        """Return the ranks of a node."""
        return range(node * RANKS_PER_NODE, min((node + 1) * RANKS_PER_NODE, self.gpus))

    def date(self, after_s: float) -> str:
        """Return the UTC date at a time after the start."""
        return (self.start + timedelta(seconds=after_s)).date().isoformat()

    def random_for(self, quantity: str, *owner: int) -> np.random.Generator:
        """Return the random generator for a quantity of a rank, node or window."""
        key = hashlib.sha256(f"{self.digest} {quantity} {owner}".encode()).digest()[:16]
        return np.random.default_rng(int.from_bytes(key))

    def number(self, quantity: str, *owner: int) -> int:
        """Return a positive 62-bit number derived from a name."""
        return int(self.random_for(quantity, *owner).integers(1, 1 << 62))

    def identity(self, quantity: str, *owner: int) -> str:
        """Return a UUID derived from a name."""
        return str(uuid.UUID(bytes=self.random_for(quantity, *owner).bytes(16)))

    @cached_property
    def straggler(self) -> int:
        """The rank with the throttled GPU in the last attempt."""
        return int(self.random_for("straggler").integers(self.gpus))

    @cached_property
    def failing(self) -> int:
        """The rank that fails."""
        return int(self.random_for("failing").integers(self.gpus))

    @cached_property
    def attempts(self) -> tuple[Attempt, ...]:
        """The run's attempts, in order."""
        uninterrupted = self._attempt(0, 0.0, self.seconds, 0)
        if len(uninterrupted.steps) < _FEWEST_STEPS:
            return (uninterrupted,)
        crash = self.seconds * float(self.random_for("crash").uniform(0.35, 0.5))
        first = self._attempt(0, 0.0, crash, 0, failed=True)
        restart_s = crash + min(_DOWN_S, _MOST_OF * self.seconds)
        saved = np.flatnonzero(first.checkpoint_s)
        first_step = int(first.steps[saved[-1]]) + 1 if len(saved) else 0
        return first, self._attempt(1, restart_s, self.seconds, first_step)

    def _attempt(self, number: int, begin_s: float, end_s: float, first: int, *, failed: bool = False) -> Attempt:
        draws = self.random_for("steps", number)
        most = int((end_s - begin_s) / self.step_s * 1.25) + 16
        steps = first + np.arange(most)
        every = max(10, round(self.seconds / self.step_s / 12))
        checkpoint = np.where((steps + 1) % every == 0, 0.8 * self.step_s * draws.lognormal(0, 0.2, most), 0.0)
        stall = np.where(draws.random(most) < _STALLS, self.step_s * draws.uniform(0.3, 1.5, most), 0.0)
        taken = self.step_s * draws.lognormal(-0.01, 0.012, most)
        taken[0] *= _FIRST_STEP
        whole = taken + checkpoint + stall
        start = begin_s + min(_INIT_S, _MOST_OF * self.seconds) + np.concatenate([[0.0], np.cumsum(whole)[:-1]])
        fits = start + whole < end_s
        return Attempt(
            number, begin_s, end_s, steps[fits], start[fits], whole[fits], checkpoint[fits], stall[fits], failed
        )

    def is_training(self, at_s: Array) -> Array:
        """Whether the ranks train, for each of some times in seconds since the start."""
        training = np.zeros(len(at_s), bool)
        for attempt in self.attempts:
            if len(attempt.steps):
                training |= (at_s >= attempt.start_s[0]) & (at_s < attempt.start_s[-1] + attempt.step_s[-1])
        return training
