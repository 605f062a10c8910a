# ruff: noqa: E501 - JSON as Slurm prints it
"""JSON of Slurm: the same rows as sacct's table gives, and what only squeue and sinfo say."""

import json
from datetime import UTC, datetime

import pytest
from importing import ask, imported
from slurm_rows import HEADER, ROWS

from ranklake.capture.importers.imports import import_files
from ranklake.capture.importers.source import SourceError

UNSET = {"set": False, "infinite": False, "number": 0}
QUEUED = {  # Slurm 23.11, data_parser v0.0.40
    "account": "acc", "array_job_id": {"infinite": False, "number": 6077609, "set": True},
    "array_task_id": {"infinite": False, "number": 41, "set": True}, "array_task_string": "", "cluster": "cluster",
    "cpus": {"infinite": False, "number": 1, "set": True}, "current_working_directory": "/home/acc", "dependency": "",
    "eligible_time": {"infinite": False, "number": 1711534808, "set": True},
    "end_time": {"infinite": False, "number": 1712226008, "set": True},
    "exit_code": {"return_code": {"infinite": False, "number": 0, "set": True}, "signal": {"id": UNSET, "name": ""}, "status": ["SUCCESS"]},
    "het_job_id": {"infinite": False, "number": 0, "set": True}, "het_job_offset": {"infinite": False, "number": 0, "set": True},
    "job_id": 6080221, "job_state": ["RUNNING"], "name": "archive", "node_count": {"infinite": False, "number": 1, "set": True},
    "nodes": "cma2-02", "partition": "cs", "priority": {"infinite": False, "number": 1, "set": True}, "qos": "normal",
    "restart_cnt": 2, "start_time": {"infinite": False, "number": 1711534808, "set": True}, "state_reason": "None",
    "submit_time": {"infinite": False, "number": 1711533827, "set": True},
    "time_limit": {"infinite": False, "number": 11520, "set": True},
    "tres_alloc_str": "cpu=1,mem=9000M,node=1,billing=1,gres/gpu=2", "tres_req_str": "cpu=1,mem=9000M,node=1,billing=1,gres/gpu=2",
    "user_id": 37524, "user_name": "acc",
}  # fmt: skip
WAITING = QUEUED | {
    "job_id": 7, "array_job_id": {"number": 7, "set": True}, "array_task_id": UNSET, "array_task_string": "1-9%2",
    "job_state": "PENDING", "state_reason": "Priority", "time_limit": {"infinite": True, "set": False, "number": 0},
}  # fmt: skip


def number(value):
    return {"set": True, "infinite": False, "number": value}


def epoch(text):
    return 0 if text == "Unknown" else int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def seconds(text):
    days, _, clock = text.rpartition("-")
    total = 0.0
    for part in clock.split(":"):
        total = total * 60 + float(part)
    return total + 86_400 * int(days or 0)


def tres(text, unit=1 << 20):
    units = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
    items = []
    for part in (part for part in text.split(",") if "=" in part):
        name, _, count = part.partition("=")
        kind, _, of = name.partition("/")
        amount = int(float(count[:-1]) * units[count[-1]]) // unit if kind == "mem" else int(count)
        items.append({"type": kind, "name": of, "id": 1, "count": amount})
    return items


