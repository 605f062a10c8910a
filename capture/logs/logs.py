"""Logs: record lines from `logging` and structlog as rows of the table ``logs``.

    logging.getLogger().addHandler(run.log_handler())
    structlog.configure(processors=[..., run.structlog_processor(), renderer])

All handlers and processors of a run share its rate limits. Lines that are logged in a thread while it writes a line,
such as by ranklake's own logger, are not recorded, which prevents endless recursion.
"""

import logging
import os
import sys
import threading
import traceback
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any, Final

from ranklake.capture.common.values import number, repr_of, text
from ranklake.capture.lanes.sink import Sink
from ranklake.capture.lifecycle.lifecycle import Lifecycle
from ranklake.capture.logs.faults import Faults
from ranklake.capture.logs.loglines import Limits, LogLines
from ranklake.capture.logs.nccl_lines import NcclFile
from ranklake.capture.logs.stderr import NCCL, STDOUT, OutputRows, OutputTap
from ranklake.capture.steps.progress import Progress

_OWN: Final = frozenset(logging.LogRecord("", 0, "", 0, "", (), None).__dict__) | {"message", "asctime", "taskName"}
_OF_STRUCTLOG: Final = frozenset({"event", "level", "logger", "timestamp", "exc_info", "stack_info", "exception"})
_NUMBERS: Final = ((logging.CRITICAL, 21), (logging.ERROR, 17), (logging.WARNING, 13), (logging.INFO, 9))
_NAMES: Final = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "warn": logging.WARNING,
    "error": logging.ERROR,
    "exception": logging.ERROR,
    "critical": logging.CRITICAL,
    "fatal": logging.CRITICAL,
}
_LONGEST_TRACE: Final = 1 << 17
STACKS: Final = "stacks"
"""Value of ``stream`` for stacks of threads when training hangs."""
OWN_THREADS: Final = "ranklake-"
"""Prefix of the names of ranklake's threads."""
_UNHANDLED: Final = "excepthook"

Levels = Mapping[str, int]


def severity_number(level: int) -> int:
    """Return OpenTelemetry's severity number for a level of `logging`."""
    return next((number for lowest, number in _NUMBERS if level >= lowest), 5 if level >= logging.DEBUG else 1)


class LogHandler(logging.Handler):
    """A `logging` handler that records lines. It never raises and never blocks.

    Parameters
    ----------
    lines
        Log lines of the run.
    level
        Lowest level to record.
    levels
        Levels of some loggers and their children, such as ``{"urllib3": "ERROR"}``.
    """

    def __init__(self, lines: LogLines, level: int | str, levels: Mapping[str, int | str]) -> None:
        super().__init__(level)
        self._lines = lines
        self._levels = {name: _level(value) for name, value in levels.items()}
        self._lowest_levels: dict[str, int] = {}
        self._files: dict[str, str] = {}

    def createLock(self) -> None:  # noqa: N802 - logging's name
        """Create no lock: the shared state has locks that signal handlers and forks cannot block."""
        self.lock = None

    def emit(self, record: logging.LogRecord) -> None:
        """Record a line if its level is high enough."""
        try:
            name = record.name
            lowest = self._lowest_levels.get(name)
            if lowest is None:
                lowest = self._lowest_levels[name] = _lowest_level(name, self._levels)
            if record.levelno >= lowest:
                self._record(record)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._lines.trouble(error)

    def _record(self, record: logging.LogRecord) -> None:
        args, template = record.args, record.msg
        is_template = bool(args) and isinstance(template, str)
        columns: dict[str, Any] = {
            "severity_text": record.levelname,
            "severity_number": severity_number(record.levelno),
            "template": template if is_template else None,
            "logger": record.name,
            "stream": "logging",
        }
        if not is_template:
            columns["message"] = template
        key = (record.name, template) if is_template else (record.name, record.pathname, record.lineno)
        if not self._lines.admits(columns, key):
            return
        columns["message"] = _message(record)
        columns["source_file"] = self._file(record.pathname)
        columns["source_line"] = record.lineno
        columns["source_function"] = record.funcName
        columns["thread_name"] = record.threadName
        if record.exc_info:
            columns.update(exception_columns(record.exc_info))
        attributes = record.__dict__
        extra = {name: attributes[name] for name in attributes.keys() - _OWN} if len(attributes) > _PLAIN_SIZE else None
        self._lines.put(columns, extra)

    def _file(self, path: str) -> str:
        short = self._files.get(path)
        if short is None:
            short = self._files[path] = path_from_package(path)
        return short


