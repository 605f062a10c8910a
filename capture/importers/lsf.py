"""LSF: converts ``lsb.acct`` of IBM Spectrum LSF to rows of ``jobs``.

Records JOB_FINISH become jobs, with the fields of lsb.acct(5). Other records are counted and left out. A record has the
number of GPUs requested on each host (``rusage[ngpus_physical=…]``), so a job's number is known only on a single host.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.accounting import (
    NO_GPUS,
    add_job,
    count,
    counts_text,
    epoch_us,
    refuse_flawed,
    requested_gpus,
)
from ranklake.capture.importers.formats import Format

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_WORD: Final = re.compile(r'"((?:[^"]|"")*)"(?=\s|$)|(\S+)')
_KIND: Final = re.compile(r'"([A-Z0-9_]+)" "[\d.]+" \d+ ')
_HEAD: Final = (
    "kind", "version", "end", "job", "user_id", "options", "processors", "submit", "begin", "term", "start", "user",
    "queue", "resources", "dependency", "pre_exec", "from_host", "cwd", "in_file", "out_file", "err_file", "job_file",
)  # fmt: skip
_TAIL: Final = (
    "status", "host_factor", "name", "command", "utime", "stime", "maxrss", *(f"rusage_{n}" for n in range(16)),
    "mail_user", "project", "exit_status", "max_processors", "shell", "time_event", "index", "max_memory", "max_swap",
    "in_spool", "command_spool", "reservation", "sla", "exceptions", "additional", "exit_info",
)  # fmt: skip
_GPUS: Final = re.compile(r"ngpus(?:_physical|_excl_p|_shared|_excl_t)?=(\d+)")
_EXIT, _DONE = 0x20, 0x40
_STATES: Final = {
    1: "preempted", 5: "timeout", 6: "deadline", 8: "cancelled", 9: "cancelled", 12: "timeout", 14: "cancelled",
    15: "cancelled", 16: "out_of_memory",
}  # fmt: skip
"""State of a job by LSF's reason for ending it (lsbatch.h, TERM_*)."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a file. Lines that are not records are refused."""
    with source.first_look():
        counts_gpus = any(_GPUS.search(line.text) for line in source.lines())
    others: Counter[str] = Counter()
    for line in source.lines():
        kind = _KIND.match(line.text)
        if line.flaw or (kind is None and line.text.strip()):
            recording.refuse("jobs", line.flaw or "not a record", line.text, line.number)
        elif kind is not None and kind[1] == "JOB_FINISH":
            with refuse_flawed(recording, line):
                add_job(recording, line, _job(_record(line.text), counts_gpus=counts_gpus))
        elif kind is not None:
            others[kind[1]] += 1
    if others:
        recording.notes[f"records other than JOB_FINISH are left out: {counts_text(others)}"] = None
    if not counts_gpus:
        recording.notes[NO_GPUS] = None


def _record(text: str) -> dict[str, Any]:
    """Return a record's fields by name, and its hosts. Raises `ValueError` if fields are missing."""
    words = (match[1].replace('""', '"') if match[1] is not None else match[2] for match in _WORD.finditer(text))
    record: dict[str, Any] = {name: _next_word(words) for name in _HEAD}
    record["asked_hosts"] = [_next_word(words) for _ in range(_host_count(_next_word(words)))]
    record["hosts"] = [_next_word(words) for _ in range(_host_count(_next_word(words)))]
    return record | {name: _next_word(words) for name in _TAIL}


def _next_word(words: Iterator[str]) -> str:
    """Return the next word. Raises `ValueError` if there is none."""
    word = next(words, None)
    if word is None:
        flaw = "the record is cut off"
        raise ValueError(flaw)
    return word


def _host_count(text: str) -> int:
    """Parse a number of hosts. Raises `ValueError`."""
    number = count(text)
    if number is None or number > 1 << 20:
        flaw = "the number of hosts is invalid"
        raise ValueError(flaw)
    return number


def _job(record: dict[str, Any], *, counts_gpus: bool) -> dict[str, Any]:
    status, exit_status, index = count(record["status"]), count(record["exit_status"]), count(record["index"])
    if status is None or exit_status is None or not record["job"].isdecimal():
        flaw = "the job's number or status is invalid"
        raise ValueError(flaw)
    hosts = list(dict.fromkeys(host.rpartition("*")[2] for host in record["hosts"]))
    start_us = epoch_us(record["start"])
    gpus = requested_gpus(_GPUS.search(record["resources"]), counts_gpus=counts_gpus, is_total=len(hosts) == 1)
    is_completed = bool(status & _DONE) and not status & _EXIT
    state = "completed" if is_completed else _STATES.get(count(record["exit_info"]) or 0, "failed")
    number, memory = record["job"], count(record["max_memory"])
    times = [float(record[name]) for name in ("utime", "stime") if re.fullmatch(r"\d+(\.\d+)?", record[name])]
    attributes = {name: record[key] for name, key in (("resources", "resources"), ("host", "from_host")) if record[key]}
    return {
        "job_id": f"{number}[{index}]" if index else number, "array_job_id": number if index else None,
        "job_name": record["name"], "user": record["user"], "pool": record["queue"], "team": record["project"] or None,
        "state": state, "outcome": "completed" if is_completed else "cancelled" if state == "cancelled" else "failed",
        "exit_code": exit_status >> 8, "exit_signal": exit_status & 0x7F, "submit_ts": epoch_us(record["submit"]),
        "start_ts": start_us, "end_ts": epoch_us(record["end"]), "node_list": ",".join(hosts) or None,
        "node_count": len(hosts) or None, "cpu_count": count(record["max_processors"]) or count(record["processors"]),
        "gpu_count": gpus if start_us is not None else None, "gpu_requested_count": gpus,
        "cpu_time_s": sum(times) if len(times) == 2 else None,  # noqa: PLR2004 - of the user and the system
        "max_rss_bytes": memory << 10 if memory else None, "work_dir": record["cwd"] or None,
        "attributes": json.dumps(attributes, sort_keys=True, ensure_ascii=False),
    }  # fmt: skip


FORMAT: Final = Format(
    summary="accounting of LSF, lsb.acct",
    recognises='lines that begin with "JOB_FINISH"',
    read=read,
    table="jobs",
    mark=re.compile(rb'\A"[A-Z0-9_]+" "[\d.]+" \d+ '),
    own_run=False,
    by_file=True,
)
