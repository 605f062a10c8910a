"""Telling: one line on standard error where a run starts, and one where it ends, on its rank 0."""

import contextlib
import sys

from ranklake.capture.common.gaps import AFTER_CLOSE, DELIBERATE, Gaps
from ranklake.capture.recording.recorder import Recorder
from ranklake.capture.spool.stream import Stream
from ranklake.redaction.redact import redact_uri
from ranklake.segments.run_names import readable_name


def tell_start(recorder: Recorder) -> None:
    """Say what a run is called, where it goes, and how to look at it."""
    run, where = recorder.launch.run, redact_uri(recorder.spool) if recorder.spool else f"{recorder.root} only"
    _say(recorder, f"run {run} ({readable_name(run)}) is recorded to {where}; look: ranklake watch {run}")


def tell_end(recorder: Recorder, stream: Stream | None, gaps: Gaps, media: int = 0) -> None:
    """Say how much rank 0 recorded, what waits to be sent, what was lost or came too late, and what to do next.

    Parameters
    ----------
    stream
        What it was recorded to, after all of it was sealed.
    media
        How many images, tables and texts are among the rows.
    """
    run = recorder.launch.run
    rows = stream.sealed_rows if stream is not None else 0
    waiting = sum(count for _, count in stream.waiting.values()) if stream is not None else 0
    totals = gaps.totals().items()
    late = sum(count for (_, reason), count in totals if reason == AFTER_CLOSE)
    refused = sum(count for (table, reason), count in totals if table == "media" and reason != AFTER_CLOSE)
    lost = sum(count for (_, reason), count in totals if reason not in DELIBERATE) - late - refused
    told = (
        f"run {run} ended: rank {recorder.launch.rank} recorded {rows:,} rows, {waiting:,} not sent yet, {lost:,} lost"
    )
    if media or refused:
        told += f", {media:,} media kept" + (f" and {refused:,} refused" if refused else "")
    if late:
        told += f", {late:,} refused after its end"
    _say(recorder, f"{told}; next: ranklake pipeline, then ranklake show {run}")


def _say(recorder: Recorder, line: str) -> None:
    if recorder.settings.announce == "on" and recorder.launch.rank == 0 and not recorder.is_worker:
        with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or there is none
            sys.stderr.write(f"ranklake: {line}\n")
            sys.stderr.flush()
