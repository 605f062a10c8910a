"""Keeps Delta logs short: occasional checkpoints, and removal of commits older than the log's retention."""

import json
from typing import TYPE_CHECKING

from deltalake import DeltaTable
from deltalake.exceptions import DeltaError

from ranklake.lake.contracts.delta import CHECKPOINT_EVERY
from ranklake.lake.store.reachability import unreachable
from ranklake.lake.tables.tables import asked_again

if TYPE_CHECKING:
    from ranklake.lake.store.store import Lake


def commits_since_checkpoint(lake: "Lake", table: str, handle: DeltaTable) -> int:
    """Return how many commits a reader reads one by one. A damaged pointer to the checkpoint counts as none."""
    try:
        pointer = lake.fs.cat_file(lake.path("tables", table, "_delta_log", "_last_checkpoint"))
        last = int(json.loads(pointer)["version"])
    except FileNotFoundError:
        last = -1
    except (ValueError, KeyError, TypeError, RecursionError):
        last = -1
    return handle.version() - last


def tidy_log(lake: "Lake", table: str, handle: DeltaTable) -> bool:
    """Write a checkpoint if one is due, then remove commits past their retention; return whether one was written.

    delta-rs keeps every commit that the oldest kept version needs. Dying in between leaves a checkpoint more, or a
    commit more. Raises `LakeUnreachableError`.
    """
    due = commits_since_checkpoint(lake, table, handle) >= CHECKPOINT_EVERY
    try:
        if due:
            asked_again(handle.create_checkpoint)
        asked_again(handle.cleanup_metadata)
    except (DeltaError, OSError) as error:
        hint = "check space and rights there; run it again"
        what = f"the log of {table} cannot be tidied"
        raise unreachable(lake.uri, error, lake.storage, what=what, hint=hint) from None
    return due
