"""NCCL's lines, taken apart, and its own file (``NCCL_DEBUG_FILE``), followed as rows of ``logs``.

    [2026-06-11 11:44:19] node-1:984:1357 [4] ib.cc:1615 (poll) NCCL WARN NET/IB : Got completion from peer …
     time, of WARN lines   host:pid:tid [device]  file:line (function)   level    text

The forms are those of NCCL's `src/debug.cc` and of what its callers log, from 2.5 to 2.30. NCCL's WARN is its word for
an error; one of OpenTelemetry's warnings stays one here, since many are followed by a retry.

NCCL opens the file when its first communicator is made, empties it, and replaces ``%h`` with the host's name up to its
first dot and ``%p`` with the process number. Without ``%p`` ranks share it; each takes its own lines then.
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
    """A line of NCCL.

    Attributes
    ----------
    host, pid
        Of the process that wrote it; None where the line does not say.
    device
        CUDA's number of the device that was current.
    level
        NCCL's own, such as ``WARN``.
    text
        Behind the level.
    file, line, function
        Where in NCCL it was written; lines of WARN have them.
    facts
        What it is about (``subject``: version, init, init_timings, network, topology, connection, timeout, warning) and
        its figures, in units that their names say.
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
        """Level on OpenTelemetry's scale."""
        return SEVERITIES[self.level]

    def columns(self, message: str) -> dict[str, Any]:
        """Return columns of ``logs``, except for ``fields``."""
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
        """What else is known of it: its facts and its device."""
        return self.facts | ({} if self.device is None else {"device": self.device})


def nccl_line(text: str) -> NcclLine | None:
    """Take a line apart; None for one that is not NCCL's. Time is in proportion to its length.

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
    """Return what a line is about, with its figures."""
    if match := _VERSION.search(text):
        return _known_fields("version", nccl_version=match["nccl"], cuda_version=match["cuda"])
    if match := _TIMINGS.search(text):
        parts = {f"{name}_s": float(seconds) for name, seconds in _PART.findall(match["parts"])}
        return _known_fields("init_timings", rank=int(match["rank"]), ranks=int(match["ranks"]),
                      total_s=float(match["total"])) | parts  # fmt: skip
    if match := _INIT.search(text):
        return _known_fields("init", rank=int(match["rank"]), ranks=int(match["ranks"]), bus_id=match["bus"],
                      communicator=match["comm"], state=match["state"].lower())  # fmt: skip
    if SEVERITIES[level] >= SEVERITIES["WARN"]:
        if match := _COMPLETION.search(text):
            vendor = match["vendor"]
            return _known_fields("network", peer=match["peer"], status=int(match["status"]),
                          vendor_error=int(vendor) if vendor else None)  # fmt: skip
        return _known_fields("timeout" if _TIMEOUT.search(text) else "warning")
    return _facts_of_setup(text)


def _facts_of_setup(text: str) -> dict[str, Any]:
    """Return what a line of INFO says of the way that data takes."""
    if match := _SYSTEM.search(text):
        return _known_fields("topology", max_gbyte_per_s=float(match["most"]), total_gbyte_per_s=float(match["total"]))
    if match := _LINK.search(text):
        return _known_fields("connection", from_rank=int(match["from"]), to_rank=int(match["to"]),
                      transport=match["transport"])  # fmt: skip
    if match := _NETWORK.search(text):
        return _known_fields("network", network=match["network"])
    if _TOPOLOGY.match(text.lstrip()):
        return _known_fields("topology")
    return _known_fields("network") if _NET.match(text) else {}


def _known_fields(subject: str, **figures: Any) -> dict[str, Any]:  # noqa: ANN401 - figures and names
    return {"subject": subject} | {name: value for name, value in figures.items() if value is not None}


VARIABLE: Final = "NCCL_DEBUG_FILE"
_MOST_BYTES: Final = 1 << 20
"""Read at a look; more comes at the next."""


def debug_file(pattern: str, host: str, pid: int) -> str:
    """Return where NCCL writes to, as its ``src/debug.cc`` makes it of the variable.

    >>> debug_file("/tmp/nccl.%h.%p", "node-1.cluster", 7)
    '/tmp/nccl.node-1.7'
    """
    name = host.partition(".")[0].replace("%", "-").replace("/", "-")
    parts = pattern.split("%%")
    return "%".join(part.replace("%h", name).replace("%p", str(pid)) for part in parts)


class NcclFile:
    """Follows the file of this process. What cannot be read is left out; nothing raises.

    Parameters
    ----------
    feed
        Takes the bytes of whole lines.
    """

    def __init__(self, feed: Callable[[bytes], None], environment: Mapping[str, str] | None = None) -> None:
        self._feed, self._environment = feed, os.environ if environment is None else environment
        self._pid, self._read_bytes, self._inode = os.getpid(), 0, -1
        # what stands there already is of a process before this one, until NCCL empties the file
        self._old = self._status()

    def look(self) -> None:
        """Read what was written since the last look."""
        with contextlib.suppress(OSError):
            self._look()

    def _look(self) -> None:
        status = self._status()
        if status is None or os.getpid() != self._pid:
            return
        if self._old is not None:
            if (status.st_ino, status.st_size, status.st_mtime_ns) == (
                self._old.st_ino, self._old.st_size, self._old.st_mtime_ns,
            ):  # fmt: skip
                return
            self._old = None
        if status.st_ino != self._inode or status.st_size < self._read_bytes:
            self._inode, self._read_bytes = status.st_ino, 0
        if status.st_size > self._read_bytes:
            with open(self._path, "rb", opener=_without_waiting) as file:
                file.seek(self._read_bytes)
                raw = file.read(_MOST_BYTES)
            whole = raw[: raw.rfind(b"\n") + 1] or (raw if len(raw) == _MOST_BYTES else b"")
            self._read_bytes += len(whole)
            own = b"".join(line for line in whole.splitlines(keepends=True) if self._is_own(line))
            if own:
                self._feed(own)

    @property
    def _path(self) -> str:
        return debug_file(self._environment.get(VARIABLE, ""), platform.node(), self._pid)

    def _status(self) -> os.stat_result | None:
        """Return the status of the file; None where there is none, or it is a device such as /dev/stderr."""
        if not self._environment.get(VARIABLE):
            return None
        try:
            status = os.stat(self._path)  # noqa: PTH116 - once a second
        except (OSError, ValueError):
            return None
        return status if stat.S_ISREG(status.st_mode) else None

    def _is_own(self, line: bytes) -> bool:
        parts = nccl_line(line.decode("utf-8", "replace"))
        return parts is None or parts.pid in (None, self._pid)


def _without_waiting(path: str, flags: int) -> int:
    return os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC)
