"""NCCL lines: parse lines of NCCL, and follow its file (``NCCL_DEBUG_FILE``) for rows of ``logs``.

    [2026-06-11 11:44:19] node-1:984:1357 [4] ib.cc:1615 (poll) NCCL WARN NET/IB : Got completion from peer …
     time, of WARN lines   host:pid:tid [device]  file:line (function)   level    text

The formats are those of NCCL's `src/debug.cc` and its callers, from 2.5 to 2.30. NCCL uses WARN for errors; it is
recorded as a warning, because a retry follows many of them.

NCCL opens and truncates the file when its first communicator is created. It replaces ``%h`` with the host's name up to
its first dot, and ``%p`` with the process id. Without ``%p``, ranks share the file, and each rank reads its own lines.
"""

import contextlib
import os
import platform
import re
import stat
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

SEVERITIES: Final = {"TRACE": 5, "CALL": 5, "VERSION": 9, "INFO": 9, "WARN": 13, "ERROR": 17, "ABORT": 21}
_NAMES: Final = {5: "DEBUG", 9: "INFO", 13: "WARNING", 17: "ERROR", 21: "FATAL"}
_LINE: Final = re.compile(
    r"(?:(?P<host>[^\s:\[\]]{1,255}):(?P<pid>\d{1,10}):\d{1,10} )?(?:\[(?P<device>-?\d{1,4})\] )?(?:\d+\.\d+ )?"
    r"(?:(?P<file>[\w./+-]{1,255}):(?P<line>\d{1,6}) )?(?:\((?P<function>\w{1,255})\) )?"
    r"\bNCCL (?P<level>WARN|INFO|TRACE|CALL|VERSION|ERROR|ABORT)\b ?(?P<text>.*)"
)
_VERSION: Final = re.compile(r"(?:^|NCCL )NCCL version (?P<nccl>\d[\w.-]*)(?:\+cuda(?P<cuda>\d[\d.]*))?")
_INIT: Final = re.compile(
    r"rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8})\b.*?(?:busId (?P<bus>\w+))?(?: commId (?P<comm>0x\w+))?"
    r" - Init (?P<state>START|COMPLETE)"
)
_TIMINGS: Final = re.compile(
    r"Init timings(?: - \w+)?: rank (?P<rank>\d{1,8}) nranks (?P<ranks>\d{1,8}) total (?P<total>\d+\.\d+) "
    r"\((?P<parts>[^)]*)\)"
)
_PART: Final = re.compile(r"(\w+) (\d+\.\d+)")
_COMPLETION: Final = re.compile(
    r"Got completion from peer (?P<peer>\S+?)(?:<\d+>)? with (?:status=|error )(?P<status>\d+)"
    r"(?:.*?vendor err (?P<vendor>\d+))?"
)
_SYSTEM: Final = re.compile(r"=== System : maxBw (?P<most>\d+\.\d+) totalBw (?P<total>\d+\.\d+) ===")
_LINK: Final = re.compile(r"Channel \d+(?:/\d+)? : (?P<from>\d+)\[\w+\] -> (?P<to>\d+)\[\w+\].* via (?P<transport>\S+)")
_NETWORK: Final = re.compile(r"Using network (?P<network>\S+)")
_TOPOLOGY: Final = re.compile(
    r"(?:=+$|CPU/|\+ (?:PCI|NVL|NET|SYS|C2C)|Pattern \d|Channel \d+/\d+ :|Ring \d+ :|Tree\w* |Trees|NVLS |GPU/|"
    r"NET/\w+-|\d+ coll channels|threadThresholds|MNNVL|Connected |Paths from|P2P Chunksize|Check P2P Type|"
    r"ncclTopo|comm \w+ rank \d+ nRanks)"
)
_NET: Final = re.compile(
    r"(?:Bootstrap ?: |NET/|NCCL_SOCKET|P2P plugin|GPU Direct|(?:Initialized|Assigned|Failed to initialize) NET plugin)"
)
_TIMEOUT: Final = re.compile(r"time[d ]*[- ]?out", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class NcclLine:
    """A parsed line of NCCL.

    Attributes
    ----------
    host, pid
        Host and process that wrote it; None if the line does not have them.
    device
        CUDA's number of the current device.
    level
        NCCL's level, such as ``WARN``.
    text
        The text after the level.
    file, line, function
        Place in NCCL's source; only lines of WARN have it.
    facts
        Topic (``subject``: version, init, init_timings, network, topology, connection, timeout, warning) and figures,
        whose names have their units.
    """

    host: str | None
    pid: int | None
    device: int | None
    level: str
    text: str
    file: str | None
    line: int | None
    function: str | None
    facts: dict[str, Any]

    @property
    def severity(self) -> int:
        """OpenTelemetry's severity number."""
        return SEVERITIES[self.level]

    def columns(self, message: str) -> dict[str, Any]:
        """Return the columns of ``logs``, without ``fields``."""
        return {
            "message": message, "stream": "nccl", "logger": "nccl",
            "severity_number": self.severity, "severity_text": _NAMES[self.severity],
        } | {
            name: value
            for name, value in (
                ("source_file", self.file), ("source_line", self.line), ("source_function", self.function),
            )
            if value is not None
        }  # fmt: skip

    @property
    def fields(self) -> dict[str, Any]:
        """Value of the column ``fields``: facts and device."""
        return self.facts | ({} if self.device is None else {"device": self.device})


def nccl_line(text: str) -> NcclLine | None:
    """Parse a line of NCCL; None for other lines. The time is proportional to its length.

    >>> nccl_line("n1:7:9 [3] NCCL INFO Using network IB").facts
    {'subject': 'network', 'network': 'IB'}
    """
    if "NCCL " not in text:
        return None
    if (head := _LINE.search(text)) is not None:
        body, level = head["text"], head["level"]
        number = head["line"]
        return NcclLine(
            head["host"], int(head["pid"]) if head["pid"] else None, int(head["device"]) if head["device"] else None,
            level, body, head["file"], int(number) if number else None, head["function"], _facts(body, level),
        )  # fmt: skip
    if text.startswith("NCCL version "):
        return NcclLine(None, None, None, "VERSION", text, None, None, None, _facts(text, "VERSION"))
    return None


def _facts(text: str, level: str) -> dict[str, Any]:
    """Return the topic of a line and its figures."""
    if match := _VERSION.search(text):
        return _facts_about("version", nccl_version=match["nccl"], cuda_version=match["cuda"])
    if match := _TIMINGS.search(text):
        parts = {f"{name}_s": float(seconds) for name, seconds in _PART.findall(match["parts"])}
        return _facts_about("init_timings", rank=int(match["rank"]), ranks=int(match["ranks"]),
                      total_s=float(match["total"])) | parts  # fmt: skip
    if match := _INIT.search(text):
        return _facts_about("init", rank=int(match["rank"]), ranks=int(match["ranks"]), bus_id=match["bus"],
                      communicator=match["comm"], state=match["state"].lower())  # fmt: skip
    if SEVERITIES[level] >= SEVERITIES["WARN"]:
        if match := _COMPLETION.search(text):
            vendor = match["vendor"]
            return _facts_about("network", peer=match["peer"], status=int(match["status"]),
                          vendor_error=int(vendor) if vendor else None)  # fmt: skip
        return _facts_about("timeout" if _TIMEOUT.search(text) else "warning")
    return _facts_of_setup(text)


def _facts_of_setup(text: str) -> dict[str, Any]:
    """Return the facts of a line of INFO about topology, links and network."""
    if match := _SYSTEM.search(text):
        return _facts_about("topology", max_gbyte_per_s=float(match["most"]), total_gbyte_per_s=float(match["total"]))
    if match := _LINK.search(text):
        return _facts_about("connection", from_rank=int(match["from"]), to_rank=int(match["to"]),
                      transport=match["transport"])  # fmt: skip
    if match := _NETWORK.search(text):
        return _facts_about("network", network=match["network"])
    if _TOPOLOGY.match(text.lstrip()):
        return _facts_about("topology")
    return _facts_about("network") if _NET.match(text) else {}


def _facts_about(subject: str, **figures: Any) -> dict[str, Any]:  # noqa: ANN401 - figures and names
    return {"subject": subject} | {name: value for name, value in figures.items() if value is not None}


VARIABLE: Final = "NCCL_DEBUG_FILE"
_MOST_BYTES: Final = 1 << 20
"""Most bytes to read in one call of `NcclFile.look`; the next call continues."""


def debug_file(pattern: str, host: str, pid: int) -> str:
    """Return the path that NCCL writes to, from the variable's value, as in its ``src/debug.cc``.

    >>> debug_file("/tmp/nccl.%h.%p", "node-1.cluster", 7)
    '/tmp/nccl.node-1.7'
    """
    name = host.partition(".")[0].replace("%", "-").replace("/", "-")
    parts = pattern.split("%%")
    return "%".join(part.replace("%h", name).replace("%p", str(pid)) for part in parts)


class NcclFile:
    """Follows the NCCL file of this process. It never raises; a file that cannot be read is skipped.

    Parameters
    ----------
    feed
        Called with the bytes of complete lines.
    """

    def __init__(self, feed: Callable[[bytes], None], environment: Mapping[str, str] | None = None) -> None:
        self._feed, self._environment = feed, os.environ if environment is None else environment
        self._pid, self._read_bytes, self._inode = os.getpid(), 0, -1
        # Existing content belongs to a previous process, until NCCL truncates the file.
        self._old_status = self._status()

    def look(self) -> None:
        """Read the lines written since the last call."""
        with contextlib.suppress(OSError):
            self._look()

    def _look(self) -> None:
        status = self._status()
        if status is None or os.getpid() != self._pid:
            return
        if self._old_status is not None:
            if (status.st_ino, status.st_size, status.st_mtime_ns) == (
                self._old_status.st_ino, self._old_status.st_size, self._old_status.st_mtime_ns,
            ):  # fmt: skip
                return
            self._old_status = None
        if status.st_ino != self._inode or status.st_size < self._read_bytes:
            self._inode, self._read_bytes = status.st_ino, 0
        if status.st_size > self._read_bytes:
            with open(self._path, "rb", opener=_without_waiting) as file:
                file.seek(self._read_bytes)
                raw = file.read(_MOST_BYTES)
            complete = raw[: raw.rfind(b"\n") + 1] or (raw if len(raw) == _MOST_BYTES else b"")
            self._read_bytes += len(complete)
            own = b"".join(line for line in complete.splitlines(keepends=True) if self._is_own(line))
            if own:
                self._feed(own)

    @property
    def _path(self) -> str:
        return debug_file(self._environment.get(VARIABLE, ""), platform.node(), self._pid)

    def _status(self) -> os.stat_result | None:
        """Return the status of the file; None if it is missing, or a device such as /dev/stderr."""
        if not self._environment.get(VARIABLE):
            return None
        try:
            status = os.stat(self._path)  # noqa: PTH116 - called each second
        except (OSError, ValueError):
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _is_own(self, line: bytes) -> bool:
        parts = nccl_line(line.decode("utf-8", "replace"))
        return parts is None or parts.pid in (None, self._pid)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
