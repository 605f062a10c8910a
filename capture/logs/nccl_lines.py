"""Lines of NCCL, taken apart: who wrote them, how bad they are, and what they are about.

    [2026-06-11 11:44:19] node-1:984:1357 [4] ib.cc:1615 (poll) NCCL WARN NET/IB : Got completion from peer …
     time, of WARN lines   host:pid:tid [device]  file:line (function)   level    text

The forms are those of NCCL's `src/debug.cc` and of what its callers log, from 2.5 to 2.30. NCCL's WARN is its word for
an error; one of OpenTelemetry's warnings stays one here, since many are followed by a retry.
"""

import re
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
