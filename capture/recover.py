"""Recover: seals and uploads what dead processes left, once."""

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
    """Seal and upload the streams below a local spool whose processes are dead.

    Parameters
    ----------
    local_dir
        The local spool; by default as for `start`.
    spool
        Where segments go; only streams meant for it are touched. Without one, each goes where its process meant it to.
    storage_options
        Handed to fsspec.
    encryption_key, signing_key
        As `ranklake.capture.common.settings.CaptureSettings` has them; by default what the environment or
        ``ranklake.toml`` says.

    Returns
    -------
    What was done. A stream that cannot be finished is left as it is and reported; the others are not held up.

    Raises
    ------
    LocalSpoolError
        The local spool cannot be used.
    """
    given = {"encryption_key": encryption_key, "signing_key": signing_key}
    settings = read_settings(given, os.environ, Gaps.tell)
    keys = SealingKeys(settings.encryption_key, settings.signing_key)
    return Recovery(local_root(local_dir), spool_uri(spool), storage_options, keys=keys).run()
