"""Late gaps: what was refused after the close, written down as a stream that has nothing but gaps."""

import time
from typing import Final

from ranklake.capture.common.gaps import RefusedError
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.recording.uploading import Uploading
from ranklake.capture.sealing.seal import seal, sealing_of

_SEND_S: Final = 5.0


def report_late(recorder: Recorder, uploading: Uploading, *, is_finished: bool) -> None:
    """Write down what was refused after the close, and send it.

    Called at interpreter exit. Where there is no place for a stream the count is told and lost.

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
