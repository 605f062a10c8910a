"""SWF: converts traces in the Standard Workload Format of the Parallel Workloads Archive to rows of ``jobs``.

Each job is a line of eighteen numbers, with -1 for unknown ones. Times are seconds since the trace's ``UnixStartTime``
(https://www.cs.huji.ac.il/labs/parallel/workload/swf.html). The format has no GPUs. Tables have no times before 2000,
so older traces are counted from 2000-01-01, with a note.
"""

import re
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.importers.accounting import NO_GPUS, add_job
from ranklake.capture.importers.formats import Format
from ranklake.capture.importers.units import YEAR_2000_NS

if TYPE_CHECKING:
    from ranklake.capture.importers.imported_run import ImportedRun
    from ranklake.capture.importers.source import Source

_FIELDS: Final = 18
_HEADER: Final = re.compile(r";\s*([A-Za-z][\w ]*?)\s*:\s*(.*)")
_START: Final = re.compile(r"\d{1,10}")
_NUMBER: Final = re.compile(r"-?\d{1,15}(?:\.\d+)?")
_STATES: Final = {0: "failed", 1: "completed", 5: "cancelled"}
_PARTIAL: Final = frozenset({2, 3, 4})
"""Statuses of lines for a part of a job."""


def read(source: "Source", recording: "ImportedRun") -> None:
    """Import a trace. Lines with another number of fields are refused."""
    start_us, cluster = YEAR_2000_NS // 1000, None
    has_start, partial = False, 0
    for line in source.lines():
        text = line.text.strip()
        if header := _HEADER.fullmatch(text):
            if header[1] == "UnixStartTime" and _START.fullmatch(header[2].strip()):
                start_us, has_start = max(start_us, int(header[2]) * 10**6), int(header[2]) * 10**6 >= start_us
            elif header[1] == "Computer":
                cluster = header[2].strip() or None
        if line.flaw is None and (not text or text.startswith(";")):
            continue
        words = text.split()
        if line.flaw or len(words) != _FIELDS or not all(map(_NUMBER.fullmatch, words)):
            recording.refuse("jobs", line.flaw or "not eighteen numbers", line.text, line.number)
            continue
        numbers = [float(word) for word in words]
        # a checkpointed or swapped job has a line for the whole job, and one for each part
        if int(numbers[10]) in _PARTIAL:
            partial += 1
            continue
        add_job(recording, line, _job(numbers, start_us) | {"cluster": cluster})
    if not has_start:
        recording.notes["the trace has no UnixStartTime since 2000: times count from 2000-01-01"] = None
    if partial:
        recording.notes[f"{partial:,} parts of jobs are left out: their jobs count them"] = None
    recording.notes[NO_GPUS] = None


def _job(numbers: list[float], origin_us: int) -> dict[str, Any]:
    values = [None if number < 0 else number for number in numbers]
    job, submit_s, wait_s, run_s, processors, cpu_s, _, requested_processors, limit_s, *rest = values
    _, status, user, _, _, queue, partition, preceding_job, _ = rest
    submit_us = None if submit_s is None else origin_us + round(submit_s * 1e6)
    start_us = None if submit_us is None or wait_s is None else submit_us + round(wait_s * 1e6)
    state = None if status is None else _STATES.get(int(status))
    is_unstarted = state == "cancelled" and not run_s
    start_us = None if is_unstarted else start_us
    return {
        "job_id": "unknown" if job is None else str(int(job)), "submit_ts": submit_us, "start_ts": start_us,
        "end_ts": None if start_us is None or run_s is None else start_us + round(run_s * 1e6), "elapsed_s": run_s,
        "cpu_count": _to_int(processors or requested_processors),
        "cpu_time_s": cpu_s * processors if cpu_s is not None and processors else None,
        "time_limit_s": limit_s, "state": state, "outcome": state, "user": _to_name(user),
        "pool": _to_name(partition) or _to_name(queue), "dependency_of": _to_name(preceding_job),
    }  # fmt: skip


def _to_int(number: float | None) -> int | None:
    return None if number is None else int(number)


def _to_name(number: float | None) -> str | None:
    return None if number is None else str(int(number))


FORMAT: Final = Format(
    summary="traces in the Standard Workload Format",
    recognises="lines of eighteen numbers, after comments that begin with a semicolon",
    read=read,
    table="jobs",
    mark=re.compile(
        rb"\A(?:;[^\n]*\n|[ \t\r]*\n)*[ \t]*(?:-?\d+(?:\.\d+)?[ \t]+){17}-?\d+(?:\.\d+)?[ \t]*\r?(?:\n|\Z)|"
        rb"\A;\s*(?:Version|Computer|Information|Acknowledge|Conversion|MaxJobs)\b"
    ),
    own_run=False,
    by_file=True,
)
