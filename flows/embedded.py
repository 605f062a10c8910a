"""Runs a flow in this process against a Prefect server of its own: no service, no account, no network.

Prefect reads its settings when it is imported, so they are set here and the flows are imported afterwards: the one
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
    # Twenty seconds by default, which a busy machine with a cold disk needs for its imports alone.
    "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "180",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    "PREFECT_LOGGING_LEVEL": "WARNING",
    # SQLite has one writer. Nobody reads events of a server that ends with the run, and what writes none cannot wait.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_EVENT_LOGGER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    # A server that waits for its database tells so in a hundred lines, and tries again. What fails is raised here.
    "PREFECT_LOGGING_SERVER_LEVEL": "CRITICAL",
    "PREFECT_CLI_PROMPT": "false",
    "DO_NOT_TRACK": "1",
    "DASK_LOGGING__DISTRIBUTED": "warning",  # Prefect's root handler would show every connection
}


def run_pipeline(
    settings: FlowSettings, home: Path, announce: Callable[[str], None] = lambda _: None
) -> dict[str, Any]:
    """Run the pipeline flow and return its result, also where checks failed: its ``check`` says so.

    Parameters
    ----------
    home
        Folder for Prefect's own database, for nobody else to read. A server that ``PREFECT_API_URL`` names is used
        instead where it is set.
    announce
        Told the name of each stage as it begins.
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
