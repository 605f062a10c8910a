"""Recover: seals and uploads what dead processes left.

Each stream by itself, see `ranklake.capture.abandoned_stream`: one that cannot be finished holds up no other.
"""

import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ranklake.capture.abandoned_stream import taken_over
from ranklake.capture.common.gaps import LOGGER, Gaps
from ranklake.capture.common.settings import read_settings
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sending.upload import Pushed, Uploader
from ranklake.capture.spool.locations import local_root, spool_uri
from ranklake.capture.spool.stream import sweep
from ranklake.capture.spool.stream_files import (
    streams,
)


@dataclass(frozen=True, slots=True)
class Recovered:
    """What a recovery did.

    Attributes
    ----------
    streams
        Taken over.
    segments, rows
        Uploaded.
    left
        Segments that wait for the spool to be reachable.
    alive, foreign
        Streams passed by: their process runs, or they are meant for another spool.
    troubles
        One line for each stream that could not be finished.
    """

    streams: int = 0
    segments: int = 0
    rows: int = 0
    left: int = 0
    alive: int = 0
    foreign: int = 0
    troubles: tuple[str, ...] = ()


def recover(
    local_dir: str | os.PathLike[str] | None = None,
    spool: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    encryption_key: str | None = None,
    signing_key: str | None = None,
) -> Recovered:
    """Seal and upload the streams below a local spool whose processes are dead.

    Parameters
    ----------
    local_dir
        The local spool; by default as for `start`.
    spool
        Where segments go; only streams meant for it are touched. Without one, each goes where its process meant it to.
    storage_options
        Handed to fsspec.
    encryption_key, signing_key
        As `ranklake.capture.common.settings.CaptureSettings` has them; by default what the environment or
        ``ranklake.toml`` says.

    Returns
    -------
    What was done. A stream that cannot be finished is left as it is and told of; the others are not held up.

    Raises
    ------
    LocalSpoolError
        The local spool cannot be used.
    """
    given = {"encryption_key": encryption_key, "signing_key": signing_key}
    settings = read_settings(given, os.environ, Gaps.tell)
    keys = SealingKeys(settings.encryption_key, settings.signing_key)
    return Recovery(local_root(local_dir), spool_uri(spool), storage_options, keys=keys).run()


@dataclass
class Recovery:
    """One way to recover, repeatable: by `run` once, or by an agent again and again."""

    root: Path
    spool: str
    storage_options: Mapping[str, Any] | None = None
    uploader: Uploader | None = None
    keys: SealingKeys = field(default_factory=SealingKeys)
    _uploaders: dict[str, Uploader] = field(default_factory=dict)

    def run(self, stop: Callable[[], bool] = lambda: False) -> Recovered:
        """Go over all streams once; `stop` is asked before each of them and each upload."""
        counts: Counter[str] = Counter()
        troubles: list[str] = []
        for folder in streams(self.root):
            if stop():
                break
            try:
                done = self._one(folder, stop)
            except Exception as error:  # noqa: BLE001 - one damaged stream must not block the others
                troubles.append(f"{folder}: {type(error).__name__}: {error}")
                LOGGER.warning("ranklake: cannot recover %s: %s", folder, error)
            else:
                if isinstance(done, str):
                    counts[done] += 1
                else:
                    counts.update(streams=1, segments=done.segments, rows=done.rows, left=done.left)
        sweep(self.root)
        return Recovered(**counts, troubles=tuple(troubles))

    def _one(self, folder: Path, stop: Callable[[], bool]) -> Pushed | str:
        with taken_over(folder, self.keys) as taken:
            if taken is None:
                return "alive"
            meant_for = taken.owner.spool if taken.owner is not None else ""
            if self.spool and meant_for and meant_for != self.spool:
                return "foreign"
            return taken.finish(self._uploader_for(self.spool or meant_for), stop)

    def _uploader_for(self, uri: str) -> Uploader | None:
        if self.uploader is not None and self.uploader.uri == uri:
            return self.uploader
        if uri and uri not in self._uploaders:
            self._uploaders[uri] = Uploader(uri, self.storage_options)
        return self._uploaders.get(uri)


def recover_stream(folder: Path, uploader: Uploader | None, *, family: int, keys: SealingKeys) -> Pushed | None:
    """Finish the stream of a dead forked child of the process whose incarnation is `family`; None if it is no such."""
    with taken_over(folder, keys) as taken:
        if taken is None or taken.owner is None or taken.owner.role != "worker" or taken.owner.family != family:
            return None
        return taken.finish(uploader)
