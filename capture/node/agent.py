"""Agent: recovers, packs and uploads the segments of all ranks of a node, and counts metrics.

    live streams:  ….sealed ──┐
    dead streams:  sealed ────┴─▶ pack ─▶ PUT, verify ─▶ members ….acked ─▶ deleted by their process, or by the agent

After a kill, some segments may have been sent and not acknowledged. They are sent again, possibly in another pack.
Ingest recognizes them by their names and digests.
"""

import contextlib
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.common.gaps import LOGGER
from ranklake.capture.node.agent_metrics import AgentMetrics, GapCount, PassResult
from ranklake.capture.node.fallback import Fallback
from ranklake.capture.recording.breaker import Breaker, BreakerState
from ranklake.capture.recording.upload import PACK_BYTES, Uploader, WaitingSegment, packs_of
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.files import is_mine, may_serve, with_rights_of
from ranklake.capture.spool.owner import HELD, Owner, is_orphan
from ranklake.capture.spool.stream import sweep
from ranklake.capture.spool.stream_files import SealedFile, StreamName, ready_files, streams
from ranklake.segments.envelope import EncryptionError
from ranklake.segments.pack import pack

if TYPE_CHECKING:
    from ranklake.capture.recording.recovery import AbandonedStream

STREAMS_AT_ONCE: Final = 256
"""Streams handled together. Adopted streams stay locked until they are sent, with one open descriptor each."""