_PLAIN_SIZE: Final = len(logging.LogRecord("", 0, "", 0, "", (), None).__dict__)


class StructlogProcessor:
    """A structlog processor that records events and returns them unchanged. Put it before the renderer."""

    def __init__(self, lines: LogLines, level: int | str) -> None:
        self._lines, self._lowest_level = lines, _level(level)

    def __call__(self, logger: object, method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
        """Record an event if its level is high enough; never raises."""
        try:
            word = text(event.get("level") or method, 32).lower()
            level = _NAMES.get(word, logging.INFO)
            if level >= self._lowest_level:
                self._record(logger, word, level, event)
        except Exception as error:  # noqa: BLE001 - telemetry never raises into training
            self._lines.trouble(error)
        return event

    def _record(self, logger: object, word: str, level: int, event: MutableMapping[str, Any]) -> None:
        name = event.get("logger") or getattr(logger, "name", None)
        template = event.get("event")
        columns: dict[str, Any] = {
            "severity_text": word.upper(),
            "severity_number": severity_number(level),
            "template": text(template, 1024),
            "logger": None if name is None else text(name, 256),
            "stream": "structlog",
        }
        if not self._lines.admits(columns, (name, columns["template"])):
            return
        columns["message"] = text(template)
        exc_info = event.get("exc_info")
        if exc_info is True:
            exc_info = sys.exc_info()
        elif isinstance(exc_info, BaseException):
            exc_info = (type(exc_info), exc_info, exc_info.__traceback__)
        if isinstance(exc_info, tuple):
            columns.update(exception_columns(exc_info))
        self._lines.put(columns, {key: value for key, value in event.items() if key not in _OF_STRUCTLOG})


class Logs:
    """The log lines of one run."""

    def __init__(self, lifecycle: Lifecycle, sink: Sink, progress: Progress, trace_id: str | None) -> None:
        self._lifecycle, self._sink, self._progress, self._trace_id = lifecycle, sink, progress, trace_id
        self._lines: LogLines | None = None
        lifecycle.on_failure.append(self.add_failure)

    def add_failure(self, error: BaseException, thread: str | None) -> None:
        """Record an unhandled exception with its traceback, as a line of severity FATAL."""
        columns = exception_columns((type(error), error, error.__traceback__))
        self.lines().put({
            "severity_text": "FATAL",
            "severity_number": 21,
            "stream": _UNHANDLED,
            "logger": _UNHANDLED,
            "message": f"{columns['exception_type']}: {columns['exception_message']}",
            "thread_name": threading.main_thread().name if thread is None else thread,
            **columns,
        })  # fmt: skip

    def add_stacks(self, message: str) -> None:
        """Record the stack of each thread of this process, as lines of severity ERROR, the main thread first.

        Threads of ranklake are left out.
        """
        frames, threads = sys._current_frames(), {item.ident: item for item in threading.enumerate()}  # noqa: SLF001
        for ident, frame in sorted(frames.items(), key=lambda item: item[0] != threading.main_thread().ident):
            name = threads[ident].name if ident in threads else ""
            if not name.startswith(OWN_THREADS):
                stack = "".join(traceback.format_stack(frame))[-_LONGEST_TRACE:]
                self.lines().put({
                    "severity_text": "ERROR",
                    "severity_number": 17,
                    "stream": STACKS,
                    "logger": STACKS,
                    "message": message,
                    "thread_name": name,
                    "exception_stacktrace": stack,
                })  # fmt: skip

    def handler(self, level: int | str, levels: Mapping[str, int | str] | None) -> LogHandler:
        """Return a handler of `logging`; see `ranklake.capture.Run.log_handler`."""
        return LogHandler(self.lines(), level, levels or {})

    def processor(self, level: int | str) -> StructlogProcessor:
        """Return a processor for structlog; see `ranklake.capture.Run.structlog_processor`."""
        return StructlogProcessor(self.lines(), level)

    def listen(self, folder: Path) -> None:
        """Start recording output, NCCL's file and the fault handler's text, by the settings ``stderr`` and ``stdout``.

        Parameters
        ----------
        folder
            The stream's folder.

        Raises `OSError`.
        """
        settings, closers = self._lifecycle.settings, self._lifecycle.closers
        if settings.stdout != "off":
            only = NCCL if settings.stdout == NCCL else ""
            closers.append(OutputTap(self.lines(), Path(os.devnull), STDOUT, only).close)
        if settings.stderr == "off":
            return
        lines, faults = self.lines(), Faults(folder)
        closers.append(lambda: self._add_faults(faults))
        file = NcclFile(OutputRows(lines, NCCL).feed)
        self._lifecycle.each_second.append(file.look)
        closers.append(file.look)
        if settings.stderr == "all":
            closers.append(OutputTap(lines, faults.path).close)

    def _add_faults(self, faults: Faults) -> None:
        columns = faults.close()
        if columns is not None:
            self._sink.record("logs", columns if self._trace_id is None else columns | {"trace_id": self._trace_id})

    def lines(self) -> LogLines:
        """Return the writer of this run's log lines; create and start it on first use."""
        if self._lines is None:
            lifecycle = self._lifecycle
            settings = lifecycle.settings
            limits = Limits(
                lifecycle.run.name,
                rate_per_s=settings.log_rate_per_s,
                burst=settings.log_burst,
                verbose=settings.log_verbose,
            )
            lines = self._lines = LogLines(self._sink, self._progress, limits, self._trace_id)
            if self._sink.enabled:
                lines.start()
                lifecycle.drains.append(lines.drain)
                lifecycle.closers.append(lines.stop)
                lifecycle.each_second.append(lines.report_suppressed)
        return self._lines


def exception_columns(exc_info: Any) -> dict[str, Any]:  # noqa: ANN401 - the tuple of sys.exc_info, or any value
    """Return columns with an exception's type, message and traceback; empty without an exception."""
    kind, error, trace = exc_info
    if kind is None:
        return {}
    try:
        lines = "".join(traceback.format_exception(kind, error, trace))
    except Exception:  # noqa: BLE001 - an exception's own text may raise
        lines = "".join(traceback.format_tb(trace))
    return {
        "exception_type": text(getattr(kind, "__qualname__", kind), 256),
        "exception_message": text(error),
        "exception_stacktrace": lines[-_LONGEST_TRACE:],
    }


def path_from_package(path: str) -> str:
    """Return a file's path relative to the folder on `sys.path` that has it, which may contain a person's name."""
    folders = (folder for folder in sys.path if folder and path.startswith(folder.rstrip(os.sep) + os.sep))
    longest = max(folders, key=len, default="")
    return path[len(longest) :].lstrip(os.sep) if longest else os.path.basename(path)  # noqa: PTH119 - a text


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except Exception:  # noqa: BLE001 - arguments that do not fit; `logging` reports them
        return f"{text(record.msg)} {repr_of(record.args)}"


def _level(value: int | str) -> int:
    """Return a level's number. Raises `ValueError`."""
    if isinstance(value, str):
        level = logging.getLevelNamesMapping().get(value.upper())
        if level is None:
            raise ValueError(f"{value!r} is not a level")
        return level
    return int(number(value))


def _lowest_level(name: str, levels: Mapping[str, int]) -> int:
    """Return the level set for a logger, or for its nearest parent."""
    matches = [logger for logger in levels if name == logger or name.startswith(f"{logger}.")]
    return levels[max(matches, key=len)] if matches else logging.NOTSET
