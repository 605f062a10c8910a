"""Claims: the launches and ranks of a run on this node, so that no launch or rank is recorded as another.

    <local spool>/.claims/<run>.json    {"launches": {launch: its first attempt}, "ranks": {"attempt rank": process}}

A file is read and rewritten completely under a lock. A file that cannot be read or written counts as missing; the reuse
of a run's name is not noticed then.
"""

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ranklake.capture.spool.owner import boot_id, start_ticks

FOLDER: Final = ".claims"
_LOCK: Final = "lock"
_DELETE_AFTER_S: Final = 90 * 86_400.0
_LOCK_TIMEOUT_S: Final = 2.0
_PAUSE_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Claim:
    """The process that records as a rank, and the incarnation of its stream."""

    pid: int
    start_ticks: int
    boot_id: str
    incarnation: int

    @classmethod
    def of_this_process(cls, incarnation: int) -> "Claim":
        """Return a claim of the calling process."""
        return cls(os.getpid(), start_ticks(os.getpid()), boot_id(), incarnation)

    def is_alive(self) -> bool:
        """Whether exactly this process is running; False if unknown."""
        return bool(self.start_ticks) and self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True, slots=True)
class AttemptNumber:
    """The attempt of a launch.

    Attributes
    ----------
    attempt
        Number of the attempt.
    is_used_again
        Whether the run's name was used before on this node.
    is_next
        Whether this is a new attempt of such a run.
    """

    attempt: int
    is_used_again: bool = False
    is_next: bool = False


@dataclass
class _RunClaims:
    launches: dict[str, int] = field(default_factory=dict)
    ranks: dict[str, list[Any]] = field(default_factory=dict)

    def highest(self) -> int:
        attempts = [int(key.split()[0]) for key in self.ranks]
        return max([-1, *self.launches.values(), *attempts])

    def holder(self, attempt: int, rank: int) -> Claim | None:
        return _claim(self.ranks.get(f"{attempt} {rank}"))

    def has_living(self, attempt: int) -> bool:
        """Whether any rank of an attempt is recorded now."""
        claims = (_claim(facts) for key, facts in self.ranks.items() if key.split()[0] == str(attempt))
        return any(claim is not None and claim.is_alive() for claim in claims)

    def current_attempt(self) -> int | None:
        """Return the attempt that a process records now as rank 0, or has started and not claimed yet."""
        for launch, attempt in sorted(self.launches.items(), key=lambda item: -item[1]):
            holder = self.holder(attempt, 0)
            if holder.is_alive() if holder is not None else _is_launch_alive(launch):
                return attempt
        return None


