"""Adoption: a recorder's process takes over streams of processes that are dead, where no agent of the node does."""

from collections.abc import Callable
from functools import partial

from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.uploading import Uploading
from ranklake.capture.recover import Recovery, recover_stream
from ranklake.capture.spool.stream import Stream


class Adoption:
    """Takes over others' streams for one recorder.

    Parameters
    ----------
    uploading
        Sends what they hold.
    guarded
        Does something whose failure must end neither the thread nor the training, and tells of it.
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
