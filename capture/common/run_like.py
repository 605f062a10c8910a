"""Run-like: the protocol that a run's parts use. None of them imports `ranklake.capture.training.run`."""

from typing import Protocol


class RunLike(Protocol):
    """Run, attempt and rank of this process, which may change while it records, and a way to end the recording."""

    @property
    def name(self) -> str:
        """The run's name, the same on all ranks."""

    @property
    def rank(self) -> int:
        """Global rank of this process."""

    @property
    def attempt(self) -> int:
        """Restart number of the run."""

    @property
    def world_size(self) -> int:
        """Number of ranks in the run."""

    def close(self, timeout_s: float = 10.0) -> None:
        """End the recording."""
