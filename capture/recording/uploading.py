"""Uploading: decide when one recorder's segments are sent, and whether this process or the node's agent sends them."""

import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.recovery import Recovery, recover_stream
from ranklake.capture.recording.upload import Uploader
from ranklake.capture.sealing.seal import seal, sealing_of
from ranklake.capture.spool.leader import leader
from ranklake.capture.spool.stream import Stream
from ranklake.capture.spool.stream_files import SealedFile, open_files, sealed_files

AGENT_EVERY_S: Final = 5.0


class Uploading:
    """Sends the sealed segments of one recorder. A single thread calls `wait`, `send_waiting` and `finish`.

    Parameters
    ----------
    storage_options
        Options of the spool for fsspec.
    guarded
        Runs some work, and logs its errors instead of raising them.

    Attributes
    ----------
    storage_options
        As given.
    uploader
        None for a run without a spool.
    lock
        Acquired while segments of the stream are sent, or must not be sent.
    """

    def __init__(
        self,
        recorder: Recorder,
        storage_options: Mapping[str, Any],
        guarded: Callable[[Callable[[], object], str], None],
    ) -> None:
        self._recorder, self._guarded = recorder, guarded
        self.storage_options = storage_options
        self.uploader = Uploader(recorder.spool, storage_options) if recorder.spool else None
        self.lock = threading.Lock()
        self._wake_event = threading.Event()
        self._next_round_s: float | None = None  # until the next round without a wake-up

    def wake(self) -> None:
        """Start the next round immediately."""
        self._wake_event.set()

    def begin_round(self) -> None:
        """Begin a round. A later call of `wake` causes another round."""
        self._wake_event.clear()
        self._next_round_s = AGENT_EVERY_S

    def wait(self) -> None:
        """Wait until the next round."""
        self._wake_event.wait(self._next_round_s)

    def send_waiting(self) -> None:
        """Upload sealed segments, or leave them to the agent; set the time of the next round."""
        if self._left_to_agent():
            return
        left = self.push(None) if self._recorder.stream is not None else 0
        breaker = self.uploader.breaker if left and self.uploader is not None else None
        self._next_round_s = None if breaker is None else max(0.05, breaker.left_s())

    def has_agent(self) -> bool:
        """Whether the node has an agent that uploads to this spool."""
        agent = leader(self._recorder.root)
        return agent is not None and agent.uploads_to(self._recorder.spool)

    def _left_to_agent(self) -> bool:
        """Delete segments that the node's agent has sent; return whether the others are left to the agent."""
        stream = self._recorder.stream
        if stream is None or not stream.waiting:
            return False
        self._guarded(stream.note_acks, "noting what the agent has sent")
        if not self.has_agent():
            return False
        oldest = min((since for name in list(stream.waiting) if (since := _sealed_at(stream, name))), default=None)
        return oldest is None or time.time() - oldest < self._recorder.settings.agent_patience_s

    def push(self, deadline: float | None) -> int:
        """Upload sealed segments; return how many are left."""
        stream = self._recorder.stream
        if stream is None:
            return 0
        patience = -1.0 if deadline is None else max(0.0, deadline - time.monotonic())
        if not self.lock.acquire(timeout=patience):
            return 1
        try:
            if self.uploader is None:
                return len(sealed_files(stream.folder))
            acked = partial(_acknowledge_file, stream)
            is_late = partial(_is_past, deadline)
            result = self.uploader.push(stream.folder, acked=acked, stop=is_late, deadline=deadline)
        except OSError:  # such as a deleted folder, which the sealer handles
            return 1
        finally:
            self.lock.release()
        if result.left and self.uploader.last_error:  # without an error, the deadline came before any attempt failed
            self._recorder.gaps.warn("upload", f"the spool cannot be reached, trying on: {self.uploader.last_error}")
        return result.left

    def finish(self, deadline: float, *, all_sealed: bool) -> None:
        """Upload the last segments. Delete the stream if all were sent, else leave it to recovery."""
        if self._left_to_agent():
            stream, self._recorder.stream = self._recorder.stream, None
            if stream is not None:
                stream.close()
            return
        left = self.push(deadline)
        stream, self._recorder.stream = self._recorder.stream, None
        if stream is None:
            return
        if left == 0 and all_sealed and not _any_open(stream):
            stream.discard()
            return
        stream.close()
        if self.uploader is None:
            self._recorder.gaps.warn(
                "close", f"no spool is set; the segments wait in {stream.folder} for `ranklake agent`"
            )
        else:
            self._recorder.gaps.warn(
                "close", f"{left} segments wait in {stream.folder}; recovery or `ranklake agent` sends them"
            )


