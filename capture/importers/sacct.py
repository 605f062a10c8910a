"""Slurm: converts ``sacct --parsable2`` (or ``--parsable``), and JSON of sacct and squeue, to rows of ``jobs``.

Each job, array task, component of a heterogeneous job, and step of these becomes a row. The columns JobID and State and
a time are required, others are optional. A row's ``ts`` is the job's end, or else its start, or else its submission. In
JSON of squeue, a job that has not ended gets the time of the listing. JSON of sinfo becomes rows of ``pools``.

AllocTRES and AllocGRES omit resources that a job does not have. So a job without GPUs in them has none, if any job of
its cluster in the file has some. Otherwise the cluster may not count GPUs, and the number is NULL. It is also NULL for
a job with a share of a GPU (``gres/mps``, ``gres/shard``).
"""

import json
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import combinations_with_replacement, islice
from math import comb
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.slurm_json import JOB_MARK, job_rows, number, pools
from ranklake.capture.importers.source import SourceError
from ranklake.capture.importers.units import local_moment_ns
from ranklake.errors import did_you_mean

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Line, Source

_EMPTY: Final = frozenset({"", "Unknown", "None", "N/A", "INVALID", "UNLIMITED", "Partition_Limit", "None assigned"})
_DURATION: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[cn]?")
_ENERGY: Final = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)")
_COUNT: Final = re.compile(r"(\d+)([KM]?)")
_GPUS: Final = re.compile(r"\bgres/gpu[:=]")
_SHARE: Final = re.compile(r"\bgres/(mps|shard)\b")
_EPOCH: Final = re.compile(r"\d{9,11}")
_FREE_TEXT: Final = ("JobName", "SubmitLine", "WorkDir", "Comment", "AdminComment", "SystemComment", "Extra")
_TEXTS: Final = frozenset({"job_name", "work_dir", "comment", "attributes"})
_MAX_WAYS: Final = 64
_MAX_BYTES: Final = 512 << 20
_MIN_STATE_CHARACTERS: Final = 4
"""Shortest accepted abbreviation of a state: sacct cuts words to the width of a column."""
_POWER: Final = {"": 0, "K": 1, "M": 2, "G": 3, "T": 4, "P": 5}
_FAILED: Final = frozenset({"failed", "timeout", "node_fail", "out_of_memory", "boot_fail", "deadline", "preempted"})
_STATES: Final = _FAILED | {
    "pending", "running", "completed", "cancelled", "suspended", "requeued", "resizing", "revoked", "completing",
    "configuring", "stopped", "special_exit", "requeue_hold", "requeue_fed", "resv_del_hold", "signaling", "stage_out",
    "launch_failed", "reconfig_fail", "power_up_node",
}  # fmt: skip
_JOB_ID: Final = re.compile(r"(\d+)(?:_(?:\d+|\[[^\]]*\]))?(?:\+\d+)?(?:\.[\w.\-]+(?:\+\d+)?)?")


COMMAND: Final = (
    "sacct --parsable2 --allusers --format=JobID,JobName,User,Account,Partition,Cluster,State,ExitCode,Submit,Start,"
    "End,Elapsed,NNodes,NCPUS,ReqTRES,AllocTRES"
)
"""Command that prints all columns that are imported."""


class _InvalidValueError(ValueError):
    """A value is invalid. The message names its column, not the value."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import output of sacct, or JSON.

    Raises
    ------
    SourceError
        The first line is not a header of sacct, or the file is not JSON of Slurm.
    """
    if source.head().lstrip().startswith(b"{"):
        _read_json(source, recording)
        return
    with source.first_look():
        gpu_clusters = {row.get("Cluster", "").strip() for _, row in _rows(source) if _has_gpus(row)}
    for line, row in _rows(source):
        if not row:
            flaw = line.flaw or "the number of fields differs from the header"
            recording.refuse("jobs", flaw, line.text, line.number)
            continue
        try:
            counts_gpus = row.get("Cluster", "").strip() in gpu_clusters
            ts_ns, columns = _job(row, counts_gpus=counts_gpus, moment_ns=recording.moment_ns)
        except _InvalidValueError as error:
            recording.refuse("jobs", str(error), line.text, line.number)
            continue
        recording.row("jobs", ts_ns, **columns)


