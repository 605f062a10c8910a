"""The table ``stage_runs``: how each run of a stage ended, how long it took, what CPU time and requests it cost.

    round_of(context) ──▶ carry_out(stage …) a row each, in memory ──▶ one commit at the end, however the round ended

A stage that runs outside of a round is a round of its own. That a row cannot be written stops nothing.
"""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Protocol
from uuid import uuid4

import psutil

from ranklake.errors import RanklakeError
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.store_requests import COLUMNS, COUNTS
from ranklake.pipeline.headlines import headline

if TYPE_CHECKING:
    from ranklake.context import Context

TABLE: Final = "stage_runs"
_S3: Final = ("s3://", "s3a://")
_LOG: Final = logging.getLogger(__name__)
Done = dict[str, Any]
Rows = list[dict[str, Any]]
_ROUND: ContextVar[tuple[str, Rows] | None] = ContextVar("ranklake_round", default=None)


class JudgedStage(Protocol):
    """What a stage has: `ranklake.pipeline.stages.Stage`, which imports this module."""

    @property
    def name(self) -> str:
        """Of the stage."""

    @property
    def outcome(self) -> Callable[[Done], Done]:
        """Returns what was done, or raises what was found."""


@contextmanager
def round_of(context: "Context") -> Iterator[None]:
    """Keep what stages within the block did, and write it at its end, in one commit; within another round, in that."""
    if _ROUND.get() is not None:
        yield
        return
    rows: Rows = []
    token = _ROUND.set((uuid4().hex[:12], rows))
    try:
        yield
    finally:
        _ROUND.reset(token)
        _write(context, rows)


def carry_out(stage: JudgedStage, context: "Context", work: Callable[[], Done]) -> Done:
    """Do a stage's work, and keep how that went. Raises what the work raises; findings raise nothing here."""
    with round_of(context):
        kept = _ROUND.get()
        assert kept is not None
        began, ts, cpu_s, requests = time.monotonic(), datetime.now(UTC), _cpu_s(), Counter(COUNTS)
        row: dict[str, Any] = {"ts": ts, "stage": stage.name, "round": kept[0], "outcome": "ok", "date": ts.date()}
        try:
            done = work()
        except Exception as error:
            row |= {"outcome": "failed", "error": type(error).__name__}
            raise
        else:
            row["headline"] = ", ".join(headline(stage.name, done)) or None
            try:
                stage.outcome(done)
            except RanklakeError as error:
                row |= {"outcome": "findings", "error": type(error).__name__}
            return done
        finally:
            config = context.config
            is_here = not config.dask.address
            row["duration_s"] = time.monotonic() - began
            row["cpu_s"] = max(_cpu_s() - cpu_s, 0.0) if is_here else None
            is_counted = is_here and any(uri.startswith(_S3) for uri in (config.lake.uri, config.spool.uri))
            row |= {name: COUNTS[name] - requests[name] if is_counted else None for name in COLUMNS}
            kept[1].append(row)


def _cpu_s() -> float:
    """Return the CPU time of this process and all below it, those that ended among them."""
    me = psutil.Process()
    total = sum(me.cpu_times()[:4])  # user, system, and the same of children that ended
    for child in me.children(recursive=True):
        try:
            total += sum(child.cpu_times()[:4])
        except psutil.Error:  # it has just ended
            continue
    return total


def _write(context: "Context", rows: Rows) -> None:
    if not rows:
        return
    try:
        append_own(context.open_lake().tables, TABLE, lambda _: rows)
    except (RanklakeError, OSError) as error:  # what the stages did is done
        _LOG.warning("how stages went is not kept: %s", type(error).__name__)
