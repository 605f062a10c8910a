"""Reassignment: moves a process to the rank or run that it turns out to be.

    what was recorded    not sealed yet: its stream is given to the rank that it is, which the folder's name says
                         sealed, or sent: it stays whose it was, and a warning says so
    what is recorded     goes to a new stream of the rank that it is

A process that is killed in between leaves streams that whoever recovers seals, each for the rank that its folder names.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.recovery import taken_over
from ranklake.capture.recording.upload import Uploader
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.meta import ENDED, read_meta
from ranklake.capture.spool.stream import Stream
from ranklake.capture.spool.stream_files import StreamName

_PATIENCE_S: Final = 5.0


@dataclass
class _ReassignmentRequest:
    """A reassignment that another thread asked for, and waits for."""

    launch: Launch
    over: threading.Event = field(default_factory=threading.Event)
    is_done: bool = False


class Reassignments:
    """Reassignments that other threads asked the sealer's thread for.

    Parameters
    ----------
    reassign
        Does one, and says whether it was done.
    """

    def __init__(self, reassign: Callable[[Launch], bool]) -> None:
        self._reassign = reassign
        self._asked: deque[_ReassignmentRequest] = deque()

    def ask(self, launch: Launch, wake: Callable[[], object]) -> bool:
        """Ask for one, and wait for it; False where it was not done, or not in time."""
        asked = _ReassignmentRequest(launch)
        self._asked.append(asked)
        wake()
        asked.over.wait(_PATIENCE_S)
        return asked.is_done

    def serve(self) -> None:
        """Do those that were asked for; the sealer's thread calls it. Raises what one of them raises."""
        while self._asked:
            asked = self._asked.popleft()
            try:
                asked.is_done = self._reassign(asked.launch)
            finally:
                asked.over.set()


def reassign(recorder: Recorder, launch: Launch) -> Path | None:
    """Have a recorder record for another run or rank; the sealer's thread calls it.

    Returns
    -------
    The folder of what was recorded until then, which `finish` seals; None if there is none. Where it cannot be given to
    the rank, it stays whose it was, and that is reported.
    """
    before = recorder.launch
    is_sealed = recorder.stream is not None and _is_sealed(recorder.stream)
    if is_sealed:
        _record_change(recorder, before, launch)
        row = {"event": "rank_end", "severity": "info", "message": f"goes on as rank {launch.rank} of {launch.run}"}
        recorder.records["events"].append(time.monotonic_ns(), row)
    stream = recorder.reassign(launch)
    if stream is None:
        return None
    name = stream.name
    if not is_sealed:
        name = StreamName(launch.run, launch.attempt, launch.rank, stream.name.incarnation)
    try:
        stream.anchor()  # behind the last row, as when it is sealed here
        stream.note(ENDED)
        return stream.give_to(name, before.world_size if is_sealed else launch.world_size)
    except OSError as error:
        recorder.gaps.warn("rank known late", f"{stream.folder} cannot be given to rank {launch.rank}: {error}")
        stream.close()
        return stream.folder


def finish(folder: Path, keys: SealingKeys, uploader: Uploader | None) -> None:
    """Seal what was recorded before a reassignment, and send it; without an uploader whoever recovers does.

    Raises what `ranklake.capture.recording.recovery.AbandonedStream.finish` raises: then it waits for whoever recovers.
    """
    with taken_over(folder, keys) as taken:
        if taken is not None:
            taken.finish(uploader)


def _record_change(recorder: Recorder, before: Launch, launch: Launch) -> None:
    if (before.run, before.attempt, before.rank) == (launch.run, launch.attempt, launch.rank):
        return
    recorder.gaps.warn(
        "rank known late",
        f"this process is rank {launch.rank} of {launch.world_size} of run {launch.run!r}, which it did not know when "
        f"it began to record; rows until now stand under rank {before.rank} of run {before.run!r}: begin to record "
        f"after torch.distributed.init_process_group, or hand over rank= and world_size=",
    )


def _is_sealed(stream: Stream) -> bool:
    try:
        return bool(read_meta(stream.folder).sealed)
    except OSError:
        return False
