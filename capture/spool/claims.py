"""Claims: which launches and ranks of a run this node has seen, so that none is recorded as another.

    <local spool>/.claims/<run>.json    {"launches": {launch: its first attempt}, "ranks": {"attempt rank": who}}

A file is read and written whole under a lock. What cannot be read or written is as if it were not there: then a name
that is used again is not noticed here.
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
_FORGET_AFTER_S: Final = 90 * 86_400.0
_PATIENCE_S: Final = 2.0
_PAUSE_S: Final = 0.005


@dataclass(frozen=True, slots=True)
class Claim:
    """Who records as a rank: a process, and its stream's incarnation."""

    pid: int
    start_ticks: int
    boot_id: str
    incarnation: int

    @classmethod
    def of_this_process(cls, incarnation: int) -> "Claim":
        """Return the claim of the process that asks."""
        return cls(os.getpid(), start_ticks(os.getpid()), boot_id(), incarnation)

    def lives(self) -> bool:
        """Whether that very process runs; False also where that cannot be known."""
        return bool(self.start_ticks) and self.boot_id == boot_id() and start_ticks(self.pid) == self.start_ticks


@dataclass(frozen=True, slots=True)
class AttemptNumber:
    """The attempt of a launch, whether the run's name was used before, and whether this is the next attempt of it."""

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
        claims = (_claim(who) for key, who in self.ranks.items() if key.split()[0] == str(attempt))
        return any(claim is not None and claim.lives() for claim in claims)

    def current_attempt(self) -> int | None:
        """Return the attempt that a process records now as rank 0, or has begun and not claimed yet."""
        for launch, attempt in sorted(self.launches.items(), key=lambda item: -item[1]):
            holder = self.holder(attempt, 0)
            if holder.lives() if holder is not None else _lives(launch):
                return attempt
        return None


class Claims:
    """What one node has seen of one run.

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
        """Return the attempt of a launch that has restarted so many times: behind those of earlier launches.

        Parameters
        ----------
        launch
            What all ranks of a launch on this node share, its restarts included, and no other launch has.
        advances
            False where ranks on other nodes could not come to the same number: then it is only said that the name was
            used before.
        alone
            The launch is one process, which may have recorded the run before. Where another records it now, both claim
            the same rank: it is no later attempt.
        is_begun
            That process is this one: then it is.
        """
        with self._locked_state() as seen:
            others = {key for key in seen.launches if key != launch}
            joined = seen.current_attempt() if alone and advances and launch not in seen.launches else None
            if joined is not None:
                seen.launches[launch] = joined
                return AttemptNumber(joined)
            if launch not in seen.launches:
                seen.launches[launch] = seen.highest() + 1 if advances else 0
            attempt = seen.launches[launch] + restarts
            holder = _claim(seen.ranks.get(f"{attempt} 0"))
            has_ended = holder is not None and not holder.lives()
            is_again = alone and advances and (is_begun or has_ended)
            if is_again:
                attempt = seen.launches[launch] = seen.highest() + 1
            is_used_again = is_again or bool(others)
            return AttemptNumber(attempt, is_used_again, is_used_again and advances)

    def number_by_hand(self, launch: str, rank: int, restarts: int, *, advances: bool) -> AttemptNumber:
        """Return the attempt of a rank started by hand: nothing tells its launch from another.

        So the name is used again where that rank has been recorded, and its process has ended. Its launch is the next
        attempt, as far as no other rank of the last one lives.
        """
        with self._locked_state() as seen:
            attempt = max(0, seen.highest()) if advances else restarts
            holder = seen.holder(attempt, rank)
            has_ended = holder is not None and not holder.lives()
            is_next = has_ended and advances and not seen.has_living(attempt)
            attempt += is_next
            seen.launches[launch] = attempt
            return AttemptNumber(attempt, has_ended, is_next)

    def claim(self, attempt: int, rank: int, claim: Claim, *, alone: bool = False) -> Claim | None:
        """Claim a rank of an attempt; return who has it, if that is another stream of a process that lives.

        Parameters
        ----------
        alone
            Nobody takes the rank's place after another: it also counts who has ended since the attempt was numbered.
        """
        with self._locked_state() as seen:
            key = f"{attempt} {rank}"
            holder = _claim(seen.ranks.get(key))
            if holder is not None and holder.incarnation != claim.incarnation and (alone or holder.lives()):
                return holder
            seen.ranks[key] = [claim.pid, claim.start_ticks, claim.boot_id, claim.incarnation]
        return None

    def release(self, attempt: int, rank: int, claim: Claim) -> None:
        """Give a claim up: the process lives on, and no longer records as that rank."""
        with self._locked_state() as seen:
            key = f"{attempt} {rank}"
            holder = _claim(seen.ranks.get(key))
            if holder is not None and holder.incarnation == claim.incarnation:
                seen.ranks[key] = [claim.pid, 0, claim.boot_id, claim.incarnation]

    @contextlib.contextmanager
    def _locked_state(self) -> Iterator[_RunClaims]:
        """Give what was seen, and write it back; where that cannot be, nothing was seen and nothing is kept."""
        lock = -1
        try:
            with contextlib.suppress(OSError):
                self._folder.mkdir(mode=0o700, exist_ok=True)
                lock = _lock(self._folder / _LOCK)
            seen = self._read() if lock >= 0 else _RunClaims()
            yield seen
            if lock >= 0:
                with contextlib.suppress(OSError):
                    if not self._path.exists():
                        self._forget_the_old()
                    new = self._path.with_suffix(".new")  # not synced: a power failure ends all who are named in it
                    new.write_text(json.dumps({"launches": seen.launches, "ranks": seen.ranks}))
                    new.replace(self._path)
        finally:
            if lock >= 0:
                os.close(lock)

    def _read(self) -> _RunClaims:
        try:
            content = json.loads(self._path.read_bytes())
            launches = {str(key): int(attempt) for key, attempt in content["launches"].items()}
            return _RunClaims(launches, {str(key): list(who) for key, who in content["ranks"].items()})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return _RunClaims()

    def _forget_the_old(self) -> None:
        for path in self._folder.glob("*.json"):
            with contextlib.suppress(OSError):
                if time.time() - path.stat().st_mtime > _FORGET_AFTER_S:
                    path.unlink()


def _claim(who: list[Any] | None) -> Claim | None:
    try:
        return None if who is None else Claim(int(who[0]), int(who[1]), str(who[2]), int(who[3]))
    except (ValueError, TypeError, IndexError):
        return None


def _lives(launch: str) -> bool:
    """Whether a launch that is named after a process goes on: that very process runs."""
    parts = launch.split()
    if len(parts) != len(("boot", "pid", "ticks")) or not (parts[1].isdigit() and parts[2].isdigit()):
        return False
    return parts[0] == boot_id() and int(parts[2]) > 0 and start_ticks(int(parts[1])) == int(parts[2])


def _lock(path: Path) -> int:
    """Return a descriptor that holds the lock. Raises `OSError` if others hold it for too long."""
    fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    deadline = time.monotonic() + _PATIENCE_S
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
