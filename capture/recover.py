"""Recover: seal and upload, once, what dead processes left in the local spool."""

import os
from collections.abc import Mapping
from typing import Any

from ranklake.capture.common.gaps import Gaps
from ranklake.capture.common.settings import read_settings
from ranklake.capture.recording.recovery import Recovery, RecoveryResult
from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.locations import local_root, spool_uri


def recover(
    local_dir: str | os.PathLike[str] | None = None,
    spool: str | os.PathLike[str] | None = None,
    storage_options: Mapping[str, Any] | None = None,
    encryption_key: str | None = None,
    signing_key: str | None = None,
) -> RecoveryResult:
    """Seal and upload the streams of dead processes in a local spool.

    Parameters
    ----------
    local_dir
        The local spool; by default as for `start`.
    spool
        Folder or fsspec URI of the spool. Only streams with this destination are sent. By default each stream is sent
        to the destination that its process had.
    storage_options
        Options for fsspec.
    encryption_key, signing_key
        As in `ranklake.capture.common.settings.CaptureSettings`; by default from the environment or ``ranklake.toml``.

    Returns
    -------
    Counts of streams and segments, and errors. A stream that cannot be finished stays unchanged, and its error is in
    the result; the other streams are still processed.

    Raises
    ------
    LocalSpoolError
        The local spool cannot be read or written.
    """
    key_sources = {"encryption_key": encryption_key, "signing_key": signing_key}
    settings = read_settings(key_sources, os.environ, Gaps.log_warning)
    keys = SealingKeys(settings.encryption_key, settings.signing_key)
    return Recovery(local_root(local_dir), spool_uri(spool), storage_options, keys=keys).run()
