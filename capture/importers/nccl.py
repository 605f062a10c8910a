"""NCCL: reads its debug output from files of ``NCCL_DEBUG_FILE``, or from the standard output of jobs.

    node-1:984:1357 [4] NCCL INFO comm 0x55 rank 34 nranks 64 cudaDev 4 busId 9b000 commId 0x5a - Init COMPLETE

Each line becomes a row of ``logs``, and the creation of a communicator a span ``nccl_init``. The rank of a process is
its rank in its largest communicator, or else the launcher's label. NCCL writes a time only before warnings, in the
host's zone, which is read as UTC; other lines get the time of the previous line. If no line has a time, all get that of
the file's last change.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, NamedTuple

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.log_lines import LogLine, log_lines, ranks_of
from ranklake.capture.logs.loglines import shape_of
from ranklake.capture.logs.nccl_lines import NcclLine, nccl_line
from ranklake.redaction.redact import redact

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_MAX_CHARACTERS: Final = 16_384

Process = tuple[str | None, int | None]
"""Host and process id; None if unknown."""


class _Member(NamedTuple):
    """The largest communicator of a process: its number of ranks, and the process's rank."""

    ranks: int
    rank: int


@dataclass
class _Survey:
    """Facts of the whole file: ranks of processes and of labels, and the first time."""

    members: dict[Process, _Member] = field(default_factory=dict)
    labels: dict[tuple[str, ...], int] = field(default_factory=dict)
    first_ns: int | None = None

    def rank_of(self, labels: tuple[str, ...], process: Process) -> int:
        """Return the rank of a line."""
        member = self.members.get(process)
        return member.rank if member else self.labels.get(labels, 0)


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log, ignoring lines of other programs."""
    with source.first_look():
        survey = _survey(source)
    first_ns = survey.first_ns
    if first_ns is None:
        first_ns = source.changed_ms() * 1_000_000
        recording.labels["times"] = "the file's last change; no line has a time"
    else:
        recording.labels["times"] = "zone not stated, taken as UTC; lines without a time have the previous line's"
    recording.world_size = max([member.ranks for member in survey.members.values()] + [1])
    hosts: set[tuple[int, str]] = set()
    now_ns, spans = first_ns, 0
    for line, parts in _nccl_lines(source):
        now_ns = line.times[-1][0] if line.times else now_ns
        rank = survey.rank_of(line.labels, (parts.host, parts.pid))
        _add(recording, parts, line.text, now_ns, rank)
        if parts.host is not None and (rank, parts.host) not in hosts:
            hosts.add((rank, parts.host))
            recording.row("ranks", now_ns, rank, host=parts.host)
        if "total_s" in parts.facts and parts.facts["ranks"] <= recording.world_size:
            spans += 1
            _add_init(recording, parts, now_ns, rank, spans)
        if parts.facts.get("subject") == "version":
            facts = {name: parts.facts[name] for name in ("nccl_version", "cuda_version") if name in parts.facts}
            recording.facts = facts | recording.facts
    recording.facts = {"job": recording.run, "world_size": None} | recording.facts
    if survey.members:
        recording.facts["world_size"] = recording.world_size


def _survey(source: "Source") -> _Survey:
    survey, labels = _Survey(), []
    for line, parts in _nccl_lines(source):
        if line.labels:
            labels.append(line.labels)
        if survey.first_ns is None and line.times:
            survey.first_ns = line.times[-1][0]
        if parts.facts.get("subject") == "init":
            process, member = (parts.host, parts.pid), _Member(parts.facts["ranks"], parts.facts["rank"])
            survey.members[process] = max(survey.members.get(process, member), member)
    survey.labels = ranks_of(labels)
    return survey


def _nccl_lines(source: "Source") -> Iterator[tuple[LogLine, NcclLine]]:
    for line in log_lines(source):
        if (parts := nccl_line(line.text)) is not None:
            yield line, parts


def _add(recording: "ImportedRun", parts: NcclLine, text: str, at_ns: int, rank: int) -> None:
    columns = parts.columns(str(redact(text))[:_MAX_CHARACTERS])
    fields = json.dumps(parts.fields, sort_keys=True) if parts.fields else None
    recording.row("logs", at_ns, rank, template=shape_of(text[:1024]), fields=fields, **columns)


def _add_init(recording: "ImportedRun", parts: NcclLine, at_ns: int, rank: int, number: int) -> None:
    """Add the span of a communicator's creation, which ends at its line."""
    duration_ns = round(parts.facts["total_s"] * 1e9)
    recording.row(
        "spans", at_ns - duration_ns, rank, name="nccl_init", kind="other", stream="nccl", duration_ns=duration_ns,
        span_id=number, group_size=parts.facts["ranks"], attributes=json.dumps(parts.facts, sort_keys=True),
    )  # fmt: skip


def _fills(lines: list[bytes]) -> bool:
    return sum(b"NCCL " in line for line in lines) > len(lines) * 0.9


FORMAT: Final = Format(
    summary="debug output of NCCL, from NCCL_DEBUG_FILE or a job's standard output",
    recognises="lines such as 'node:984:1357 [4] NCCL INFO …'",
    read=read,
    table="logs",
    mark=re.compile(rb"\bNCCL (?:INFO|WARN|VERSION|TRACE)\b|^NCCL version ", re.MULTILINE),
    nothing=("the file has no line of NCCL", "run with NCCL_DEBUG=INFO, and name the file or the job's output"),
    own_run=False,
    among=True,
    fills=_fills,
)