def _is_past(deadline: float | None) -> bool:
    return deadline is not None and time.monotonic() > deadline


def _sealed_at(stream: Stream, name: str) -> float | None:
    """Return when a segment was sealed, in wall seconds since 1970; None if its file was deleted."""
    try:
        return (stream.folder / name).stat().st_mtime
    except OSError:
        return None


def _any_open(stream: Stream) -> bool:
    """Whether there are unsealed files, such as one with a write that never ended."""
    try:
        return bool(open_files(stream.folder))
    except OSError:  # the folder vanished
        return False


def _acknowledge_file(stream: Stream, file: SealedFile) -> None:
    stream.waiting.pop(file.path.name, None)


_SEND_TIMEOUT_S: Final = 5.0


def report_late(recorder: Recorder, uploading: Uploading, *, is_finished: bool) -> None:
    """Record the rows that were refused after the close as gaps, and upload them.

    Called at interpreter exit. If no stream can be created, the count is logged and lost.

    Parameters
    ----------
    is_finished
        Whether all files of the recorder are sealed, so that its stream takes no more gaps.
    """
    is_sending = recorder.stream is not None  # the last segments are still being sent
    if is_sending and not is_finished:  # the process that seals the rest counts them
        recorder.gap_notes.flush()
        return
    counts = recorder.gaps.drain()
    if not counts:
        return
    try:
        stream = recorder.new_stream()
    except RefusedError as refused:
        rows = counts.total()
        recorder.gaps.warn("late", f"{rows} gaps are in no segment, because no stream can be made: {refused.detail}")
        return
    stream.note_gaps(counts)
    seal(sealing_of(stream, recorder.keys), [], final=True)
    if uploading.uploader is not None and not is_sending:
        result = uploading.uploader.push(stream.folder, deadline=time.monotonic() + _SEND_TIMEOUT_S)
        if result.left == 0:
            stream.discard()
            return
    stream.close()


class Adoption:
    """Adopts streams of dead processes for one recorder.

    Parameters
    ----------
    uploading
        Uploads their segments.
    guarded
        Runs some work, and logs its errors instead of raising them.
    is_over
        Whether to stop.
    """

    def __init__(
        self,
        recorder: Recorder,
        uploading: Uploading,
        guarded: Callable[[Callable[[], object], str], None],
        is_over: Callable[[], bool],
    ) -> None:
        self._recorder, self._uploading = recorder, uploading
        self._guarded, self._is_over = guarded, is_over

    def recover(self) -> None:
        """Recover the streams of dead processes in the local spool, once."""
        if self._uploading.has_agent():
            return
        recorder, uploading = self._recorder, self._uploading
        recovery = Recovery(recorder.root, recorder.spool, uploading.storage_options, uploading.uploader, recorder.keys)
        self._guarded(lambda: recovery.run(stop=self._is_over), "recovering what dead processes left")

    def adopt_children(self, stream: Stream, patience_s: Callable[[], float]) -> None:
        """Adopt the streams of this process's forked children that have died.

        Parameters
        ----------
        patience_s
            Returns how many seconds to wait for a running upload, before each stream.
        """
        if self._uploading.has_agent():
            return
        for folder in sorted(stream.folder.parent.glob(f"r{stream.name.rank:05d}-*")):
            if folder != stream.folder and self._uploading.lock.acquire(timeout=patience_s()):
                family, keys = stream.owner.family, self._recorder.keys
                adopt = partial(recover_stream, folder, self._uploading.uploader, family=family, keys=keys)
                try:
                    self._guarded(adopt, f"recovering {folder}")  # a damaged stream must not block others
                finally:
                    self._uploading.lock.release()
