"""Uploading: when and by whom one recorder's segments are sent: this process, or the node's agent."""

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
    """Sends the sealed segments of one recorder. One thread calls `wait`, `send_what_waits` and `finish`.

    Parameters
    ----------
    storage_options
        For the spool, handed to fsspec.
    guarded
        Does something whose failure must end neither the thread nor the training, and reports it.

    Attributes
    ----------
    storage_options
        As given.
    uploader
        None for a run without a spool.
    lock
        Held while segments of the stream are sent, or while nobody may send any.
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
        self._wakes = threading.Event()
        self._look_again_s: float | None = None  # after which the uploader looks without being woken

    def wake(self) -> None:
        """Have it looked at once what waits."""
        self._wakes.set()

    def begin_round(self) -> None:
        """Note that it is looked now: who wakes from here on has it looked again."""
        self._wakes.clear()
        self._look_again_s = AGENT_EVERY_S

    def wait(self) -> None:
        """Wait until it is to be looked again."""
        self._wakes.wait(self._look_again_s)

    def send_what_waits(self) -> None:
        """Upload what is sealed, or leave it to the agent; choose when to look again."""
        if self._left_to_agent():
            return
        left = self.push(None) if self._recorder.stream is not None else 0
        breaker = self.uploader.breaker if left and self.uploader is not None else None
        self._look_again_s = None if breaker is None else max(0.05, breaker.left_s())

    def has_agent(self) -> bool:
        """Whether the node has an agent that sends for this spool."""
        agent = leader(self._recorder.root)
        return agent is not None and agent.uploads_to(self._recorder.spool)

    def _left_to_agent(self) -> bool:
        """Note what the node's agent has sent; return whether it is to be trusted with what waits."""
        stream = self._recorder.stream
        if stream is None or not stream.waiting:
            return False
        self._guarded(stream.note_acks, "noting what the agent has sent")
        if not self.has_agent():
            return False
        oldest = min((since for name in list(stream.waiting) if (since := _sealed_at(stream, name))), default=None)
        return oldest is None or time.time() - oldest < self._recorder.settings.agent_patience_s

    def push(self, deadline: float | None) -> int:
        """Upload what is sealed; return how many segments are left."""
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
            late = partial(_is_past, deadline)
            pushed = self.uploader.push(stream.folder, acked=acked, stop=late, deadline=deadline)
        except OSError:  # the folder vanished, say: the sealer sees that, too
            return 1
        finally:
            self.lock.release()
        if pushed.left and self.uploader.last_error:  # else the deadline came before any failure
            self._recorder.gaps.warn("upload", f"the spool cannot be reached, trying on: {self.uploader.last_error}")
        return pushed.left

    def finish(self, deadline: float, *, all_sealed: bool) -> None:
        """Upload the last segments; remove the stream if they all went, else leave it to recovery."""
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
    """Return when a segment was sealed, in wall seconds since 1970; None if its file is gone."""
    try:
        return (stream.folder / name).stat().st_mtime
    except OSError:
        return None


def _any_open(stream: Stream) -> bool:
    """Whether there are files that were not sealed: a write into one never ended, say."""
    try:
        return bool(open_files(stream.folder))
    except OSError:  # the folder vanished
        return False


def _acknowledge_file(stream: Stream, file: SealedFile) -> None:
    stream.waiting.pop(file.path.name, None)


_SEND_S: Final = 5.0


def report_late(recorder: Recorder, uploading: Uploading, *, is_finished: bool) -> None:
    """Write down what was refused after the close, and send it.

    Called at interpreter exit. Where there is no place for a stream the count is reported and lost.

    Parameters
    ----------
    is_finished
        Whether all that was recorded is sealed: nobody looks at the recorder's own stream any more.
    """
    is_sending = recorder.stream is not None  # the last segments are still on their way
    if is_sending and not is_finished:  # whoever seals the rest finds them
        recorder.gap_notes.flush()
        return
    counts = recorder.gaps.drain()
    if not counts:
        return
    try:
        stream = recorder.new_stream()
    except RefusedError as refused:
        rows = counts.total()
        recorder.gaps.warn("late", f"{rows} gaps are in no segment, for lack of a place: {refused.detail}")
        return
    stream.note_gaps(counts)
    seal(sealing_of(stream, recorder.keys), [], final=True)
    if uploading.uploader is not None and not is_sending:
        pushed = uploading.uploader.push(stream.folder, deadline=time.monotonic() + _SEND_S)
        if pushed.left == 0:
            stream.discard()
            return
    stream.close()


class Adoption:
    """Takes over others' streams for one recorder.

    Parameters
    ----------
    uploading
        Sends what they hold.
    guarded
        Does something whose failure must end neither the thread nor the training, and reports it.
    is_over
        Says whether there is no more time for it.
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
        """Recover what dead processes left in the local spool, once."""
        if self._uploading.has_agent():
            return
        recorder, uploading = self._recorder, self._uploading
        recovery = Recovery(recorder.root, recorder.spool, uploading.storage_options, uploading.uploader, recorder.keys)
        self._guarded(lambda: recovery.run(stop=self._is_over), "recovering what dead processes left")

    def adopt_children(self, stream: Stream, patience_s: Callable[[], float]) -> None:
        """Take over the streams of this process's forked children that have died.

        Parameters
        ----------
        patience_s
            Says how long to wait, before each of them, for what is being sent.
        """
        if self._uploading.has_agent():
            return
        for folder in sorted(stream.folder.parent.glob(f"r{stream.name.rank:05d}-*")):
            if folder != stream.folder and self._uploading.lock.acquire(timeout=patience_s()):
                family, keys = stream.owner.family, self._recorder.keys
                adopt = partial(recover_stream, folder, self._uploading.uploader, family=family, keys=keys)
                try:
                    self._guarded(adopt, f"recovering {folder}")  # a damaged one must not block the others, nor a flush
                finally:
                    self._uploading.lock.release()
