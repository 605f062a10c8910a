"""Reassignment: assign a process's rows to the correct rank or run, once it is known.

    previous rows    not sealed yet: the stream's folder is renamed to the correct rank
                     sealed or sent: they keep the previous rank, and a warning is logged
    later rows       are written to a new stream of the correct rank

If the process is killed in between, recovery seals the streams that it leaves, each for the rank in its folder's name.
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
from ranklake.capture.recording.recovery import adopted
from ranklake.capture.recording.upload import Uploader
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.meta import ENDED, read_meta
from ranklake.capture.spool.stream import Stream
from ranklake.capture.spool.stream_files import StreamName

_REQUEST_TIMEOUT_S: Final = 5.0


@dataclass
class _ReassignmentRequest:
    """A reassignment that another thread requested and waits for."""

    launch: Launch
    completed: threading.Event = field(default_factory=threading.Event)
    is_successful: bool = False


class Reassignments:
    """Requests of other threads to the sealer's thread.

    Parameters
    ----------
    reassign
        Reassigns the process; returns whether it was done.
    """

    def __init__(self, reassign: Callable[[Launch], bool]) -> None:
        self._reassign = reassign
        self._requests: deque[_ReassignmentRequest] = deque()

    def request(self, launch: Launch, wake: Callable[[], object]) -> bool:
        """Request a reassignment and wait for it; return whether it was done in time."""
        request = _ReassignmentRequest(launch)
        self._requests.append(request)
        wake()
        request.completed.wait(_REQUEST_TIMEOUT_S)
        return request.is_successful

    def serve(self) -> None:
        """Handle pending requests; called by the sealer's thread. Raises the error of a reassignment."""
        while self._requests:
            request = self._requests.popleft()
            try:
                request.is_successful = self._reassign(request.launch)
            finally:
                request.completed.set()


def reassign(recorder: Recorder, launch: Launch) -> Path | None:
    """Make a recorder record for another run or rank; called by the sealer's thread.

    Returns
    -------
    The folder of the previous stream, which `finish` seals; None if there is none. If the folder cannot be renamed, it
    keeps the previous rank, and a warning is logged.
    """
    before = recorder.launch
    is_sealed = recorder.stream is not None and _is_sealed(recorder.stream)
    if is_sealed:
        _record_change(recorder, before, launch)
        row = {"event": "rank_end", "severity": "info", "message": f"continues as rank {launch.rank} of {launch.run}"}
        recorder.records["events"].append(time.monotonic_ns(), row)
    stream = recorder.reassign(launch)
    if stream is None:
        return None
    name = stream.name
    if not is_sealed:
        name = StreamName(launch.run, launch.attempt, launch.rank, stream.name.incarnation)
    try:
        stream.anchor()  # after the last row, as before sealing
        stream.note(ENDED)
        return stream.give_to(name, before.world_size if is_sealed else launch.world_size)
    except OSError as error:
        recorder.gaps.warn("rank known late", f"{stream.folder} cannot be given to rank {launch.rank}: {error}")
        stream.close()
        return stream.folder


def finish(folder: Path, keys: SealingKeys, uploader: Uploader | None) -> None:
    """Seal and upload the stream from before a reassignment. Without an uploader, segments wait for recovery.

    Raises the errors of `ranklake.capture.recording.recovery.AbandonedStream.finish`; the stream waits for recovery
    then.
    """
    with adopted(folder, keys) as stream:
        if stream is not None:
            stream.finish(uploader)


def _record_change(recorder: Recorder, before: Launch, launch: Launch) -> None:
    if (before.run, before.attempt, before.rank) == (launch.run, launch.attempt, launch.rank):
        return
    recorder.gaps.warn(
        "rank known late",
        f"this process is rank {launch.rank} of {launch.world_size} of run {launch.run!r}, which was not known when "
        f"recording started; earlier rows are stored as rank {before.rank} of run {before.run!r}: start recording "
        f"after torch.distributed.init_process_group, or pass rank= and world_size=",
    )


def _is_sealed(stream: Stream) -> bool:
    try:
        return bool(read_meta(stream.folder).sealed)
    except OSError:
        return False
