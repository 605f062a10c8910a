"""What the rooms log, in the log of the run that they work for."""

import logging
from typing import Final

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.handlers import APILogHandler

from ranklake.redaction.redact import redact

_ROOMS: Final = logging.getLogger("ranklake")
_THREADS: Final = "Timeout of %s seconds configured for this task"


class RunLog(APILogHandler):
    """Sends records to the run in whose context they are made, and no others; without what looks like a credential."""

    def emit(self, record: logging.LogRecord) -> None:
        """Send one record. Handlers after this one get it without credentials, too."""
        record.msg, record.args = redact(record.getMessage()), None
        if FlowRunContext.get() or TaskRunContext.get():
            super().emit(record)

    def format(self, record: logging.LogRecord) -> str:
        """Return the record's text as it is stored."""
        return str(redact(super().format(record)))


def attach() -> None:
    """Let the rooms log into runs from now on, from the level on that Prefect's own loggers have."""
    if not any(isinstance(one, RunLog) for one in _ROOMS.handlers):
        _ROOMS.addHandler(RunLog())
        logging.getLogger("prefect.task_runs").addFilter(_is_news)
    if _ROOMS.level == logging.NOTSET:
        _ROOMS.setLevel(logging.getLogger("prefect.flow_runs").getEffectiveLevel())


def _is_news(record: logging.LogRecord) -> bool:
    """Drop what Prefect says of every task with a timeout that is no coroutine; `ranklake.flows.watching` says it."""
    return not str(record.msg).startswith(_THREADS)
