"""Names of runs: what, when, and how much once that is known, such as ``ingest 2026-11-22T10:05 1,284 segments``."""

import logging
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Final

from prefect import get_client
from prefect.context import FlowRunContext

_LOG: Final = logging.getLogger(__name__)


def at_first(what: str) -> str:
    """Return the name that the run of this context begins with: what, and the minute (UTC) that it was to begin at."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    when = (run.expected_start_time if run else None) or datetime.now(UTC)
    return f"{what} {when.astimezone(UTC):%Y-%m-%dT%H:%M}"


async def add(words: Sequence[str]) -> None:
    """Add words to the name of the run of this context. A server that does not take them stops nothing."""
    context = FlowRunContext.get()
    run = context.flow_run if context else None
    if run is None or not words:
        return
    try:
        async with get_client() as client:
            await client.update_flow_run(run.id, name=" ".join([run.name, *words]))
    except Exception as error:  # noqa: BLE001 - whatever a server or the way there does, the work is done
        _LOG.warning("the run keeps its name: %s", type(error).__name__)
