"""PBS: converts accounting logs of PBS Pro, OpenPBS and Torque to rows of ``jobs``.

Records of ends (E), requeued runs (R) and starts (S) become jobs. Other records are counted and left out. The number of
GPUs is taken from ``exec_vnode``, or else from the request. Elapsed time is from start to end, because
``resources_used.walltime`` ends at the last poll.
"""

import json
import re
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.accounting import (
    NO_GPUS,
    add_job,
    count,
    counts_text,
    epoch_us,
    refuse_flawed,
    seconds,
)
from ranklake.capture.importers.formats import Format

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_RECORD: Final = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:\.\d+)?;([A-Za-z]+);([^;]*);(.*)")
_KEY: Final = re.compile(r"(?:^|\s)([A-Za-z_][\w.]*)=")
_STATES: Final = {"E": "completed", "R": "requeued", "S": "running"}
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([kmgtp]?)[bw]?", re.IGNORECASE)
_POWER: Final = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4, "p": 5}
_CHUNK_GPUS: Final = re.compile(r":n?gpus?=(\d+)")
_HOST: Final = re.compile(r"([^/+]+)/(?:\d+\*(\d+)|([\d,-]+))")
_SIGNALLED: Final = 256
_OUT_OF_WALLTIME: Final = -29
_ATTRIBUTES: Final = ("Exit_status", "resources_used.walltime", "resources_used.mem", "resources_used.vmem",
                      "Resource_List.select", "Resource_List.nodes", "Resource_List.place", "project")  # fmt: skip


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a log. Lines that are not records are refused."""
    deleted, counts_gpus = _survey(source)
    others: Counter[str] = Counter()
    for line in source.lines():
        match = _RECORD.fullmatch(line.text.strip())
        if line.flaw or (match is None and line.text.strip()):
            recording.refuse("jobs", line.flaw or "not a record", line.text, line.number)
        elif match is not None and match[1] in _STATES:
            with refuse_flawed(recording, line):
                columns = _job(match[1], match[2], _fields(match[3]), is_deleted=match[2] in deleted)
                if columns["gpu_count"] is None and counts_gpus:
                    columns["gpu_count"] = columns["gpu_requested_count"] = 0
                add_job(recording, line, columns)
        elif match is not None:
            others[match[1]] += 1
    if others:
        recording.notes[f"records that end or start no job are left out: {counts_text(others)}"] = None
    if not counts_gpus:
        recording.notes[NO_GPUS] = None


def _survey(source: "Source") -> tuple[set[str], bool]:
    """Return the ids of deleted jobs, and whether any job requests GPUs."""
    deleted: set[str] = set()
    counts_gpus = False
    with source.first_look():
        for line in source.lines():
            match = _RECORD.fullmatch(line.text.strip())
            if match is not None and match[1] == "D":
                deleted.add(match[2])
            elif match is not None and match[1] in _STATES and not counts_gpus:
                counts_gpus = re.search(r"\bn?gpus?=\d", match[3]) is not None
    return deleted, counts_gpus


def _fields(text: str) -> dict[str, str]:
    """Return a record's fields by name. Raises `ValueError` if a field has two values."""
    keys = list(_KEY.finditer(text))
    ends = [key.start() for key in keys[1:]] + [len(text)]
    fields: dict[str, str] = {}
    for key, end in zip(keys, ends, strict=True):
        value = text[key.end() : end].strip()
        if fields.setdefault(key[1], value) != value:
            flaw = "a field has two values"
            raise ValueError(flaw)
    return fields


