"""Threads: the threads of a recorder: one seals, one uploads, one recovers streams of dead processes.

    sealer     each second: writes anchors and gaps, and a heartbeat if it is due
               each minute, or when a file is full: closes and seals files; adopts streams of dead forked children
    uploader   when a segment was sealed, and when the breaker allows another attempt
    recovery   once, at the start
    syncer     see `ranklake.capture.recording.syncer`

While the node has an agent, the uploader only checks that the agent uploads, and no stream is adopted here.

Training waits for these threads only in `flush` and `close`, up to their timeouts.
"""

import contextlib
import errno
import queue
import random
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.provenance.launcher import Launch
from ranklake.capture.recording.budget import make_room
from ranklake.capture.recording.reassignment import Reassignments, reassign
from ranklake.capture.recording.reassignment import finish as finish_stream
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.syncer import Preallocator, Syncer
from ranklake.capture.recording.uploading import Adoption, Uploading, report_late
from ranklake.capture.sealing.seal import SealedSegment, seal, sealing_of
from ranklake.capture.spool.eviction import finish
from ranklake.capture.spool.stream import Stream
from ranklake.capture.spool.stream_files import SealedFile
from ranklake.segments.envelope import EncryptionError


class Wake:
    """A wake-up call for one thread; may be set in signal handlers."""

    def __init__(self) -> None:
        self._notices: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake the thread; if it is not waiting, its next wait returns immediately."""
        self._notices.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until woken or until the timeout; all calls of `set` so far count as one."""
        with contextlib.suppress(queue.Empty):
            self._notices.get(timeout=timeout_s)
            while True:
                self._notices.get_nowait()


ANCHOR_EVERY_S: Final = 10.0
ADOPT_EVERY_S: Final = 5.0
DEVICE_HOLD_NS: Final = 2_000_000_000
_SETTLE_TIMEOUT_S: Final = 10.0
_LOCK_TIMEOUT_S: Final = 1.0


