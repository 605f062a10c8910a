"""Live state of runs on this machine, read from the local spool while somebody follows them.

Only reads files, without contacting any process (`ranklake.capture.live.live_run`). Shown only to viewers without a
role, since rows outside of the lake cannot be filtered or masked.
"""

import asyncio
import json
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from starlette.concurrency import run_in_threadpool

from ranklake.capture.live.live_run import NoLiveRunError, RunWatch, find_run, recording_runs
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.lake.store.reachability import LakeError
from ranklake.views.html.shell import Page
from ranklake.views.json_output import json_text

LIVE: Final = "live"
LIVE_HOME: Final = f"{LIVE}/index.html"
EVERY_S: Final = 0.5
"""Seconds between two reads of a run, for any number of followers."""
IDLE_S: Final = 15.0
"""Seconds after the last request until a run's files are closed."""
MOST_LOOKS: Final = 1_000
"""Most names of runs in the cache: requests may have any name."""
MOST_RUNS: Final = 16
"""Most runs that are followed at once."""


@dataclass
class _Watched:
    watch: RunWatch
    lock: threading.Lock = field(default_factory=threading.Lock)
    at: float = -EVERY_S
    asked_at: float = field(default_factory=time.monotonic)
    facts: str = ""


class LiveRuns:
    """Runs in a local spool.

    Parameters
    ----------
    root
        The local spool, which need not exist.
    """

    def __init__(self, root: Path, keys: SealingKeys) -> None:
        self._root, self._keys = root, keys
        self._lock = threading.Lock()
        self._watched: dict[str, _Watched] = {}
        self._looks: dict[str, tuple[float, str | None]] = {}

    def look(self, run: str) -> str | None:
        """Return the state of a run as `ranklake watch --json` does; None if it has no ranks here.

        An empty name means the run that began to record steps last. It is read once per `EVERY_S`, for all requests.
        """
        at, facts = self._looks.get(run, (-EVERY_S, None))
        if time.monotonic() - at < EVERY_S:
            return facts
        facts = self._look(run)
        with self._lock:
            if len(self._looks) >= MOST_LOOKS:
                self._looks.clear()
            self._looks[run] = time.monotonic(), facts
        return facts

    def _look(self, run: str) -> str | None:
        try:
            name = find_run(self._root, run)
        except (NoLiveRunError, OSError):
            return None
        if run and name != run:  # the beginning of a name could match another run
            return None
        watched = self._watch(name)
        if watched is None:
            return None
        with watched.lock:
            if time.monotonic() - watched.at >= EVERY_S:
                try:
                    watched.facts = json_text(watched.watch.look())
                except OSError:
                    return None
                watched.at = time.monotonic()
            return watched.facts

    def _watch(self, name: str) -> _Watched | None:
        with self._lock:
            now = time.monotonic()
            for other, watched in list(self._watched.items()):
                if now - watched.asked_at > IDLE_S:
                    with watched.lock:
                        watched.watch.close()
                    del self._watched[other]
            if name not in self._watched:
                if len(self._watched) >= MOST_RUNS:
                    return None
                self._watched[name] = _Watched(RunWatch(self._root, name, self._keys))
            self._watched[name].asked_at = now
            return self._watched[name]

    def close(self) -> None:
        """Let go of all files."""
        with self._lock:
            for watched in self._watched.values():
                watched.watch.close()
            self._watched.clear()

    def page(self) -> Page:
        """Return the page that follows the run in its address, else the latest run."""
        with suppress(OSError):
            seen = recording_runs(self._root)
            runs = sorted(seen, key=lambda run: -seen[run])
            return Page(LIVE_HOME, "Live", "live.html", lambda: {"runs": runs}, "")
        return Page(LIVE_HOME, "Live", "live.html", lambda: {"runs": []}, "")


async def events(live: LiveRuns, run: str, mark: Callable[[], object]) -> AsyncIterator[bytes]:
    """Yield server-sent events: ``run``, ``none`` while it does not record, and ``tables``.

    Parameters
    ----------
    mark
        Changes with any table of the lake; may raise `LakeError`.
    """
    known = None
    while True:
        with suppress(LakeError):
            now = await run_in_threadpool(mark)
            if known is not None and now != known:
                yield b"event: tables\ndata: {}\n\n"
            known = now
        facts = await run_in_threadpool(live.look, run)
        event, data = ("none", json.dumps({"run": run})) if facts is None else ("run", facts)
        yield f"event: {event}\ndata: {data}\n\n".encode()
        await asyncio.sleep(EVERY_S)
