"""Annotate: what a person says of a run or an artifact, sent to the spool as segments of a stream of its own."""

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
_WALL = ((0, 0),)
"""The one anchor says that both clocks are the same: rows have the time at which they are sent."""
_PATIENCE_S = 30.0


def annotate(
    run: str,
    annotations: Sequence[Mapping[str, Any]],
    spool: str,
    options: Mapping[str, Any],
    keys: ActiveKeys = NO_KEYS,
    masks: SealedMasks | None = None,
    table: str = ANNOTATIONS,
) -> None:
    """Send rows about a run; the next ingest brings them in.

    Parameters
    ----------
    annotations
        As `ranklake.capture.provenance.annotations.annotation` makes them, or of ``artifacts``; later ones count over
        earlier ones.
    options
        For fsspec.
    masks
        What is masked before it is sent.
    table
        Where the rows go.

    Raises `UploadError`; what was sent by then stays, and counts.
    """
    name = StreamName(run, 0, 0, new_incarnation())
    uploader, meta = Uploader(spool, options), Meta()
    shown = (masks or SealedMasks()).mask_rows(table, _rows(table, annotations))
    for each, rows in ((table, shown), ("events", NO_ROWS)):  # the last says how much there was
        raw, footer = segment_bytes(Origin(name, 0, ""), meta, each, 0, rows, _WALL, final=True, keys=keys)
        meta.add_sealed(each, 0, len(rows), footer.gaps, final=True)
        day = time.strftime("%Y-%m-%d", time.gmtime())
        file = SealedFile(Path(), each, 0, day, len(rows), hashlib.sha256(raw).hexdigest(), footer.key_id)
        if not uploader.send(file.remote(name), raw, time.monotonic() + _PATIENCE_S):
            message = f"the spool cannot be written ({uploader.last_error})"
            raise UploadError(message, where=spool, hint="fix that and say it again")


def _rows(table: str, annotations: Sequence[Mapping[str, Any]]) -> Rows:
    count = len(annotations)
    columns = {
        field.name: pa.array([row.get(field.name) for row in annotations], field.type)
        for field in arrow_schema(contract(table), segment=True)
        if any(field.name in row for row in annotations)
    }
    moments = time.time_ns() + 1000 * np.arange(count, dtype=np.int64)  # one microsecond apart: order is kept
    return Rows(moments, np.arange(count, dtype=np.int64), columns, 0)