class Claims:
    """Claims and launches of one run on one node.

    Parameters
    ----------
    root
        The local spool.
    """

    def __init__(self, root: Path, run: str) -> None:
        self._folder, self._path = root / FOLDER, root / FOLDER / f"{run}.json"

    def number(
        self, launch: str, restarts: int, *, advances: bool, alone: bool = False, is_begun: bool = False
    ) -> AttemptNumber:
        """Return the attempt of a launch after `restarts` restarts; it is higher than those of earlier launches.

        Parameters
        ----------
        launch
            Key of the launch: the same for all its ranks on this node and all its restarts, and unique to it.
        advances
            Whether a new launch gets the next number. False if ranks on other nodes could not compute the same number;
            the result then only reports that the name was used before.
        alone
            Whether the launch is a single process. If another process records the run now, both claim the same rank,
            and this launch is not a later attempt.
        is_begun
            Whether this same process still records the run; the launch is then a later attempt.
        """
        with self._locked_state() as state:
            others = {key for key in state.launches if key != launch}
            joined = state.current_attempt() if alone and advances and launch not in state.launches else None
            if joined is not None:
                state.launches[launch] = joined
                return AttemptNumber(joined)
            if launch not in state.launches:
                state.launches[launch] = state.highest() + 1 if advances else 0
            attempt = state.launches[launch] + restarts
            holder = _claim(state.ranks.get(f"{attempt} 0"))
            has_ended = holder is not None and not holder.is_alive()
            is_again = alone and advances and (is_begun or has_ended)
            if is_again:
                attempt = state.launches[launch] = state.highest() + 1
            is_used_again = is_again or bool(others)
            return AttemptNumber(attempt, is_used_again, is_used_again and advances)

    def number_by_hand(self, launch: str, rank: int, restarts: int, *, advances: bool) -> AttemptNumber:
        """Return the attempt of a rank started by hand, whose launch has no distinguishing key.

        The name counts as used again if that rank was recorded before and its process has ended. The launch is then the
        next attempt, unless another rank of the last attempt is alive.
        """
        with self._locked_state() as state:
            attempt = max(0, state.highest()) if advances else restarts
            holder = state.holder(attempt, rank)
            has_ended = holder is not None and not holder.is_alive()
            is_next = has_ended and advances and not state.has_living(attempt)
            attempt += is_next
            state.launches[launch] = attempt
            return AttemptNumber(attempt, has_ended, is_next)

    def claim(self, attempt: int, rank: int, claim: Claim, *, alone: bool = False) -> Claim | None:
        """Claim a rank of an attempt. If another stream of a live process has claimed it, return that claim.

        Parameters
        ----------
        alone
            Whether the launch is a single process. The claim of a process that has ended then counts, too, because no
            later process of this launch can replace it.
        """
        with self._locked_state() as state:
            key = f"{attempt} {rank}"
            holder = _claim(state.ranks.get(key))
            if holder is not None and holder.incarnation != claim.incarnation and (alone or holder.is_alive()):
                return holder
            state.ranks[key] = [claim.pid, claim.start_ticks, claim.boot_id, claim.incarnation]
        return None

    def release(self, attempt: int, rank: int, claim: Claim) -> None:
        """Release a claim of a process that no longer records as that rank."""
        with self._locked_state() as state:
            key = f"{attempt} {rank}"
            holder = _claim(state.ranks.get(key))
            if holder is not None and holder.incarnation == claim.incarnation:
                state.ranks[key] = [claim.pid, 0, claim.boot_id, claim.incarnation]

    @contextlib.contextmanager
    def _locked_state(self) -> Iterator[_RunClaims]:
        """Yield the stored state under the lock and write it back; without access, yield an empty state."""
        lock = -1
        try:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                lock = _lock(self._folder / _LOCK)
            state = self._read() if lock >= 0 else _RunClaims()
            yield state
            if lock >= 0:
                with contextlib.suppress(OSError):
                    if not self._path.exists():
                        self._delete_old_files()
                    new = self._path.with_suffix(".new")  # not synced: a power failure ends all claiming processes
                    new.write_text(json.dumps({"launches": state.launches, "ranks": state.ranks}))
                    new.replace(self._path)
        finally:
            if lock >= 0:
                os.close(lock)

    def _read(self) -> _RunClaims:
        try:
            content = json.loads(self._path.read_bytes())
            launches = {str(key): int(attempt) for key, attempt in content["launches"].items()}
            return _RunClaims(launches, {str(key): list(facts) for key, facts in content["ranks"].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return _RunClaims()

    def _delete_old_files(self) -> None:
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _DELETE_AFTER_S:
                    path.unlink()


def _claim(facts: list[Any] | None) -> Claim | None:
    try:
        return None if facts is None else Claim(int(facts[0]), int(facts[1]), str(facts[2]), int(facts[3]))
    except (ValueError, TypeError, IndexError):
        return None


def _is_launch_alive(launch: str) -> bool:
    """Whether a launch whose key names a process is alive: whether that process is running."""
    parts = launch.split()
    if len(parts) != len(("boot", "pid", "ticks")) or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return parts[0] == boot_id() and int(parts[2]) > 0 and start_ticks(int(parts[1])) == int(parts[2])


def _lock(path: Path) -> int:
    """Return a descriptor with the lock. Raises `OSError` if other processes keep the lock for too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _LOCK_TIMEOUT_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > deadline:
                os.close(fd)
                raise
            time.sleep(_PAUSE_S)
        except OSError:
            os.close(fd)
            raise
        else:
            return fd
