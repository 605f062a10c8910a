"""Slurm: output of ``sacct --parsable2`` (or ``--parsable``), and JSON of sacct and squeue, becomes rows of ``jobs``.

One row a job, array task, component of a heterogeneous job, or step of one. Which columns there are is up to whoever
asked sacct; JobID and State must be among them. A row is dated to the job's end, else its start, else its submission;
one of a job that has not ended when squeue lists it, to when squeue was asked. JSON of sinfo becomes rows of ``pools``.

AllocTRES and AllocGRES leave out what a job has none of. So a job without GPUs there has none, if any job of its
cluster in the file has some; else the cluster may not count them, and the number is not known. Nor is it where the job
has a share of one (``gres/mps``, ``gres/shard``).
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

_NOTHING: Final = frozenset({"", "Unknown", "None", "N/A", "INVALID", "UNLIMITED", "Partition_Limit", "None assigned"})
_DURATION: Final = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+(?:\.\d+)?)")
_SIZE: Final = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)[cn]?")
_ENERGY: Final = re.compile(r"(\d+(?:\.\d+)?)([KMG]?)")
_COUNT: Final = re.compile(r"(\d+)([KM]?)")
_GPUS: Final = re.compile(r"\bgres/gpu[:=]")
_SHARE: Final = re.compile(r"\bgres/(mps|shard)\b")
_EPOCH: Final = re.compile(r"\d{9,11}")
_FREE_TEXT: Final = ("JobName", "SubmitLine", "WorkDir", "Comment", "AdminComment", "SystemComment", "Extra")
_TEXTS: Final = frozenset({"job_name", "work_dir", "comment", "attributes"})
_MOST_WAYS: Final = 64
_MOST_BYTES: Final = 512 << 20
_SHORTEST_STATE: Final = 4
"""sacct cuts words to the width of a column."""
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
"""Gives every column that something is made of."""


class _UnfitError(ValueError):
    """A value that is none; the text names the column alone."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import what sacct printed; the first line names the columns.

    Raises
    ------
    SourceError
        The first line is no header of sacct's, or the file is no JSON of Slurm's.
    """
    if source.head().lstrip().startswith(b"{"):
        _read_json(source, recording)
        return
    with source.first_look():
        counting = {row.get("Cluster", "").strip() for _, row in _rows(source) if _counts_gpus(row)}
    for line, row in _rows(source):
        if not row:
            recording.refuse("jobs", line.flaw or "another number of fields than the header", line.text, line.number)
            continue
        try:
            counts_gpus = row.get("Cluster", "").strip() in counting
            ts_ns, columns = _job(row, counts_gpus=counts_gpus, moment_ns=recording.moment_ns)
        except _UnfitError as error:
            recording.refuse("jobs", str(error), line.text, line.number)
            continue
        recording.row("jobs", ts_ns, **columns)


def _read_json(source: "Source", recording: "ImportedRun") -> None:
    try:
        document = json.loads(source.read_all(_MOST_BYTES))
    except (ValueError, RecursionError) as error:
        raise SourceError("is no whole JSON document", where=source.name, hint="save it again") from error
    seen = number(document.get("last_update"), zero="")
    seen_ns = int(seen) * 10**9 if seen.isdecimal() else None
    jobs = document.get("jobs")
    if not isinstance(jobs, list):
        by_name = pools(document)
        if not by_name:
            raise SourceError("has neither jobs nor nodes", where=source.name, hint=f"save jobs: {COMMAND}")
        at_ns = seen_ns or source.changed_ms() * 10**6
        for name, pool in sorted(by_name.items()):
            recording.row("pools", at_ns, pool=name, **pool.columns())
        return
    counting = {row.get("Cluster", "").strip() for _, row in job_rows(jobs) if _counts_gpus(row)}
    for at, (given, row) in enumerate(job_rows(jobs), 1):
        try:
            ts_ns, columns = _job(row, counts_gpus=row.get("Cluster", "").strip() in counting)
        except (_UnfitError, KeyError) as error:
            reason = str(error) if row else "no job"
            recording.refuse("jobs", reason, json.dumps(given, ensure_ascii=False), at)
            continue
        is_alive = seen_ns is not None and columns["outcome"] is None
        recording.row("jobs", seen_ns if is_alive and seen_ns else ts_ns, **columns)


def _rows(source: "Source") -> Iterator[tuple["Line", dict[str, str]]]:
    """Yield the lines after the header, with their fields by column; without any where they do not fit the header."""
    header: list[str] = []
    for line in source.lines():
        if not line.text.strip() and line.flaw is None:
            continue
        if not header:
            header = _header(source, line.text)
            continue
        yield line, _row(header, line.text.split("|")) if line.flaw is None else {}


def _row(header: list[str], fields: list[str]) -> dict[str, str]:
    """Return the fields by column; none where they do not fit.

    sacct does not escape a | in what people write, such as a job's name. So surplus fields belong to such columns, if
    that gives a job in one way alone; ways that differ only in these texts are one.
    """
    surplus = len(fields) - len(header)
    if surplus == 0:
        return dict(zip(header, fields, strict=True))
    free = [name for name in _FREE_TEXT if name in header]
    if surplus < 0 or not free or comb(surplus + len(free) - 1, surplus) > _MOST_WAYS:
        return {}
    ways: dict[str, dict[str, str]] = {}
    for columns in combinations_with_replacement(free, surplus):
        row, rest = {}, iter(fields)
        for name in header:
            row[name] = "|".join(islice(rest, 1 + columns.count(name)))
        if any(part.lower().split(" ")[0] in _STATES for name in columns for part in row[name].split("|")):
            continue
        with suppress(_UnfitError):
            ts_ns, job = _job(row, counts_gpus=False)
            facts = {name: value for name, value in job.items() if name not in _TEXTS}
            ways.setdefault(str((ts_ns, facts)), row)
    return ways.popitem()[1] if len(ways) == 1 else {}


def _counts_gpus(row: dict[str, str]) -> bool:
    named = any(_GPUS.search(row.get(name, "")) for name in ("AllocTRES", "ReqTRES"))
    return named or _gpus(row.get("AllocGRES", "")) is not None


def _header(source: "Source", text: str) -> list[str]:
    names = [name.strip().partition("%")[0] for name in text.split("|")]
    if "JobID" not in names:
        names = ["JobID" if name == "JobIDRaw" else name for name in names]
    missing = [name for name in ("JobID", "State") if name not in names]
    if not {"End", "Start", "Submit"} & set(names):
        missing += ["Submit", "Start", "End"]  # sacct's own choice of columns has no time
    if missing:
        near = " ".join(filter(None, (did_you_mean(name, names) for name in missing[:1] if len(names) > 1)))
        is_one = len(names) == 1
        flaw = "the columns are not separated by |" if is_one else f"the first line names no {', '.join(missing)}"
        raise SourceError(flaw, where=source.name, hint=f"{near} print it with: {COMMAND}".strip())
    return names


def _job(
    row: dict[str, str], *, counts_gpus: bool, moment_ns: Callable[[str], int] = local_moment_ns
) -> tuple[int, dict[str, Any]]:
    """Return when a row is of, and its columns; `moment_ns` reads local times. Raises `_UnfitError`."""
    job_id, state = row["JobID"].strip(), row["State"].strip().split()
    if not _JOB_ID.fullmatch(job_id):
        raise _UnfitError("JobID: not a job's id")
    word = state[0].lower().rstrip("+") if state else ""
    known = [name for name in _STATES if name.startswith(word)] if len(word) >= _SHORTEST_STATE else []
    if not known:
        raise _UnfitError("State: not a state")
    full = word if word in known else min(known)
    columns: dict[str, Any] = {"job_id": job_id, "state": full, "outcome": _outcome(full)}
    for name, (target, convert) in _COLUMNS.items():
        text = row.get(name, "").strip()
        if text in _NOTHING or columns.get(target) is not None:
            continue
        try:
            columns[target] = _time(text, moment_ns) if convert is _time else convert(text)
        except ValueError as error:
            raise _UnfitError(f"{name}: {error}") from error
    columns |= _exit(row.get("ExitCode", ""))
    _derive(columns, row, counts_gpus=counts_gpus)
    moments = [columns.get(name) for name in ("end_ts", "start_ts", "submit_ts")]
    ts_us = next((at for at in moments if at is not None), None)
    if ts_us is None:
        raise _UnfitError("End, Start, Submit: no time is known")
    left = {name: text for name, text in row.items() if name not in _TAKEN and text.strip() not in _NOTHING}
    if len(state) > 1:  # CANCELLED by 1000
        left["CancelledBy"] = state[-1]
    columns["attributes"] = json.dumps(left, sort_keys=True, ensure_ascii=False) if left else None
    return ts_us * 1000, columns


def _derive(columns: dict[str, Any], row: dict[str, str], *, counts_gpus: bool) -> None:
    """Fill in what follows from other columns: from TRES, from times."""
    allocated, asked = (_tres(row, name) for name in ("AllocTRES", "ReqTRES"))
    columns["gpu_count"] = allocated.get("gres/gpu", _gpus(row.get("AllocGRES", "")))
    share = _SHARE.search(row.get("AllocTRES", ""))
    is_known = allocated or ("AllocGRES" in row and columns.get("start_ts") is not None)
    if columns["gpu_count"] is None and is_known and counts_gpus and not share:
        columns["gpu_count"] = 0
    columns["gpu_requested_count"] = asked.get("gres/gpu", _gpus(row.get("ReqGRES", "")))
    kinds = {name.partition("gres/gpu:")[2] for name in {**asked, **allocated} if name.startswith("gres/gpu:")}
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
        suspended_s = columns.get("suspended_s") or 0.0  # Slurm's elapsed time leaves out suspension
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
    """Return µs since 1970; sacct prints local times, which name no zone."""
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
    """Return a number; sacct writes K and M for multiples of 1,024."""
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
    """Return what of a list of trackable resources is a number: ``cpu=8,mem=64G,gres/gpu:h100=8``.

    Raises `_UnfitError` for a number of GPUs that is not whole.
    """
    amounts = {}
    for part in row.get(column, "").split(","):
        name, _, amount = part.strip().partition("=")
        try:
            amounts[name] = _size(amount) if name == "mem" else _parse_count(amount)
        except ValueError as error:
            if amount and name.partition(":")[0] == "gres/gpu":
                raise _UnfitError(f"{column}: {name} is {error}") from error
    of_kinds = [count for name, count in amounts.items() if name.startswith("gres/gpu:")]
    if of_kinds and "gres/gpu" not in amounts:
        amounts["gres/gpu"] = sum(of_kinds)
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
_TAKEN: Final = {*_COLUMNS, "JobID", "State", "ExitCode", "AllocTRES", "ReqTRES", ""}
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
