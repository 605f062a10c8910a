"""Transfers: checkpoints that a framework saves and loads, timed, and reported where they fail."""

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
    """A checkpoint on its way: its place and step, which may be known only afterwards; `lacks` says why it failed."""

    place: object
    step: int | None = None
    lacks: str = ""


@contextlib.contextmanager
def saving(follower: Follower, place: object, step: int | None, *, is_main: bool) -> Iterator[Transfer]:
    """Record what is saved within: phase ``checkpoint``, and a row by the main rank, or by each on which it fails."""
    moved, began = Transfer(place, step), time.monotonic()
    try:
        with follower.run.phase("checkpoint"):
            yield moved
    except BaseException as error:
        failed(follower, "save_failed", moved, error, time.monotonic() - began)
        raise
    if is_main:
        with follower.contain_errors():
            follower.checkpoint(moved.place, moved.step, time.monotonic() - began)


@contextlib.contextmanager
def loading(follower: Follower, place: object, step: int | None = None, *, is_main: bool) -> Iterator[Transfer]:
    """Record what is loaded within: a row by the main rank, or by each on which it fails."""
    moved, began = Transfer(place, step), time.monotonic()
    try:
        yield moved
    except BaseException as error:
        failed(follower, "load_failed", moved, error, time.monotonic() - began)
        raise
    spent_s = time.monotonic() - began
    if moved.lacks:
        failed(follower, "load_failed", moved, None, spent_s)
    elif is_main:
        with follower.contain_errors():
            loads = follower.run.rows.artifacts.loads
            loads.record_load(text(moved.place), spent_ns=round(spent_s * 1e9), step=moved.step)


def failed(follower: Follower, action: str, moved: Transfer, error: BaseException | None, spent_s: float) -> None:
    """Record that a checkpoint could not be saved or loaded."""
    with follower.contain_errors():
        facts = {"reason": moved.lacks} if moved.lacks else None
        loads = follower.run.rows.artifacts.loads
        loads.failed(action, text(moved.place), error, spent_ns=round(spent_s * 1e9), step=moved.step, attributes=facts)


def step_of(place: object) -> int | None:
    """Return the step that Transformers names a checkpoint's folder by; None for other names."""
    match = _NUMBER.search(str(place))
    return int(match[1]) if match else None
