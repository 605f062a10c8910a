"""Runs the pipeline's flow against a Prefect server within this process: no service, no account, no network.

Prefect reads its settings at import. So the settings are set first, and the flows are imported afterwards, in the only
late import of this room.
"""

import asyncio
import logging
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ranklake.flows.settings import ANNOUNCE, FlowSettings
from ranklake.pipeline.calls import ChecksFailedError

_SETTINGS = {
    "PREFECT_SERVER_ALLOW_EPHEMERAL_MODE": "true",
    # The default, 20 s, is too short for the imports on a busy machine with a cold disk.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # SQLite has one writer. The events of this short-lived server are never read, and writing them would block.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_LOGGER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # A server that waits for its database logs a hundred lines and retries. Final errors are raised here.
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
    "DO_NOT_TRACK": "1",
    "DASK_LOGGING__DISTRIBUTED": "warning",  # Prefect's root handler would show every connection
}


def run_pipeline(
    settings: FlowSettings, home: Path, announce: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the pipeline flow and return its result, also if checks failed; its ``check`` then says so.

    Parameters
    ----------
    home
        Folder for Prefect's database, readable by its owner only. If ``PREFECT_API_URL`` is set, that server is used.
    announce
        Called with the name of each stage as it begins.
    """
    os.environ.setdefault("PREFECT_HOME", str(home))
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    logging.getLogger("great_expectations").setLevel(logging.WARNING)
    from ranklake.flows.stage_flows import pipeline_flow

    home.mkdir(parents=True, exist_ok=True, mode=0o700)
    ANNOUNCE.set(announce)
    try:
        return asyncio.run(pipeline_flow(settings))
    except ChecksFailedError as error:
        return error.done
