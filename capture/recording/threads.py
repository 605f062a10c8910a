"""Threads: the threads of a recorder: one seals, one uploads, one recovers what dead processes left.

    sealer     each second: clocks noted, gaps written down, a heartbeat if one is due
               each minute, or when a file is full: files cut and sealed; forked children that have died adopted
    uploader   when something is sealed, and when the breaker lets it try again
    recovery   once, at the start
    syncer     see `ranklake.capture.recording.syncer`

While the node has an agent, the uploader only looks whether it does its work, and nothing is adopted here.

Training waits for none of them but in `flush` and `close`, for as long as their callers say.
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
    """Wakes one thread."""

    def __init__(self) -> None:
        self._notices: queue.SimpleQueue[None] = queue.SimpleQueue()

    def set(self) -> None:
        """Wake it, or have it not fall asleep."""
        self._notices.put(None)

    def wait(self, timeout_s: float) -> None:
        """Sleep until woken, or for so long; all wakings so far count as one."""
        with contextlib.suppress(queue.Empty):
            self._notices.get(timeout=timeout_s)
            while True:
                self._notices.get_nowait()


ANCHOR_EVERY_S: Final = 10.0
ADOPT_EVERY_S: Final = 5.0
DEVICE_HOLD_NS: Final = 2_000_000_000
_SETTLE_S: Final = 10.0
_PATIENCE_S: Final = 1.0


class RecorderThreads:
    """Looks after one recorder in the process that started it.

    Parameters
    ----------
    recorder
        Its stream is open.
    storage_options
        For the spool, handed to fsspec.
    expects_late_values
        Says whether values are on their way from a device into slots that are written.
    each_second
        Called by the sealer's thread, which gives whatever it records to the next sealing.
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
        self._stopping = self._finished = False
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
        # Ranks start together; if they also sealed together, the store would have all of them at once each minute.
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

        Raises `RuntimeError` if the system gives none; then everything stays in the local spool.
        """
        self._spares.start()
        self._syncer.start()
        for thread in self._threads:
            thread.start()

    def _slots_every_s(self) -> float:
        return self._settings.seal_slots_every_s(self._recorder.launch.world_size)

    def note_fork(self) -> None:
        """Remember that this process has children whose streams it may have to adopt."""
        self._forked = self._syncer.forked = True

    def flush_soon(self) -> None:
        """Have everything sealed and sent now, without waiting for it."""
        self._flushes.append(threading.Event())
        self._sealer_wakes.set()

    def flush(self, timeout_s: float) -> bool:
        """Seal all rows recorded so far and upload them; True if the spool has them all in time."""
        deadline = time.monotonic() + timeout_s
        done = threading.Event()
        self._flushes.append(done)
        self._sealer_wakes.set()
        if not done.wait(timeout_s):
            return False
        return self._uploading.push(deadline) == 0

    def stop(self, timeout_s: float) -> None:
        """Seal the rest and upload it for at most `timeout_s`. The recorder is closed already."""
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
                "close", f"not finished in {timeout_s:.0f} s; what is left in {self._recorder.root} is not lost"
            )

    def _keep_sealing(self) -> None:
        self._guarded(self._recorder.keys.active, "reading the keys")  # a bad one is reported at once
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
            self._flushes.extendleft(reversed(flushes))  # they wait for a round that succeeds
            raise
        for done in flushes:
            done.set()

    def _round(self, *, flush: bool) -> None:
        recorder = self._recorder
        self._leave_vanished()
        stream = recorder.require()
        now = time.monotonic()
        if now >= self._next["anchor"]:
            self._guarded(recorder.note_time, "noting the time")
            self._next["anchor"] = now + ANCHOR_EVERY_S
        self._guarded(self._each_second, "looking after the run")
        stream = recorder.require()  # it may be another rank's by now
        recorder.gap_notes.flush()
        self._guarded(lambda: self._evict(stream), "making room")
        if flush or now >= self._next["seal"]:
            self._next["seal"] = now + self._settings.seal_every_s
            recorder.gap_notes.record_events()
            held = DEVICE_HOLD_NS if self._expects_late_values() and not flush else 0
            is_due = flush or now >= self._next["slots"]
            if is_due:
                self._next["slots"] = now + self._slots_every_s()
            recorder.end_files(slots=is_due, hold_ns=held, patience_s=_SETTLE_S if flush else 0.0)
        else:
            recorder.collect()
        self._seal(stream)
        if self._forked and now >= self._next["adopt"]:
            self._adoption.adopt_children(stream, self._patience_s)
            self._next["adopt"] = now + ADOPT_EVERY_S

    def _seal(self, stream: Stream, *, final: bool = False) -> None:
        recorder = self._recorder
        files = recorder.to_seal(last=final)
        if not files and not final:
            return
        recorder.keys.active()  # without one, nothing more is done
        # An anchor behind the last row: with both ends fixed, sealing again gives the same times.
        self._guarded(stream.anchor, "noting the time")

        def report(sealed: SealedSegment) -> None:
            stream.waiting[sealed.file.path.name] = (sealed.file.table, sealed.file.rows)
            recorder.gap_notes.count_left_out(sealed.file.table, sealed.gaps_by_reason)

        try:
            seal(sealing_of(stream, recorder.keys), files, final=final, report=report)
        finally:  # what was sealed before a failure is on its way all the same
            recorder.unsealed.forget_sealed()
            self._uploading.wake()

    def _finish(self) -> None:
        recorder = self._recorder
        self._leave_vanished()
        recorder.reopen_for_the_end()
        recorder.gap_notes.flush()
        recorder.collect()
        stream = recorder.require()
        finish(stream.folder, stream.note, partial(self._given_up, stream))
        self._seal(stream, final=True)
        self._finished = True
        if self._forked and recorder.stream is not None:
            self._adoption.adopt_children(recorder.stream, self._patience_s)

    def _leave_vanished(self) -> None:
        """Give up a stream whose folder vanished, once it is known whether what is being sent of it has arrived.

        While that takes long, the stream is kept: nothing is sealed then, and what is recorded finds no new files.
        """
        recorder = self._recorder
        if recorder.stream is None or not recorder.stream.is_gone():
            return
        known = self._uploading.lock.acquire(timeout=self._patience_s())
        try:
            if known or self._stopping:
                recorder.abandon_stream()
        finally:
            if known:
                self._uploading.lock.release()

    def reassign(self, launch: Launch) -> bool:
        """Record for another run or rank from here on, see `ranklake.capture.recording.reassignment`.

        The sealer's thread does it; another waits for that. False, and nothing is done, while what was recorded is
        being sent.
        """
        if threading.current_thread() is self._threads[0] or not self._threads[0].is_alive():
            return self._reassign(launch)
        return self._reassignments.ask(launch, self._sealer_wakes.set)

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
        """Return how long the sealer may wait for a segment that is being sent."""
        return max(0.0, min(_PATIENCE_S, self._deadline - time.monotonic()) if self._stopping else _PATIENCE_S)

    def _evict(self, stream: Stream) -> None:
        """Give up what waits longest, where that was chosen and the disk budget is nearly used up."""
        if self._settings.backpressure != "drop_oldest":
            return
        on_delete = partial(self._given_up, stream)
        finish(stream.folder, stream.note, on_delete)
        make_room(self._recorder.budget, stream, on_delete)

    def _given_up(self, stream: Stream, file: SealedFile) -> None:
        stream.waiting.pop(file.path.name, None)
        self._recorder.gap_notes.count_given_up(file.table, file.rows)

    def _keep_uploading(self) -> None:
        while not self._stopping:
            self._uploading.begin_round()
            self._guarded(self._uploading.send_what_waits, "uploading")
            self._uploading.wait()
        # The stream is let go of when nobody seals in it any more, however late; `stop` does not wait for that.
        self._sealing_over.wait()
        finish = partial(self._uploading.finish, self._deadline, all_sealed=self._finished)
        self._guarded(finish, "uploading at the end")

    def report_late(self) -> None:
        """Write down what was refused after the close; see `ranklake.capture.recording.uploading`."""
        report_late(self._recorder, self._uploading, is_finished=self._finished)

    def _guarded(self, work: Callable[[], object], doing: str) -> None:
        """Do something whose failure must end neither the thread nor the training."""
        try:
            work()
        except (OSError, RefusedError) as error:  # the local spool is full or away: try again in a second
            self._recorder.gaps.warn(doing, f"{doing}: {error}; trying again")
            if isinstance(error, OSError) and error.errno == errno.ENOSPC:
                self._spares.make_room()
        except EncryptionError as error:
            message = f"nothing is sealed or sent: {error}; it waits in {self._recorder.root}; trying again"
            self._recorder.gaps.warn("encryption", message)
        except Exception as error:  # noqa: BLE001 - a bug of ours
            self._recorder.gaps.warn(doing, f"{doing} failed: {type(error).__name__}: {error}")
