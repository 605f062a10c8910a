"""Agent: one process of a node that works for all ranks there: recovers, packs, uploads, keeps metrics.

    live streams:  ….sealed ──┐
    dead streams:  sealed ────┴─▶ pack ─▶ PUT, verify ─▶ members ….acked ─▶ deleted, by their process if it lives

Killed anywhere, it leaves segments that are sent and not acknowledged. They are sent again, by whomever, in whatever
pack: they keep their names and digests, by which ingest tells what it has.
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
"""Streams looked at together: what is adopted stays locked, at one descriptor each, until it is sent."""


@dataclass
class Agent:
    """The agent of a local spool; its process holds the spool's `Leadership`.

    Parameters
    ----------
    root
        The local spool.
    spool
        Where segments go; without one, each goes where its process meant it to.
    storage_options
        Handed to fsspec.
    pack_every_s
        How long segments of living processes may wait for others to be packed with.
    keys
        Where they are to seal with what dead processes left.
    breaker_states
        How the breakers of spools stand that another process has tried, by URI.
    gaps
        Knows which gaps were counted before.
    fallback
        Where segments for `spool` go while that is away.
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
    _meant_for: dict[Path, str] = field(default_factory=dict)
    gaps: GapCount = field(default_factory=GapCount)

    def look(self, stop: Callable[[], bool] = lambda: False, *, pack_now: bool = False) -> PassResult:
        """Go over all streams once: adopt the dead, and send what is due. `stop` is asked before each stream and PUT.

        Nothing is raised for one stream's sake, nor for a store that fails.
        """
        counts: Counter[str] = Counter()
        troubles: list[str] = []
        kept: list[WaitingSegment] = []
        seen: set[Path] = set()

        def mine(folder: Path) -> bool:
            serves = may_serve(folder)
            counts["others"] += not serves
            return serves

        with contextlib.suppress(EncryptionError):  # told where it is needed; of another user's file they are not read
            self.keys.active()
        folders = streams(self.root, mine)
        while chosen := list(islice(folders, STREAMS_AT_ONCE)):
            with contextlib.ExitStack() as held:
                waiting: list[WaitingSegment] = []
                orphans: list[AbandonedStream] = []
                for folder in chosen:
                    seen.add(folder)
                    if not stop():
                        own = is_mine(folder)
                        with self._telling(troubles, folder), with_rights_of(folder):
                            waiting += self._waiting_in(folder, held, orphans, counts, troubles, own=own)
                if pack_now or self._due(waiting):
                    waiting = self._send(waiting, stop, counts, troubles)
                    counts["left"] += len(waiting)
                for orphan in orphans:
                    with self._telling(troubles, orphan.folder), with_rights_of(orphan.folder):
                        orphan.discard_if_empty()
                kept += waiting
        self._forget(seen, kept)
        sweep(self.root, may_serve)
        self.figures = self._figures(kept, counts)
        failure = next((uploader.last_error for uploader in self._uploaders.values() if uploader.last_error), "")
        return PassResult(**counts, troubles=tuple(troubles), failure=failure)

    @contextlib.contextmanager
    def _telling(self, troubles: list[str], folder: Path) -> Iterator[None]:
        """Note what one stream's damage raises: it must not block the others."""
        try:
            yield
        except FileNotFoundError as error:
            if folder.exists():  # else its process has closed it meanwhile
                troubles.append(f"{folder}: {error}")
        except Exception as error:  # noqa: BLE001 - a bug of ours, or damage beyond imagination
            troubles.append(f"{folder}: {type(error).__name__}: {error}")
            LOGGER.warning("ranklake: cannot send %s: %s", folder, error)

    def _waiting_in(
        self,
        folder: Path,
        held: contextlib.ExitStack,
        orphans: "list[AbandonedStream]",
        counts: "Counter[str]",
        troubles: list[str],
        *,
        own: bool,
    ) -> list[WaitingSegment]:
        """Return what waits in a stream; one whose process is dead is taken over and sealed first.

        What a stream says of where it is to go counts only if it is this process's own user's.
        """
        with contextlib.ExitStack() as mine:
            orphan = mine.enter_context(_taken_over(folder, self.keys))
            meant_for = orphan.owner.spool if orphan and orphan.owner else "" if orphan else self._spool_of(folder)
            if self.spool and meant_for and meant_for != self.spool:
                counts["foreign"] += 1
                return []
            if orphan is None:
                counts["alive"] += 1
            else:
                with self._telling(troubles, folder):  # what was sealed before can be sent all the same, and makes room
                    try:
                        orphan.seal()
                        orphans.append(orphan)
                    except EncryptionError as error:
                        troubles.append(f"{folder}: {error}")
                    counts["streams"] += 1
                held.enter_context(mine.pop_all())
        with contextlib.suppress(OSError):
            self.gaps.look(folder)
        name = StreamName.of(folder)
        assert name is not None
        waiting = []
        for file in ready_files(folder):
            with contextlib.suppress(FileNotFoundError):  # its process has sent it meanwhile
                uri = self.spool or (meant_for if own else "")
                waiting.append(self._waiting(file, name, uri, adopted=orphan is not None))
        return waiting

    def _spool_of(self, folder: Path) -> str:
        """Return where a living process means its segments to go, or an empty text.

        This process's own streams go where the agent's do, and their owner.json must not be opened.
        """
        if folder not in self._meant_for:
            name = StreamName.of(folder)
            own = name is None or HELD.has(name.incarnation)
            owner = None if own else Owner.read(folder)
            self._meant_for[folder] = self.spool if own else owner.spool if owner else ""
        return self._meant_for[folder]

    def _waiting(self, file: SealedFile, name: StreamName, uri: str, *, adopted: bool) -> WaitingSegment:
        stat = file.path.stat()
        now = time.monotonic()
        seen_for = now - self._first_seen.setdefault(file.path, now)  # beside the wall clock, which may step
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
        """Send segments in as few packs as may be; return those that are left."""
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
                members = members[:1]  # a probe: what was tried can no longer be given up (decision 007)
            raw: dict[str, bytes] = {}
            for item in members:
                folder = item.file.path.parent
                with self._telling(troubles, folder), with_rights_of(folder), contextlib.suppress(FileNotFoundError):
                    raw[item.remote] = item.file.read_to_send()
            if raw and not uploader.send(*pack(raw)):
                packs.appendleft(members)  # for the fallback, or left
                continue
            for item in members:
                if item.remote in raw:
                    folder = item.file.path.parent
                    with self._telling(troubles, folder), with_rights_of(folder):
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
        """Return what segments meant for a spool may be sent by now: None while its store is left alone."""
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
        """Return how the breakers of the spools that were tried stand."""
        return {uri: uploader.breaker.snapshot() for uri, uploader in self._uploaders.items()}

    def _forget(self, seen: set[Path], kept: list[WaitingSegment]) -> None:
        """Keep no memory of what is gone."""
        there = {item.file.path for item in kept}
        self._first_seen = {path: since for path, since in self._first_seen.items() if path in there}
        self._meant_for = {folder: uri for folder, uri in self._meant_for.items() if folder in seen}
        self.gaps.forget(seen)

    def _figures(self, kept: list[WaitingSegment], counts: "Counter[str]") -> AgentMetrics:
        before = self.figures
        uploaders = self._uploaders.values()
        return AgentMetrics(
            queue_segments=len(kept),
            queue_bytes=sum(item.size_bytes for item in kept),
            lag_s=max((item.age_s for item in kept), default=0.0),
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
def _taken_over(folder: Path, keys: SealingKeys) -> "Iterator[AbandonedStream | None]":
    """Hold a dead process's stream for the block; None if the process lives or somebody else has taken it over."""
    name = StreamName.of(folder)
    try:
        orphaned = name is not None and is_orphan(folder, name.incarnation)
    except OSError:  # removed meanwhile, or not ours to open
        orphaned = False
    if not orphaned:
        yield None
        return
    from ranklake.capture.recording.recovery import adopted  # numpy and pyarrow: most looks seal nothing

    with adopted(folder, keys) as orphan:
        yield orphan
