"""Live run: one run in the local spool, looked at again and again."""

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

from ranklake.capture.live.facts import LiveRun, facts_of
from ranklake.capture.live.live_stream import LiveStream
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.files import may_serve
from ranklake.capture.spool.stream_files import StreamName, open_files, streams
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.segments.run_names import readable_name


class NoLiveRunError(RanklakeError):
    """The local spool has no such run."""


def runs_here(root: Path) -> dict[str, float]:
    """Return the runs in a local spool that record steps, each with the time when it last made a file for them."""
    found: dict[str, float] = {}
    for folder in streams(root, may_serve):
        name = StreamName.of(folder)
        try:
            times = [file.path.stat().st_ctime for file in open_files(folder) if file.table == "steps"]
        except OSError:  # gone meanwhile
            continue
        if name is not None and times:
            found[name.run] = max(found.get(name.run, 0.0), *times)
    return found


def named_here(root: Path, said: str) -> str:
    """Return the run of a name, or whose name alone, or name for people, begins so; without a name the latest.

    Raises `NoLiveRunError`.
    """
    there = sorted({name.run for folder in streams(root, may_serve) if (name := StreamName.of(folder))})
    stepping = runs_here(root)
    if not said and stepping:
        return max(stepping, key=lambda run: stepping[run])
    begun = [run for run in there if said and (run.startswith(said) or readable_name(run).startswith(said))]
    if said in there or len(begun) == 1:
        return said if said in there else begun[0]
    where = f"local spool {root}"
    if len(begun) > 1:
        hint = f"write more of the name: {', '.join(begun[:6])}"
        raise NoLiveRunError(f"{len(begun)} runs begin with {said!r}", where=where, hint=hint)
    what = f"no run {said!r} records here" if said else "no run records here"
    told = f"{did_you_mean(said, there)} " if said and there else ""
    hint = f"{told}'ranklake show RUN' tells of runs in the lake"
    raise NoLiveRunError(what, where=where, hint=hint)


@dataclass
class Watched:
    """A run in a local spool, and what was seen of its latest attempt so far.

    Nothing is written, and no process is asked or held up: its files are read as they are.
    """

    root: Path
    run: str
    keys: SealingKeys = field(default_factory=SealingKeys)
    attempt: int = 0
    _streams: dict[Path, LiveStream] = field(default_factory=dict)

    def look(self) -> LiveRun:
        """Look at the run once more. Raises `OSError` if the local spool may not be read."""
        began_ns = time.time_ns()  # what ended before is seen; what ends meanwhile may be
        there = {folder: name for folder in streams(self.root, may_serve) if (name := self._mine(folder)) is not None}
        self.attempt = max([self.attempt, *(name.attempt for name in there.values())])
        for folder, stream in list(self._streams.items()):
            if stream.name.attempt != self.attempt:
                stream.close()
                del self._streams[folder]
        for folder, name in there.items():
            if name.attempt == self.attempt and folder not in self._streams:
                self._streams[folder] = LiveStream(name, folder, self.keys)
        for stream in self._streams.values():
            stream.look()
        return facts_of(self.run, self.attempt, list(self._streams.values()), began_ns)

    def _mine(self, folder: Path) -> StreamName | None:
        name = StreamName.of(folder)
        return name if name is not None and name.run == self.run else None

    def close(self) -> None:
        """Let go of its files."""
        for stream in self._streams.values():
            stream.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