def _job(kind: str, job_id: str, fields: dict[str, str], *, is_deleted: bool) -> dict[str, Any]:
    if not re.match(r"\d", job_id):
        flaw = "the job's id is invalid"
        raise ValueError(flaw)
    get = fields.get
    hosts, slots = _hosts(get("exec_host", ""))
    array = re.match(r"(\d+)\[\d+\](.*)", job_id)
    gpus = _gpus(fields)
    project = get("project", "")
    columns: dict[str, Any] = {
        "job_id": job_id, "cluster": job_id.partition(".")[2] or None, "job_name": get("jobname"),
        "user": get("user"), "pool": get("queue"), "team": get("account") or (project if project[:1] != "_" else None),
        "state": _STATES[kind], "submit_ts": epoch_us(get("ctime") or get("qtime", "")),
        "eligible_ts": epoch_us(get("etime", "")), "start_ts": epoch_us(get("start", "")),
        "end_ts": epoch_us(get("end", "")) if kind != "S" else None, "node_list": ",".join(hosts) or None,
        "node_count": len(hosts) or count(get("Resource_List.nodect", "")),
        "cpu_count": count(get("resources_used.ncpus", "")) or slots or count(get("Resource_List.ncpus", "")),
        "gpu_count": _sum(_CHUNK_GPUS.findall(get("exec_vnode", ""))) or gpus, "gpu_requested_count": gpus,
        "memory_bytes": _size(get("Resource_List.mem", "")),
        "time_limit_s": seconds(get("Resource_List.walltime", "")),
        "cpu_time_s": seconds(get("resources_used.cput", "")),
        "restart_count": max(0, (count(get("run_count", "")) or 1) - 1) if "run_count" in fields else None,
        "array_job_id": f"{array[1]}[]{array[2]}" if array else None,
    }  # fmt: skip
    if kind == "E":
        columns |= _outcome_columns(get("Exit_status", ""), is_deleted=is_deleted)
    attributes = {name: fields[name] for name in _ATTRIBUTES if fields.get(name)}
    return columns | {"attributes": json.dumps(attributes, sort_keys=True, ensure_ascii=False) if attributes else None}


def _outcome_columns(status: str, *, is_deleted: bool) -> dict[str, Any]:
    """Return the columns derived from an exit status; a status above 256 is 256 plus the number of a signal."""
    if not re.fullmatch(r"-?\d{1,9}", status):
        return {"outcome": "cancelled" if is_deleted else None, "state": "cancelled" if is_deleted else None}
    code = int(status)
    if code == 0:
        return {"outcome": "completed", "exit_code": 0, "exit_signal": 0}
    state = "cancelled" if is_deleted else "timeout" if code == _OUT_OF_WALLTIME else "failed"
    is_signal = code > _SIGNALLED
    return {
        "state": state, "outcome": "cancelled" if is_deleted else "failed",
        "exit_code": None if is_signal else code, "exit_signal": code - _SIGNALLED if is_signal else 0,
    }  # fmt: skip


def _hosts(text: str) -> tuple[list[str], int]:
    """Return the distinct hosts of ``a/0*13+b/0-3,5+c/7``, and the number of their slots."""
    hosts: dict[str, None] = {}
    slots = 0
    for host, slot_count, numbers in _HOST.findall(text):
        hosts[host] = None
        slots += int(slot_count) if slot_count else 0
        for part in filter(None, numbers.split(",")):
            first, _, last = part.partition("-")
            slots += int(last or first) - int(first or 0) + 1 if first.isdecimal() else 0
    return list(hosts), slots


def _gpus(fields: dict[str, str]) -> int | None:
    """Return the number of GPUs that a job requests: that of the whole job, or else the sum over its chunks."""
    for name in ("ngpus", "gpus", "gpu"):
        if (number := count(fields.get(f"Resource_List.{name}", ""))) is not None:
            return number
    for name in ("select", "nodes", "nodect", "neednodes"):
        text = fields.get(f"Resource_List.{name}", "")
        if _CHUNK_GPUS.search(text):
            return sum(_chunk_gpus(chunk) for chunk in text.split("+"))
    return None


def _chunk_gpus(chunk: str) -> int:
    """Return the number of GPUs of a chunk: 16 of ``2:ncpus=4:ngpus=8``; a chunk with a host's name counts once."""
    first = chunk.partition(":")[0]
    return (int(first) if first.isdecimal() else 1) * (_sum(_CHUNK_GPUS.findall(chunk)[:1]) or 0)


def _sum(numbers: list[str]) -> int | None:
    return sum(map(int, numbers)) if numbers else None


def _size(text: str) -> int | None:
    match = _SIZE.fullmatch(text)
    return None if match is None else round(float(match[1]) * 1024.0 ** _POWER[match[2].lower()])


FORMAT: Final = Format(
    summary="accounting logs of PBS Pro, OpenPBS and Torque",
    recognises="lines such as '04/01/2026 10:00:00;E;123.server;user=…'",
    read=read,
    table="jobs",
    mark=re.compile(rb"\A(?:[^;\n]*\n)?\d\d/\d\d/\d{4} \d\d:\d\d:\d\d(?:\.\d+)?;[A-Za-z]+;"),
    own_run=False,
    by_file=True,
)