def _read_json(source: "Source", recording: "ImportedRun") -> None:
    try:
        document = json.loads(source.read_all(_MAX_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError("is not a complete JSON document", where=source.name, hint="save it again") from error
    updated = number(document.get("last_update"), zero="")
    updated_ns = int(updated) * 10**9 if updated.isdecimal() else None
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        by_name = pools(document)
        if not by_name:
            raise SourceError("has neither jobs nor nodes", where=source.name, hint=f"save jobs: {COMMAND}")
        at_ns = updated_ns or source.changed_ms() * 10**6
        for name, pool in sorted(by_name.items()):
            recording.row("pools", at_ns, pool=name, **pool.columns())
        return
    gpu_clusters = {row.get("Cluster", "").strip() for _, row in job_rows(jobs) if _has_gpus(row)}
    for position, (entry, row) in enumerate(job_rows(jobs), 1):
        try:
            ts_ns, columns = _job(row, counts_gpus=row.get("Cluster", "").strip() in gpu_clusters)
        except (_InvalidValueError, KeyError) as error:
            reason = str(error) if row else "not a job"
            recording.refuse("jobs", reason, json.dumps(entry, ensure_ascii=False), position)
            continue
        has_not_ended = updated_ns is not None and columns["outcome"] is None
        recording.row("jobs", updated_ns if has_not_ended and updated_ns else ts_ns, **columns)


def _rows(source: "Source") -> Iterator[tuple["Line", dict[str, str]]]:
    """Yield the lines after the header with their fields by column, empty if they do not fit the header."""
    header: list[str] = []
    for line in source.lines():
        if not line.text.strip() and line.flaw is None:
            continue
        if not header:
            header = _header(source, line.text)
            continue
        yield line, _row(header, line.text.split("|")) if line.flaw is None else {}


def _row(header: list[str], fields: list[str]) -> dict[str, str]:
    """Return the fields by column; empty if they do not fit the header.

    sacct does not escape a | in free texts, such as a job's name. So surplus fields are joined to columns of free text
    if there is only one way that gives a valid job. Ways that differ only in these texts count as one.
    """
    surplus = len(fields) - len(header)
    if surplus == 0:
        return dict(zip(header, fields, strict=True))
    free = [name for name in _FREE_TEXT if name in header]
    if surplus < 0 or not free or comb(surplus + len(free) - 1, surplus) > _MAX_WAYS:
        return {}
    ways: dict[str, dict[str, str]] = {}
    for columns in combinations_with_replacement(free, surplus):
        row, remaining = {}, iter(fields)
        for name in header:
            row[name] = "|".join(islice(remaining, 1 + columns.count(name)))
        if any(part.lower().split(" ")[0] in _STATES for name in columns for part in row[name].split("|")):
            continue
        with suppress(_InvalidValueError):
            ts_ns, job = _job(row, counts_gpus=False)
            facts = {name: value for name, value in job.items() if name not in _TEXTS}
            ways.setdefault(str((ts_ns, facts)), row)
    return ways.popitem()[1] if len(ways) == 1 else {}


def _has_gpus(row: dict[str, str]) -> bool:
    has_tres = any(_GPUS.search(row.get(name, "")) for name in ("AllocTRES", "ReqTRES"))
    return has_tres or _gpus(row.get("AllocGRES", "")) is not None


def _header(source: "Source", text: str) -> list[str]:
    names = [name.strip().partition("%")[0] for name in text.split("|")]
    if "JobID" not in names:
        names = ["JobID" if name == "JobIDRaw" else name for name in names]
    missing = [name for name in ("JobID", "State") if name not in names]
    if not {"End", "Start", "Submit"} & set(names):
        missing += ["Submit", "Start", "End"]  # sacct's default columns have no time
    if missing:
        suggestion = " ".join(filter(None, (did_you_mean(name, names) for name in missing[:1] if len(names) > 1)))
        has_one_column = len(names) == 1
        flaw = "the columns are not separated by |" if has_one_column else f"the header lacks {', '.join(missing)}"
        raise SourceError(flaw, where=source.name, hint=f"{suggestion} print it with: {COMMAND}".strip())
    return names


def _job(
    row: dict[str, str], *, counts_gpus: bool, moment_ns: Callable[[str], int] = local_moment_ns
) -> tuple[int, dict[str, Any]]:
    """Return time (ns since 1970) and columns of a row; `moment_ns` parses local times. Raises `_InvalidValueError`."""
    job_id, state = row["JobID"].strip(), row["State"].strip().split()
    if not _JOB_ID.fullmatch(job_id):
        raise _InvalidValueError("JobID: not a job's id")
    word = state[0].lower().rstrip("+") if state else ""
    matches = [name for name in _STATES if name.startswith(word)] if len(word) >= _MIN_STATE_CHARACTERS else []
    if not matches:
        raise _InvalidValueError("State: not a state")
    full_state = word if word in matches else min(matches)
    columns: dict[str, Any] = {"job_id": job_id, "state": full_state, "outcome": _outcome(full_state)}
    for name, (target, convert) in _COLUMNS.items():
        text = row.get(name, "").strip()
        if text in _EMPTY or columns.get(target) is not None:
            continue
        try:
            columns[target] = _time(text, moment_ns) if convert is _time else convert(text)
        except ValueError as error:
            raise _InvalidValueError(f"{name}: {error}") from error
    columns |= _exit(row.get("ExitCode", ""))
    _derive(columns, row, counts_gpus=counts_gpus)
    moments = [columns.get(name) for name in ("end_ts", "start_ts", "submit_ts")]
    ts_us = next((at for at in moments if at is not None), None)
    if ts_us is None:
        raise _InvalidValueError("End, Start, Submit: all are missing")
    others = {name: text for name, text in row.items() if name not in _IMPORTED and text.strip() not in _EMPTY}
    if len(state) > 1:  # CANCELLED by 1000
        others["CancelledBy"] = state[-1]
    columns["attributes"] = json.dumps(others, sort_keys=True, ensure_ascii=False) if others else None
    return ts_us * 1000, columns


def _derive(columns: dict[str, Any], row: dict[str, str], *, counts_gpus: bool) -> None:
    """Set the columns that are computed from trackable resources and times."""
    allocated, requested = (_tres(row, name) for name in ("AllocTRES", "ReqTRES"))
    columns["gpu_count"] = allocated.get("gres/gpu", _gpus(row.get("AllocGRES", "")))
    share = _SHARE.search(row.get("AllocTRES", ""))
    is_known = allocated or ("AllocGRES" in row and columns.get("start_ts") is not None)
    if columns["gpu_count"] is None and is_known and counts_gpus and not share:
        columns["gpu_count"] = 0
    columns["gpu_requested_count"] = requested.get("gres/gpu", _gpus(row.get("ReqGRES", "")))
    kinds = {name.partition("gres/gpu:")[2] for name in {**requested, **allocated} if name.startswith("gres/gpu:")}
    columns["gpu_type"] = kinds.pop() if len(kinds) == 1 else share[1] if share else None
    columns["memory_bytes"] = allocated.get("mem")
    if columns.get("cpu_count") is None:
        columns["cpu_count"] = allocated.get("cpu")
    if columns.get("node_count") is None:
        columns["node_count"] = allocated.get("node")
    submit, start = columns.get("submit_ts"), columns.get("start_ts")
    if submit is not None and start is not None and start >= submit:
        columns["queue_time_s"] = (start - submit) / 1e6
    end = columns.get("end_ts")
    if columns.get("elapsed_s") is None and start is not None and end is not None and end >= start:
        suspended_s = columns.get("suspended_s") or 0.0  # Slurm's elapsed time excludes suspension
        columns["elapsed_s"] = max(0.0, (end - start) / 1e6 - suspended_s)
    if columns["gpu_count"] is not None and columns.get("elapsed_s") is not None:
        columns["gpu_time_s"] = float(columns["gpu_count"] * columns["elapsed_s"])
    array = re.match(r"(\d+)_", columns["job_id"])
    if array:
        columns["array_job_id"] = array[1]


def _outcome(state: str) -> str | None:
    return {"completed": "completed", "cancelled": "cancelled"}.get(state) or ("failed" if state in _FAILED else None)


def _exit(text: str) -> dict[str, int | None]:
    code, _, signal = text.strip().partition(":")
    if not code.isdecimal():
        return {}
    return {"exit_code": int(code), "exit_signal": int(signal) if signal.isdecimal() else None}


def _time(text: str, moment_ns: Callable[[str], int] = local_moment_ns) -> int:
    """Convert a time to µs since 1970. sacct prints seconds since 1970, or local times without a zone."""
    return (int(text) * 10**9 if _EPOCH.fullmatch(text) else moment_ns(text)) // 1000


def _seconds(text: str) -> float:
    parts = _fields(_DURATION, text, "not a duration")
    days, hours, minutes, seconds = (float(part or 0) for part in parts)
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def _plain_seconds(text: str) -> float:
    return float(_parse_count(text))


def _minutes(text: str) -> float:
    return 60.0 * _parse_count(text)


def _parse_count(text: str) -> int:
    """Parse an integer; K and M are powers of 1,024."""
    count, prefix = _fields(_COUNT, text, "not a whole number")
    return int(count) << 10 * _POWER[prefix]


def _size(text: str) -> int:
    size, prefix = _fields(_SIZE, text, "not a size")
    return round(float(size) * 1024.0 ** _POWER[prefix])


def _joules(text: str) -> float:
    energy, prefix = _fields(_ENERGY, text, "not an energy")
    return float(energy) * 1000.0 ** _POWER[prefix]


def _fields(pattern: "re.Pattern[str]", text: str, flaw: str) -> tuple[str, ...]:
    match = pattern.fullmatch(text)
    if match is None:
        raise ValueError(flaw)
    return match.groups()


def _tres(row: dict[str, str], column: str) -> dict[str, int]:
    """Parse trackable resources such as ``cpu=8,mem=64G,gres/gpu:h100=8``; other than integer amounts are ignored.

    Raises `_InvalidValueError` if a number of GPUs is not an integer.
    """
    amounts = {}
    for part in row.get(column, "").split(","):
        name, _, amount = part.strip().partition("=")
        try:
            amounts[name] = _size(amount) if name == "mem" else _parse_count(amount)
        except ValueError as error:
            if amount and name.partition(":")[0] == "gres/gpu":
                raise _InvalidValueError(f"{column}: {name} is {error}") from error
    counts_by_type = [count for name, count in amounts.items() if name.startswith("gres/gpu:")]
    if counts_by_type and "gres/gpu" not in amounts:
        amounts["gres/gpu"] = sum(counts_by_type)
    return amounts


def _gpus(text: str) -> int | None:
    counts = [int(match) for match in re.findall(r"gpu(?::[^:,()]+)?:(\d+)(?![\w.])", text)]
    return sum(counts) if counts else None


_COLUMNS: Final[dict[str, tuple[str, Callable[[str], Any]]]] = {
    "JobName": ("job_name", str), "Cluster": ("cluster", str), "Partition": ("pool", str), "Account": ("team", str),
    "User": ("user", str), "QOS": ("quality_of_service", str), "Priority": ("priority", _parse_count),
    "Reason": ("state_reason", str), "Submit": ("submit_ts", _time), "Eligible": ("eligible_ts", _time),
    "Start": ("start_ts", _time), "End": ("end_ts", _time), "ElapsedRaw": ("elapsed_s", _plain_seconds),
    "Elapsed": ("elapsed_s", _seconds), "Suspended": ("suspended_s", _seconds),
    "TimelimitRaw": ("time_limit_s", _minutes), "Timelimit": ("time_limit_s", _seconds),
    "NNodes": ("node_count", _parse_count), "AllocNodes": ("node_count", _parse_count),
    "NCPUS": ("cpu_count", _parse_count), "AllocCPUS": ("cpu_count", _parse_count),
    "TotalCPU": ("cpu_time_s", _seconds), "MaxRSS": ("max_rss_bytes", _size),
    "ConsumedEnergyRaw": ("energy_joules", _joules), "ConsumedEnergy": ("energy_joules", _joules),
    "NodeList": ("node_list", str), "Restarts": ("restart_count", _parse_count), "WorkDir": ("work_dir", str),
    "Comment": ("comment", str),
}  # fmt: skip
_IMPORTED: Final = {*_COLUMNS, "JobID", "State", "ExitCode", "AllocTRES", "ReqTRES", ""}
FORMAT: Final = Format(
    summary="Slurm accounting, sacct --parsable2; JSON of sacct, squeue and sinfo",
    recognises="a header with JobID| and State|, or JSON with jobs or sinfo",
    read=read,
    table="jobs",
    mark=re.compile(rb"^[^\n]*\bJobID[^\n|]*\||" + JOB_MARK),
    zoned=True,
    own_run=False,
    by_file=True,
)