class RecorderThreads:
    """The threads of one recorder, in the process that started it.

    Parameters
    ----------
    recorder
        A recorder with an open stream.
    storage_options
        Options of the spool for fsspec.
    expects_late_values
        Whether values for written slots are being copied from a GPU.
    each_second
        Called by the sealer's thread each second; its rows are in the next sealing.
    """

    def __init__(
        self,
        recorder: Recorder,
        storage_options: Mapping[str, Any] | None = None,
        *,
        expects_late_values: Callable[[], bool] = lambda: False,
        each_second: Callable[[], object] = lambda: None,
    ) -> None:
        self._recorder = recorder
        self._stopping = self._is_all_sealed = False
        self._uploading = Uploading(recorder, dict(storage_options or {}), self._guarded)
        self._adoption = Adoption(recorder, self._uploading, self._guarded, lambda: self._stopping)
        self._settings = recorder.settings
        self._expects_late_values, self._each_second = expects_late_values, each_second
        self._sealer_wakes = Wake()
        self._flushes: deque[threading.Event] = deque()
        self._reassignments = Reassignments(self._reassign)
        self._sealing_over = threading.Event()
        self._deadline = float("inf")
        self._forked = False
        self._spares = Preallocator(recorder, self._sealer_wakes.set)
        self._syncer = Syncer(recorder, self._spares.make_room)
        self._next = dict.fromkeys(("anchor", "adopt"), 0.0)
        # Ranks start together. Random offsets keep them from uploading all at the same moment each minute.
        now, share = time.monotonic(), random.uniform(0.5, 1.0)  # noqa: S311
        self._next["seal"] = now + self._settings.seal_every_s * share
        self._next["slots"] = now + self._slots_every_s() * share
        self._threads = [
            threading.Thread(target=self._keep_sealing, name="ranklake-seal", daemon=True),
            threading.Thread(target=self._keep_uploading, name="ranklake-upload", daemon=True),
            threading.Thread(target=self._adoption.recover, name="ranklake-recover", daemon=True),
        ]

    def start(self) -> None:
        """Start the threads.

        Raises `RuntimeError` if the system cannot start a thread; all rows then stay in the local spool.
        """
        self._spares.start()
        self._syncer.start()
        for thread in self._threads:
            thread.start()

    def _slots_every_s(self) -> float:
        return self._settings.seal_slots_every_s(self._recorder.launch.world_size)

    def note_fork(self) -> None:
        """Record that this process has forked, so that streams of its children are adopted later."""
        self._forked = self._syncer.forked = True

    def flush_soon(self) -> None:
        """Seal and upload all rows soon, without waiting for the result."""
        self._flushes.append(threading.Event())
        self._sealer_wakes.set()

    def flush(self, timeout_s: float) -> bool:
        """Seal and upload all rows recorded so far. Return whether all of them reached the spool in time."""
        deadline = time.monotonic() + timeout_s
        done = threading.Event()
        self._flushes.append(done)
        self._sealer_wakes.set()
        if not done.wait(timeout_s):
            return False
        return self._uploading.push(deadline) == 0

    def stop(self, timeout_s: float) -> None:
        """Seal the remaining rows and upload for at most `timeout_s`. The recorder must be closed."""
        self._deadline = time.monotonic() + timeout_s
        self._stopping = True
        self._sealer_wakes.set()
        self._uploading.wake()
        self._spares.stop(timeout_s)
        self._syncer.stop(timeout_s)
        for thread in self._threads:
            if thread.ident is not None and thread is not threading.current_thread():
                thread.join(max(0.1, self._deadline + 1.0 - time.monotonic()))
        if any(thread.is_alive() for thread in self._threads[:2]):
            self._recorder.gaps.warn(
                "close", f"not finished in {timeout_s:.0f} s; the rest is in {self._recorder.root} and not lost"
            )

    def _keep_sealing(self) -> None:
        self._guarded(self._recorder.keys.active, "reading the keys")  # reports a bad key early
        while not self._stopping:
            self._sealer_wakes.wait(min(1.0, self._settings.seal_every_s))
            if not self._stopping:
                self._guarded(self._tick, "sealing")
        self._guarded(self._finish, "sealing at the end")
        self._sealing_over.set()
        self._uploading.wake()

    def _tick(self) -> None:
        self._reassignments.serve()
        flushes = [self._flushes.popleft() for _ in range(len(self._flushes))]
        try:
            self._round(flush=bool(flushes))
        except BaseException:
            self._flushes.extendleft(reversed(flushes))  # callers wait for a successful round
            raise
        for done in flushes:
            done.set()

    def _round(self, *, flush: bool) -> None:
        recorder = self._recorder
        self._leave_vanished()
        stream = recorder.require()
        now = time.monotonic()
        if now >= self._next["anchor"]:
            self._guarded(recorder.note_time, "recording an anchor")
            self._next["anchor"] = now + ANCHOR_EVERY_S
        self._guarded(self._each_second, "periodic work of the run")
        stream = recorder.require()  # it may have been reassigned to another rank
        recorder.gap_notes.flush()
        self._guarded(lambda: self._evict(stream), "evicting segments")
        if flush or now >= self._next["seal"]:
            self._next["seal"] = now + self._settings.seal_every_s
            recorder.gap_notes.record_events()
            hold_ns = DEVICE_HOLD_NS if self._expects_late_values() and not flush else 0
            is_due = flush or now >= self._next["slots"]
            if is_due:
                self._next["slots"] = now + self._slots_every_s()
            recorder.end_files(slots=is_due, hold_ns=hold_ns, patience_s=_SETTLE_TIMEOUT_S if flush else 0.0)
        else:
            recorder.collect()
        self._seal(stream)
        if self._forked and now >= self._next["adopt"]:
            self._adoption.adopt_children(stream, self._patience_s)
            self._next["adopt"] = now + ADOPT_EVERY_S

    def _seal(self, stream: Stream, *, final: bool = False) -> None:
        recorder = self._recorder
        files = recorder.files_to_seal(last=final)
        if not files and not final:
            return
        recorder.keys.active()  # raises without a key
        # With an anchor after the last row, sealing again gives the same times.
        self._guarded(stream.anchor, "recording an anchor")

        def report(sealed: SealedSegment) -> None:
            stream.waiting[sealed.file.path.name] = (sealed.file.table, sealed.file.rows)
            recorder.gap_notes.count_sealing_losses(sealed.file.table, sealed.gaps_by_reason)

        try:
            seal(sealing_of(stream, recorder.keys), files, final=final, report=report)
        finally:  # segments sealed before an error are uploaded
            recorder.unsealed.remove_sealed()
            self._uploading.wake()

    def _finish(self) -> None:
        recorder = self._recorder
        self._leave_vanished()
        recorder.reopen_for_gaps()
        recorder.gap_notes.flush()
        recorder.collect()
        stream = recorder.require()
        finish(stream.folder, stream.note, partial(self._count_evicted, stream))
        self._seal(stream, final=True)
        self._is_all_sealed = True
        if self._forked and recorder.stream is not None:
            self._adoption.adopt_children(recorder.stream, self._patience_s)

    def _leave_vanished(self) -> None:
        """Drop a stream whose folder was deleted, after a running upload of it has ended.

        If the upload takes long, the stream is kept; until then nothing is sealed, and no new files are created.
        """
        recorder = self._recorder
        if recorder.stream is None or not recorder.stream.is_gone():
            return
        is_locked = self._uploading.lock.acquire(timeout=self._patience_s())
        try:
            if is_locked or self._stopping:
                recorder.abandon_stream()
        finally:
            if is_locked:
                self._uploading.lock.release()

    def reassign(self, launch: Launch) -> bool:
        """Record for another run or rank from now on, see `ranklake.capture.recording.reassignment`.

        The sealer's thread does it, and other threads wait. Return False, without a change, while a segment is being
        uploaded.
        """
        if threading.current_thread() is self._threads[0] or not self._threads[0].is_alive():
            return self._reassign(launch)
        return self._reassignments.request(launch, self._sealer_wakes.set)

    def _reassign(self, launch: Launch) -> bool:
        if not self._uploading.lock.acquire(timeout=self._patience_s()):
            return False
        try:
            folder = reassign(self._recorder, launch)
            if folder is not None:
                uploader = None if self._uploading.has_agent() else self._uploading.uploader
                self._guarded(partial(finish_stream, folder, self._recorder.keys, uploader), f"sealing {folder}")
        finally:
            self._uploading.lock.release()
        return True

    def _patience_s(self) -> float:
        """Return how many seconds the sealer may wait for a running upload."""
        return max(0.0, min(_LOCK_TIMEOUT_S, self._deadline - time.monotonic()) if self._stopping else _LOCK_TIMEOUT_S)

    def _evict(self, stream: Stream) -> None:
        """Evict the oldest segments if the setting says so and the disk budget is nearly used up."""
        if self._settings.backpressure != "drop_oldest":
            return
        on_delete = partial(self._count_evicted, stream)
        finish(stream.folder, stream.note, on_delete)
        make_room(self._recorder.budget, stream, on_delete)

    def _count_evicted(self, stream: Stream, file: SealedFile) -> None:
        stream.waiting.pop(file.path.name, None)
        self._recorder.gap_notes.count_evicted(file.table, file.rows)

    def _keep_uploading(self) -> None:
        while not self._stopping:
            self._uploading.begin_round()
            self._guarded(self._uploading.send_waiting, "uploading")
            self._uploading.wait()
        # The stream is closed only after sealing has ended, however late; `stop` does not wait for it.
        self._sealing_over.wait()
        finish = partial(self._uploading.finish, self._deadline, all_sealed=self._is_all_sealed)
        self._guarded(finish, "uploading at the end")

    def report_late(self) -> None:
        """Record the rows refused after the close as gaps; see `ranklake.capture.recording.uploading`."""
        report_late(self._recorder, self._uploading, is_finished=self._is_all_sealed)

    def _guarded(self, work: Callable[[], object], doing: str) -> None:
        """Run some work, and log its errors as warnings instead of raising them."""
        try:
            work()
        except (OSError, RefusedError) as error:  # the local spool is full or missing: the next round tries again
            self._recorder.gaps.warn(doing, f"{doing}: {error}; trying again")
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self._spares.make_room()
        except EncryptionError as error:
            message = f"nothing is sealed or sent: {error}; rows wait in {self._recorder.root}; trying again"
            self._recorder.gaps.warn("encryption", message)
        except Exception as error:  # noqa: BLE001 - a bug of ours
            self._recorder.gaps.warn(doing, f"{doing} failed: {type(error).__name__}: {error}")
