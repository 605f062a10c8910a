"""Spool monitor: checks whether segments of a local spool are due, without sealing or sending any.

It needs neither pyarrow nor the store's client, so the agent's process stays small. A `WorkerTask` seals and sends.
"""

import contextlib
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ranklake.capture.node.agent_metrics import AgentMetrics, GapCount
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.node.worker import WorkerResult
from ranklake.capture.recording.breaker import BreakerState
from ranklake.capture.recording.upload import PACK_BYTES
from ranklake.capture.spool.files import is_mine, may_serve
from ranklake.capture.spool.owner import HELD, Owner, is_orphan
from ranklake.capture.spool.stream_files import SealedFile, StreamName, open_files, ready_files, sealed_files, streams

LONGEST_REST_S: Final = 60.0
"""Longest time between attempts at a stream that cannot be finished."""


@dataclass(slots=True)
class _Backoff:
    """Number of failed attempts, and the time before which no further attempt is made."""

    failures: int = 0
    until: float = 0.0

    def add_failure(self) -> None:
        self.until = time.monotonic() + min(LONGEST_REST_S, 2.0**self.failures)
        self.failures += 1


@dataclass
class SpoolMonitor:
    """Watches one local spool for its agent.

    Parameters
    ----------
    root, spool, pack_every_s, fallback
        As in `ranklake.capture.node.agent.Agent`.

    Attributes
    ----------
    figures
        Metrics at the last call of `look`.
    alive, foreign
        Streams of live processes, and streams with another spool as destination, at the last call of `look`.
    holders
        Live recording processes by pid, at the last call of `look`.
    """

    root: Path
    spool: str = ""
    pack_every_s: float = 60.0
    fallback: Fallback = field(default_factory=Fallback)
    figures: AgentMetrics = field(default_factory=AgentMetrics)
    alive: int = 0
    foreign: int = 0
    holders: dict[int, StreamName] = field(default_factory=dict)
    _gaps: GapCount = field(default_factory=GapCount)
    _owners: dict[Path, Owner | None] = field(default_factory=dict)
    _first_seen: dict[Path, float] = field(default_factory=dict)
    _breaker_states: dict[str, BreakerState] = field(default_factory=dict)
    _states_at: float = 0.0
    _rests: dict[Path, _Backoff] = field(default_factory=dict)
    _rest: _Backoff = field(default_factory=_Backoff)

    def look(self) -> bool:
        """Check all streams; return whether segments must be sealed or sent now. Errors of streams are not raised."""
        self.alive = self.foreign = 0
        due = False
        ages: list[float] = []
        sizes: Counter[str] = Counter()
        seen: set[Path] = set()
        files_seen: set[Path] = set()
        holders: dict[int, StreamName] = {}
        for folder in streams(self.root, may_serve):
            seen.add(folder)
            with contextlib.suppress(OSError):  # finished and deleted meanwhile
                due |= self._look_at(folder, ages, sizes, files_seen, holders)
        due |= any(size >= PACK_BYTES and not self._rests_store(uri) for uri, size in sizes.items())
        self._first_seen = {path: since for path, since in self._first_seen.items() if path in files_seen}
        self._owners = {folder: owner for folder, owner in self._owners.items() if folder in seen}
        self._rests = {folder: rest for folder, rest in self._rests.items() if folder in seen}
        self._gaps.forget(seen)
        self.holders = holders
        figures = self.figures
        figures.queue_segments, figures.queue_bytes = len(ages), sizes.total()
        figures.lag_s = max(ages, default=0.0)
        figures.streams = self.alive
        figures.breaker_open = int(any(state.is_open for state in self._breaker_states.values()))
        figures.gap_rows, figures.gaps = self._gaps.rows.total(), dict(self._gaps.rows)
        return due and time.monotonic() >= self._rest.until

    def _look_at(
        self,
        folder: Path,
        ages: list[float],
        sizes: "Counter[str]",
        seen: set[Path],
        holders: dict[int, StreamName],
    ) -> bool:
        """Check one stream; return whether it needs a worker process now. Raises `OSError`."""
        name = StreamName.of(folder)
        assert name is not None
        own = HELD.has(name.incarnation)
        mine = is_mine(folder)
        owner = None if own else self._owner(folder)
        # Another user's stream is only checked here; a worker adopts it with that user's rights.
        dead = not own and (is_orphan(folder, name.incarnation) if mine else owner is None or not owner.runs())
        if owner is not None and not dead:
            holders[owner.pid] = name
        uri = self.spool or (owner.spool if owner and mine else "")
        if self.spool and owner and owner.spool and owner.spool != self.spool:
            self.foreign += 1
            return False
        self.alive += not dead
        with contextlib.suppress(OSError):  # a worker process reports damaged streams
            self._gaps.look(folder)
        is_due = False
        for file in ready_files(folder):
            with contextlib.suppress(FileNotFoundError):  # its process has sent it meanwhile
                sizes[uri] += file.path.stat().st_size
                age = self._age_s(file)
                ages.append(age)
                seen.add(file.path)
                is_due |= age >= self.pack_every_s
        may_go = bool(uri) and not self._rests_store(uri)
        if not dead:
            return is_due and may_go
        if time.monotonic() < self._rests.setdefault(folder, _Backoff()).until:
            return False
        return may_go or not sealed_files(folder) or bool(open_files(folder))

    def add_result(self, report: WorkerResult) -> None:
        """Add the result of a worker process."""
        now = time.monotonic()
        self._breaker_states, self._states_at = self.breaker_states() | dict(report.breaker_states), now
        for folder, rest in self._rests.items():
            if folder.exists() and rest.until <= now:  # the worker tried it, and it still exists
                rest.add_failure()
        if report.failed:
            self._rest.add_failure()
        else:
            self._rest = _Backoff()
        figures, done = self.figures, report.done
        figures.retries += report.retries
        figures.packs += done.packs
        figures.sent_segments += done.segments
        figures.fallback_segments += done.fallback
        figures.sent_bytes += report.sent_bytes
        self._gaps.rows.update({(table, reason): rows for table, reason, rows in report.gaps})
        self._gaps.read.update({Path(folder): at for folder, at in report.read.items()})

    def breaker_states(self) -> dict[str, BreakerState]:
        """Return the current states of the breakers by URI."""
        passed = time.monotonic() - self._states_at
        return {uri: state.later(passed) for uri, state in self._breaker_states.items()}

    def read(self) -> dict[str, int]:
        """Return the position in bytes up to which each stream was read for gaps."""
        return {str(folder): at for folder, at in self._gaps.read.items()}

    def _rests_store(self, uri: str) -> bool:
        states = self.breaker_states()
        first, second = (states.get(place, BreakerState()) for place in (uri, self.fallback.uri))
        has_fallback = uri == self.spool and self.fallback.replaces(first)
        return (second if has_fallback else first).wait_s > 0

    def _age_s(self, file: SealedFile) -> float:
        now = time.monotonic()
        seen_for = now - self._first_seen.setdefault(file.path, now)  # in addition to the wall clock, which may be set
        return max(seen_for, time.time() - file.path.stat().st_mtime)

    def _owner(self, folder: Path) -> Owner | None:
        """Return the content of owner.json. Must not be called for a stream of this process. Raises `OSError`."""
        if folder not in self._owners:
            self._owners[folder] = Owner.read(folder)
        return self._owners[folder]
