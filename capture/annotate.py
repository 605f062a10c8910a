"""Annotate: send a person's notes on a run or an artifact to the spool, as segments of a new stream."""

import hashlib
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from ranklake.capture.recording.upload import Uploader, UploadError
from ranklake.capture.sealing.keys import NO_KEYS, ActiveKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.capture.sealing.rows import NO_ROWS, Rows
from ranklake.capture.sealing.segment_bytes import Origin, segment_bytes
from ranklake.capture.spool.meta import Meta
from ranklake.capture.spool.stream import new_incarnation
from ranklake.capture.spool.stream_files import SealedFile, StreamName
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract

ANNOTATIONS, ARTIFACTS = "annotations", "artifacts"
_EQUAL_CLOCKS = ((0, 0),)
"""Clock anchor under which monotonic and wall time are equal: rows have the time at which they are sent."""
_UPLOAD_TIMEOUT_S = 30.0


def annotate(
    run: str,
    annotations: Sequence[Mapping[str, Any]],
    spool: str,
    options: Mapping[str, Any],
    keys: ActiveKeys = NO_KEYS,
    masks: SealedMasks | None = None,
    table: str = ANNOTATIONS,
) -> None:
    """Send rows about a run to the spool. The next ingest adds them to their table.

    Parameters
    ----------
    annotations
        Rows of `ranklake.capture.provenance.annotations.annotation`, or rows of ``artifacts``. A later row replaces an
        earlier one on the same subject.
    options
        Options for fsspec.
    masks
        Masks that are applied before rows are sent.
    table
        Table of the rows.

    Raises `UploadError`. Segments that were sent before the error stay in the spool and are ingested.
    """
    name = StreamName(run, 0, 0, new_incarnation())
    uploader, meta = Uploader(spool, options), Meta()
    masked = (masks or SealedMasks()).mask_rows(table, _rows(table, annotations))
    for segment_table, rows in ((table, masked), ("events", NO_ROWS)):  # the last segment has the stream's totals
        raw, footer = segment_bytes(
            Origin(name, 0, ""), meta, segment_table, 0, rows, _EQUAL_CLOCKS, final=True, keys=keys
        )
        meta.add_sealed(segment_table, 0, len(rows), footer.gaps, final=True)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        file = SealedFile(Path(), segment_table, 0, day, len(rows), hashlib.sha256(raw).hexdigest(), footer.key_id)
        if not uploader.send(file.remote(name), raw, time.monotonic() + _UPLOAD_TIMEOUT_S):
            message = f"the spool cannot be written ({uploader.last_error})"
            raise UploadError(message, where=spool, hint="fix the cause and run the command again")


def _rows(table: str, annotations: Sequence[Mapping[str, Any]]) -> Rows:
    count = len(annotations)
    columns = {
        field.name: pa.array([row.get(field.name) for row in annotations], field.type)
        for field in arrow_schema(contract(table), segment=True)
        if any(field.name in row for row in annotations)
    }
    times_ns = time.time_ns() + 1000 * np.arange(count, dtype=np.int64)  # one microsecond apart: order is kept
    return Rows(times_ns, np.arange(count, dtype=np.int64), columns, 0)
