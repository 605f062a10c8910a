"""Rows that a command sends to the spool: what a person says of a run or an artifact."""

from collections.abc import Mapping, Sequence
from typing import Any

from ranklake.capture.annotate import ANNOTATIONS, annotate
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.sealing.masked import SealedMasks
from ranklake.context import Context
from ranklake.segments.storage_options import fsspec_options


def send_rows(context: Context, run: str, rows: Sequence[Mapping[str, Any]], table: str = ANNOTATIONS) -> None:
    """Send rows about a run, signed, encrypted and masked as configured; the next ingest brings them in.

    Raises `ranklake.capture.recording.upload.UploadError`.
    """
    config = context.config
    keys = SealingKeys(config.capture.encryption_key, config.capture.signing_key)
    masks = SealedMasks.of(config.masking_policy, config.masking_key, context.overlay)
    options = fsspec_options(context.spool_uri, config.storage)
    annotate(run, rows, context.spool_uri, options, keys.active(), masks, table)
