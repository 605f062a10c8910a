"""SGE: converts the file ``accounting`` of Grid Engine (SGE, Son of Grid Engine, Open, Univa) to rows of ``jobs``.

Each line is a job, with fields separated by colons as in accounting(5). A job's category has the number of requested
GPUs (``-l gpu=1``). Settings of the cluster, which the file does not have, decide whether this is per job or per slot.
So the number is known only for jobs with one slot.
"""

import json
import re
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.accounting import NO_GPUS, add_job, count, epoch_us, refuse_flawed, requested_gpus
from ranklake.capture.importers.formats import Format

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_NAMES: Final = (
    "qname", "hostname", "group", "owner", "job_name", "job_number", "account", "priority", "submission_time",
    "start_time", "end_time", "failed", "exit_status", "ru_wallclock", "ru_utime", "ru_stime", "ru_maxrss", "ru_ixrss",
    "ru_ismrss", "ru_idrss", "ru_isrss", "ru_minflt", "ru_majflt", "ru_nswap", "ru_inblock", "ru_oublock", "ru_msgsnd",
    "ru_msgrcv", "ru_nsignals", "ru_nvcsw", "ru_nivcsw", "project", "department", "granted_pe", "slots", "task_number",
    "cpu", "mem", "io", "category", "iow", "pe_taskid", "maxvmem",
)  # fmt: skip
_GPUS: Final = re.compile(r"-l (?:\S*,)?(?:n?gpus?|cuda|num_gpu)=(\d+)")
_NONE: Final = frozenset({"", "NONE", "none"})
_AMOUNT: Final = re.compile(r"\d{1,15}(\.\d+)?")
_SIGNALLED: Final = 128
_OVER_LIMIT: Final = "37"


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a file. Lines that are not jobs are refused."""
    with source.first_look():
        counts_gpus = any(_GPUS.search(line.text) for line in source.lines())
    parallel_tasks = 0
    for line in source.lines():
        if line.flaw is None and (not line.text.strip() or line.text.startswith("#")):
            continue
        fields = line.text.split(":")
        if line.flaw or len(fields) < len(_NAMES):
            flaw = line.flaw or f"{len(fields)} fields instead of {len(_NAMES)} or more"
            recording.refuse("jobs", flaw, line.text, line.number)
            continue
        row = dict(zip(_NAMES, fields, strict=False))
        if row["pe_taskid"] not in _NONE:
            parallel_tasks += 1
            continue
        with refuse_flawed(recording, line):
            add_job(recording, line, _job(row, counts_gpus=counts_gpus))
    if parallel_tasks:
        recording.notes[f"{parallel_tasks:,} tasks of parallel jobs are left out: their jobs count them"] = None
    if not counts_gpus:
        recording.notes[NO_GPUS] = None


def _job(row: dict[str, str], *, counts_gpus: bool) -> dict[str, Any]:
    number, task, slots = row["job_number"], count(row["task_number"]), count(row["slots"])
    status, failed = count(row["exit_status"]), row["failed"].partition(" ")[0]
    if not number.isdecimal() or status is None or not failed.isdecimal():
        flaw = "the job's number or status is invalid"
        raise ValueError(flaw)
    gpus = requested_gpus(_GPUS.search(row["category"]), counts_gpus=counts_gpus, is_total=slots == 1)
    is_completed = failed == "0" and status == 0
    state = "completed" if is_completed else "timeout" if failed == _OVER_LIMIT else "failed"
    is_parallel = row["granted_pe"] not in _NONE
    attributes = {
        name: row[name] for name in ("failed", "granted_pe", "category", "department") if row[name] not in _NONE
    }
    start_us, cpu_s, rss_kib = epoch_us(row["start_time"]), row["cpu"], row["ru_maxrss"]
    return {
        "job_id": f"{number}_{task}" if task else number, "array_job_id": number if task else None,
        "job_name": row["job_name"], "pool": row["qname"], "user": row["owner"],
        "team": None if row["project"] in _NONE else row["project"], "state": state,
        "outcome": "completed" if is_completed else "failed", "submit_ts": epoch_us(row["submission_time"]),
        "start_ts": start_us, "end_ts": epoch_us(row["end_time"]), "cpu_count": slots,
        "exit_code": status if status <= _SIGNALLED else None,
        "exit_signal": status - _SIGNALLED if status > _SIGNALLED else 0,
        "gpu_count": gpus if start_us is not None else None, "gpu_requested_count": gpus,
        "cpu_time_s": float(cpu_s) if _AMOUNT.fullmatch(cpu_s) else None,
        "max_rss_bytes": round(float(rss_kib) * 1024) if _AMOUNT.fullmatch(rss_kib) else None,
        "node_list": None if is_parallel else row["hostname"], "node_count": None if is_parallel else 1,
        "attributes": json.dumps(attributes, sort_keys=True, ensure_ascii=False),
    }  # fmt: skip


FORMAT: Final = Format(
    summary="accounting of Grid Engine (SGE)",
    recognises="lines of 43 fields or more, separated by colons",
    read=read,
    table="jobs",
    mark=re.compile(rb"\A(?:#[^\n]*\n)*(?:[^:\n]*:){5}\d+:[^:\n]*:-?\d+:\d+:\d+:\d+:\d+(?: [^:\n]*)?:(?:[^:\n]*:){30}"),
    own_run=False,
    by_file=True,
)