def as_json(line, form):
    """Return a row of sacct's table as a newer, or an older, Slurm has it in JSON."""
    row = dict(zip(HEADER.split("|"), line.split("|"), strict=True))
    wrap = number if form == "v0.0.41" else int
    code, signal = map(int, row["ExitCode"].split(":"))
    states = row["State"].split()[0].replace("OUT_OF_ME+", "OUT_OF_MEMORY")
    total = seconds(row["TotalCPU"]) if row["TotalCPU"] else 0
    limit = row["Timelimit"]
    part = {
        "name": row["JobName"], "state": {"current": [states] if form == "v0.0.41" else states, "reason": row["Reason"]},
        "exit_code": {"return_code": wrap(code), "signal": {"id" if form == "v0.0.41" else "signal_id": wrap(signal)}},
        "time": {
            "submission": epoch(row["Submit"]), "start": epoch(row["Start"]), "end": epoch(row["End"]), "eligible": 0,
            "elapsed": int(seconds(row["Elapsed"])), "suspended": 0,
            "total": {"seconds": int(total), "microseconds": round(total % 1 * 1e6)},
            "limit": {"set": False, "infinite": True, "number": 0} if limit == "UNLIMITED" else wrap(int(seconds(limit) // 60) if limit else 0),
        },
        "tres": {"allocated": tres(row["AllocTRES"]), "requested": tres(row["ReqTRES"])},
    }  # fmt: skip
    job, _, task = row["JobID"].partition("_")
    job, _, offset = job.partition("+")
    return part | {
        "job_id": int(job), "account": row["Account"], "user": row["User"], "partition": row["Partition"],
        "nodes": row["NodeList"], "allocation_nodes": int(row["NNodes"]), "steps": [],
        "array": {"job_id": int(job) if task else 0, "task_id": wrap(int(task)) if task.isdecimal() else UNSET if form == "v0.0.41" else None, "task": task.strip("[]")},
        "het": {"job_id": int(job) if offset else 0, "job_offset": wrap(int(offset or 0))},
    }  # fmt: skip


@pytest.mark.parametrize("form", ["v0.0.38", "v0.0.41"])
def test_json_gives_the_rows_that_the_table_gives(lake, spool, tmp_path, form):
    """Jobs, arrays, parts of heterogeneous jobs: column for column."""
    lines = [line for line in ROWS if not line.startswith("100.")]
    jobs = [as_json(line, form) for line in lines]
    (tmp_path / "sacct.txt").write_text("\n".join([HEADER, *lines]) + "\n")
    (tmp_path / "sacct.json").write_text(json.dumps({"meta": {"Slurm": {}}, "errors": [], "jobs": jobs}, indent=1))
    for name in ("sacct.txt", "sacct.json"):
        done = imported(lake, spool, "sacct", tmp_path / name, run=name[-4:].strip("."))
        assert (done.rows, done.refused) == ({"jobs": len(lines)}, {})
    own = {"run", "incarnation", "segment", "slot", "attributes", "ts", "date"}
    # columns that these rows have and JSON of a job has not, or the other way round
    own |= {"cpu_count", "energy_joules", "max_rss_bytes", "suspended_s"}
    rows = ask(lake, "SELECT * FROM jobs ORDER BY run, job_id")
    table, document = (
        [{name: value for name, value in row.items() if name not in own} for row in rows if row["run"] == run]
        for run in ("txt", "json")
    )
    assert document == table
    gpus = {row["job_id"]: row["gpu_count"] for row in rows}
    assert gpus["100"] == 8


def test_steps_are_rows_of_their_jobs(lake, spool, tmp_path):
    """As `sacct` prints them: 101_7.batch."""
    job = as_json(ROWS[2], "v0.0.41")
    step = {
        "step": {"id": "4711.batch", "name": "batch"}, "state": ["COMPLETED"], "nodes": {"count": 1, "range": "n2"},
        "time": {"elapsed": 9, "start": number(job["time"]["start"]), "end": number(job["time"]["end"]), "suspended": 0, "total": {"seconds": 7, "microseconds": 500000}},
        "exit_code": {"return_code": number(0), "signal": {"id": UNSET}},
        "tres": {"allocated": tres("cpu=1,mem=1G,gres/gpu=2"), "requested": {"max": [{"type": "mem", "name": "", "count": 12_345 * 1024}]}},
    }  # fmt: skip
    (tmp_path / "s.json").write_text(json.dumps({"jobs": [job | {"steps": [step, "none"]}, 5], "meta": {"slurm": {}}}))
    done = imported(lake, spool, "sacct", tmp_path / "s.json")
    assert (done.rows["jobs"], done.refused) == (2, {"not a job": 2})
    row = next(row for row in ask(lake, "SELECT * FROM jobs") if row["job_id"] == "101_7.batch")
    assert (row["job_name"], row["cpu_time_s"], row["gpu_count"], row["outcome"]) == ("batch", 7.5, 2, "completed")
    assert (row["max_rss_bytes"], row["memory_bytes"]) == (12_345 * 1024, 1 << 30)


def test_squeue_expects_nothing(lake, spool, tmp_path):
    """A job that runs has no end yet, one that waits no start; both are of the time at which squeue was asked."""
    document = {"jobs": [QUEUED, WAITING], "last_update": number(1711536388), "meta": {"slurm": {}}}
    (tmp_path / "squeue.json").write_text(json.dumps(document))
    done = imported(lake, spool, "sacct", tmp_path / "squeue.json")
    assert (done.rows, done.refused) == ({"jobs": 2}, {})
    jobs = {row["job_id"]: row for row in ask(lake, "SELECT * FROM jobs")}
    runs, waits = jobs["6077609_41"], jobs["7_[1-9%2]"]
    assert (runs["state"], runs["end_ts"], runs["exit_code"], runs["gpu_count"]) == ("running", None, None, 2)
    assert (runs["queue_time_s"], runs["time_limit_s"], runs["restart_count"]) == (981, 691_200, 2)
    assert (waits["start_ts"], waits["gpu_count"], waits["gpu_requested_count"]) == (None, None, 2)
    assert (waits["time_limit_s"], waits["outcome"]) == (None, None)
    assert {row["ts"].timestamp() for row in jobs.values()} == {1711536388}


def test_sinfo_is_a_state_of_partitions(lake, spool, tmp_path):
    """GPUs in use are NULL where Slurm does not say; those of nodes that are down are not idle."""
    nodes = [("gpu", 3, "gpu:h100:8(S:0-1)", "gpu:h100:5(IDX:0-4)", ["MIXED"]), ("gpu", 1, "gpu:h100:8", "gpu:h100:0(IDX:N/A)", ["IDLE", "DRAIN"]),
             ("cpu", 2, "", "", ["ALLOCATED"]), ("old", 1, "gpu:a100:4", None, ["IDLE"])]  # fmt: skip
    entries = [
        {"partition": {"name": name}, "nodes": {"total": count, "nodes": ["n"]}, "node": {"state": state}, "cpus": {"allocated": 3},
         "gres": {"total": gres} | ({} if used is None else {"used": used})}
        for name, count, gres, used, state in nodes
    ]  # fmt: skip
    single = [
        {"name": f"{name}{at}", "partitions": [name], "state": state, "gres": gres, "gres_used": used, "alloc_cpus": 3}
        for name, count, gres, used, state in nodes
        for at in range(count)
    ]
    for kind, items in (("sinfo", entries), ("nodes", single)):
        (tmp_path / f"{kind}.json").write_text(
            json.dumps({kind: items, "last_update": number(1711536388), "meta": {"slurm": {}}})
        )
        imported(lake, spool, "sacct", tmp_path / f"{kind}.json", run=kind)
        rows = {row["pool"]: row for row in ask(lake, f"SELECT * FROM pools WHERE run = '{kind}'")}
        names = ("gpu_total", "gpu_allocated", "gpu_idle", "gpu_unavailable", "node_total", "node_unavailable")
        assert [rows["gpu"][name] for name in names] == [32, 15, 9, 8, 4, 1]
        assert [rows["cpu"][name] for name in names] == [0, 0, 0, 0, 2, 0]
        assert [rows["old"][name] for name in names] == [4, None, None, None, 1, 0]
        assert rows["gpu"]["gpu_type"] == "h100"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ('{"jobs": [{"job_id": 1, "time": {', "not a complete JSON document"),
        ('{"errors": [], "nodes": [], "meta": {"slurm": {}}}', "neither jobs nor nodes"),
    ],
)
def test_what_is_no_document(tmp_path, text, what):
    """Cut off, or empty."""
    (tmp_path / "x.json").write_text(text)
    with pytest.raises(SourceError, match=what):
        import_files("sacct", [str(tmp_path / "x.json")], str(tmp_path / "spool"))