@dataclass
class Agent:
    """The agent of a local spool; its process must have the spool's `Leadership`.

    Parameters
    ----------
    root
        The local spool.
    spool
        Destination of segments; if empty, each stream's own destination.
    storage_options
        Options for fsspec.
    pack_every_s
        Seconds that segments of live processes may wait for other segments of a pack.
    keys
        Keys for sealing the files of dead processes.
    breaker_states
        States of breakers from an earlier process, by URI.
    gaps
        Counter of gaps, with the positions read so far.
    fallback
        Spool for segments while `spool` is unreachable.
    """

    root: Path
    spool: str = ""
    storage_options: Mapping[str, Any] | None = None
    pack_every_s: float = 60.0
    keys: SealingKeys = field(default_factory=SealingKeys)
    figures: AgentMetrics = field(default_factory=AgentMetrics)
    breaker_states: Mapping[str, BreakerState] = field(default_factory=dict)
    fallback: Fallback = field(default_factory=Fallback)
    _uploaders: dict[str, Uploader] = field(default_factory=dict)
    _first_seen: dict[Path, float] = field(default_factory=dict)
    _destinations: dict[Path, str] = field(default_factory=dict)
    gaps: GapCount = field(default_factory=GapCount)

    def look(self, stop: Callable[[], bool] = lambda: False, *, pack_now: bool = False) -> PassResult:
        """Handle all streams once: adopt those of dead processes, and send due segments.

        `stop` is checked before each stream and PUT. Errors of streams and of the store are in the result, not raised.
        """
        counts: Counter[str] = Counter()
        troubles: list[str] = []
        left_segments: list[WaitingSegment] = []
        seen: set[Path] = set()

        def is_served(folder: Path) -> bool:
            serves = may_serve(folder)
            counts["others"] += not serves
            return serves

        with contextlib.suppress(EncryptionError):  # read keys with own rights now; errors are reported when sealing
            self.keys.active()
        folders = streams(self.root, is_served)
        while chosen := list(islice(folders, STREAMS_AT_ONCE)):
            with contextlib.ExitStack() as locks:
                waiting: list[WaitingSegment] = []
                orphans: list[AbandonedStream] = []
                for folder in chosen:
                    seen.add(folder)
                    if not stop():
                        own = is_mine(folder)
                        with self._collect_errors(troubles, folder), with_rights_of(folder):
                            waiting += self._waiting_in(folder, locks, orphans, counts, troubles, own=own)
                if pack_now or self._due(waiting):
                    waiting = self._send(waiting, stop, counts, troubles)
                    counts["left"] += len(waiting)
                for orphan in orphans:
                    with self._collect_errors(troubles, orphan.folder), with_rights_of(orphan.folder):
                        orphan.discard_if_empty()
                left_segments += waiting
        self._clear_caches(seen, left_segments)
        sweep(self.root, may_serve)
        self.figures = self._figures(left_segments, counts)
        failure = next((uploader.last_error for uploader in self._uploaders.values() if uploader.last_error), "")
        return PassResult(**counts, troubles=tuple(troubles), failure=failure)

    @contextlib.contextmanager
    def _collect_errors(self, troubles: list[str], folder: Path) -> Iterator[None]:
        """Add errors of a stream to the troubles, so that they do not block other streams."""
        try:
            yield
        except FileNotFoundError as error:
            if folder.exists():  # if not, its process has deleted it meanwhile
                troubles.append(f"{folder}: {error}")
        except Exception as error:  # noqa: BLE001 - a bug, or an unforeseen kind of damage
            troubles.append(f"{folder}: {type(error).__name__}: {error}")
            LOGGER.warning("ranklake: cannot send %s: %s", folder, error)

    def _waiting_in(
        self,
        folder: Path,
        locks: contextlib.ExitStack,
        orphans: "list[AbandonedStream]",
        counts: "Counter[str]",
        troubles: list[str],
        *,
        own: bool,
    ) -> list[WaitingSegment]:
        """Return the unsent segments of a stream. The stream of a dead process is adopted and sealed first.

        A stream's own destination is used only if the stream belongs to this process's user.
        """
        with contextlib.ExitStack() as lock:
            orphan = lock.enter_context(_adopted(folder, self.keys))
            destination = orphan.owner.spool if orphan and orphan.owner else "" if orphan else self._spool_of(folder)
            if self.spool and destination and destination != self.spool:
                counts["foreign"] += 1
                return []
            if orphan is None:
                counts["alive"] += 1
            else:
                with self._collect_errors(troubles, folder):  # after an error, earlier segments are still sent
                    try:
                        orphan.seal()
                        orphans.append(orphan)
                    except EncryptionError as error:
                        troubles.append(f"{folder}: {error}")
                    counts["streams"] += 1
                locks.enter_context(lock.pop_all())
        with contextlib.suppress(OSError):
            self.gaps.look(folder)
        name = StreamName.of(folder)
        assert name is not None
        waiting = []
        for file in ready_files(folder):
            with contextlib.suppress(FileNotFoundError):  # its process has sent it meanwhile
                uri = self.spool or (destination if own else "")
                waiting.append(self._waiting(file, name, uri, adopted=orphan is not None))
        return waiting

    def _spool_of(self, folder: Path) -> str:
        """Return the destination of a live process's segments; empty if unknown.

        This process's own streams have the agent's destination, and their owner.json must not be opened.
        """
        if folder not in self._destinations:
            name = StreamName.of(folder)
            own = name is None or HELD.has(name.incarnation)
            owner = None if own else Owner.read(folder)
            self._destinations[folder] = self.spool if own else owner.spool if owner else ""
        return self._destinations[folder]

    def _waiting(self, file: SealedFile, name: StreamName, uri: str, *, adopted: bool) -> WaitingSegment:
        stat = file.path.stat()
        now = time.monotonic()
        seen_for = now - self._first_seen.setdefault(file.path, now)  # in addition to the wall clock, which may be set
        age = max(seen_for, time.time() - stat.st_mtime)
        return WaitingSegment(file, file.remote(name), uri, stat.st_size, age, adopted)

    def _due(self, waiting: list[WaitingSegment]) -> bool:
        return (
            any(item.adopted or item.age_s >= self.pack_every_s for item in waiting)
            or sum(item.size_bytes for item in waiting) >= PACK_BYTES
        )

    def _send(
        self, waiting: list[WaitingSegment], stop: Callable[[], bool], counts: "Counter[str]", troubles: list[str]
    ) -> list[WaitingSegment]:
        """Send segments in as few packs as possible; return those that are left."""
        left: list[WaitingSegment] = []
        packs = deque(packs_of(waiting))
        while packs:
            members = packs.popleft()
            uploader = None if stop() else self._uploader_now(members[0].uri)
            if uploader is None:
                left += members
                continue
            if uploader.breaker.state != "closed" and len(members) > 1:
                packs.appendleft(members[1:])
                members = members[:1]  # a probe of one segment, because tried segments cannot be evicted (decision 007)
            raw: dict[str, bytes] = {}
            for item in members:
                folder = item.file.path.parent
                with (
                    self._collect_errors(troubles, folder),
                    with_rights_of(folder),
                    contextlib.suppress(FileNotFoundError),
                ):
                    raw[item.remote] = item.file.read_to_send()
            if raw and not uploader.send(*pack(raw)):
                packs.appendleft(members)  # next for the fallback; else they are left
                continue
            for item in members:
                if item.remote in raw:
                    folder = item.file.path.parent
                    with self._collect_errors(troubles, folder), with_rights_of(folder):
                        self._acknowledge(item)
            counts.update(segments=len(raw), packs=bool(raw))
            counts["fallback"] += len(raw) if uploader.uri == self.fallback.uri else 0
            counts["rows"] += sum(item.file.rows for item in members if item.remote in raw)
            self.figures.sent_bytes += sum(map(len, raw.values()))
        return left

    def _acknowledge(self, item: WaitingSegment) -> None:
        acked = item.file.acknowledge()
        if item.adopted:
            acked.unlink(missing_ok=True)

    def _uploader_now(self, uri: str) -> Uploader | None:
        """Return the uploader to use now for segments with a destination: first spool, fallback, or None to wait."""
        first = self._uploader(uri)
        if first is None or first.breaker.left_s() <= 0:
            return first
        if uri != self.spool or not self.fallback.replaces(first.breaker.snapshot()):
            return None
        second = self._uploader(self.fallback.uri)
        return second if second and second.breaker.left_s() <= 0 else None

    def _uploader(self, uri: str) -> Uploader | None:
        if uri and uri not in self._uploaders:
            options = self.fallback.storage_options if uri == self.fallback.uri else self.storage_options
            breaker = Breaker.from_state(self.breaker_states.get(uri, BreakerState()))
            self._uploaders[uri] = Uploader(uri, options, breaker)
        return self._uploaders.get(uri)

    def breakers(self) -> dict[str, BreakerState]:
        """Return the states of the breakers of all used spools, by URI."""
        return {uri: uploader.breaker.snapshot() for uri, uploader in self._uploaders.items()}

    def _clear_caches(self, seen: set[Path], left_segments: list[WaitingSegment]) -> None:
        """Drop cached facts about deleted streams and segments."""
        paths = {item.file.path for item in left_segments}
        self._first_seen = {path: since for path, since in self._first_seen.items() if path in paths}
        self._destinations = {folder: uri for folder, uri in self._destinations.items() if folder in seen}
        self.gaps.forget(seen)

    def _figures(self, left_segments: list[WaitingSegment], counts: "Counter[str]") -> AgentMetrics:
        before = self.figures
        uploaders = self._uploaders.values()
        return AgentMetrics(
            queue_segments=len(left_segments),
            queue_bytes=sum(item.size_bytes for item in left_segments),
            lag_s=max((item.age_s for item in left_segments), default=0.0),
            streams=counts["alive"],
            breaker_open=int(any(uploader.breaker.state != "closed" for uploader in uploaders)),
            retries=sum(uploader.retries for uploader in uploaders),
            packs=before.packs + counts["packs"],
            sent_segments=before.sent_segments + counts["segments"],
            fallback_segments=before.fallback_segments + counts["fallback"],
            sent_bytes=before.sent_bytes,
            gap_rows=self.gaps.rows.total(),
            gaps=dict(self.gaps.rows),
        )


@contextlib.contextmanager
def _adopted(folder: Path, keys: SealingKeys) -> "Iterator[AbandonedStream | None]":
    """Adopt a dead process's stream for the block; None if the owner is alive or the stream is adopted already."""
    name = StreamName.of(folder)
    try:
        orphaned = name is not None and is_orphan(folder, name.incarnation)
    except OSError:  # deleted meanwhile, or not accessible
        orphaned = False
    if not orphaned:
        yield None
        return
    from ranklake.capture.recording.recovery import adopted  # imports numpy and pyarrow, which are rarely needed

    with adopted(folder, keys) as orphan:
        yield orphan
