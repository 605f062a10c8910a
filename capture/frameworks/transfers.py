"""Transfers: record how long frameworks take to save and load checkpoints, and failures."""

import contextlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ranklake.capture.common.values import text
from ranklake.capture.frameworks.follower import Follower

_NUMBER: Final = re.compile(r"checkpoint-(\d{1,15})/?\Z")


@dataclass(slots=True)
class Transfer:
    """A checkpoint being saved or loaded.

    The block may set `place` and `step`. If it sets `problem`, the reason, the transfer is recorded as failed.
    """

    place: object
    step: int | None = None
    problem: str = ""


@contextlib.contextmanager
def saving(follower: Follower, place: object, step: int | None, *, is_main: bool) -> Iterator[Transfer]:
    """Record that the block saves a checkpoint: phase ``checkpoint``, and a row on the main rank.

    A failure is recorded on each rank that has it.
    """
    transfer, start_s = Transfer(place, step), time.monotonic()
    try:
        with follower.run.phase("checkpoint"):
            yield transfer
    except BaseException as error:
        record_failure(follower, "save_failed", transfer, error, time.monotonic() - start_s)
        raise
    if is_main:
        with follower.contain_errors():
            follower.checkpoint(transfer.place, transfer.step, time.monotonic() - start_s)


@contextlib.contextmanager
def loading(follower: Follower, place: object, step: int | None = None, *, is_main: bool) -> Iterator[Transfer]:
    """Record that the block loads a checkpoint: a row on the main rank.

    A failure is recorded on each rank that has it.
    """
    transfer, start_s = Transfer(place, step), time.monotonic()
    try:
        yield transfer
    except BaseException as error:
        record_failure(follower, "load_failed", transfer, error, time.monotonic() - start_s)
        raise
    spent_s = time.monotonic() - start_s
    if transfer.problem:
        record_failure(follower, "load_failed", transfer, None, spent_s)
    elif is_main:
        with follower.contain_errors():
            loads = follower.run.rows.artifacts.loads
            loads.record_load(text(transfer.place), spent_ns=round(spent_s * 1e9), step=transfer.step)


def record_failure(
    follower: Follower, action: str, transfer: Transfer, error: BaseException | None, spent_s: float
) -> None:
    """Record that a checkpoint could not be saved or loaded."""
    with follower.contain_errors():
        attributes = {"reason": transfer.problem} if transfer.problem else None
        follower.run.rows.artifacts.loads.failed(
            action, text(transfer.place), error, spent_ns=round(spent_s * 1e9), step=transfer.step,
            attributes=attributes,
        )  # fmt: skip


def step_of(place: object) -> int | None:
    """Return the step of a folder ``checkpoint-<step>`` of Transformers; None for other names."""
    match = _NUMBER.search(str(place))
    return int(match[1]) if match else None
