"""Slurm JSON: reads ``sacct --json``, ``squeue --json``, ``sinfo --json`` and ``scontrol show nodes --json``.

Jobs are converted to the columns of ``sacct --parsable2``, which `sacct` then reads. Nodes are added up to the GPUs of
each partition. Keys are those of data_parser v0.0.37 (Slurm 22.05) to v0.0.42 (24.11). A number is plain or
``{"set": …, "infinite": …, "number": …}``, a state is a word or a list of words.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from ranklake.capture.importers.accounting import child

JOB_MARK: Final = rb"\A\s*\{(?=[\s\S]*\"(?:jobs|sinfo|nodes)\"\s*:)(?=[\s\S]*\"(?:[sS]lurm|job_id|gres_used)\"\s*:)"
_NOT_SET: Final = frozenset({0xFFFFFFFE, 0xFFFFFFFF, 0xFFFFFFFFFFFFFFFE, 0xFFFFFFFFFFFFFFFF})
_WAITING: Final = frozenset({"PENDING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "CONFIGURING"})
_NOT_ENDED: Final = _WAITING | {"RUNNING", "SUSPENDED", "COMPLETING", "STOPPED", "STAGE_OUT", "SIGNALING", "RESIZING"}
_MAX_MEGABYTES: Final = 1 << 32
_GPUS: Final = re.compile(r"(?:gres/)?gpu(?::([^:(,=]+))?[:=](\d+)")
_DOWN: Final = re.compile(r"DOWN|DRAIN|FAIL|MAINT|RESERVED|UNKNOWN|NO_RESPOND|NOT_RESPONDING|REBOOT|FUTURE")


def job_rows(jobs: list[Any]) -> Iterator[tuple[Any, dict[str, str]]]:
    """Yield each job and then its steps: the entry, and its values by sacct's columns, empty if it is not a job."""
    for job in jobs:
        if not isinstance(job, dict):
            yield job, {}
            continue
        row = _sacct_row(job) if isinstance(job.get("time"), dict) else _squeue_row(job)
        yield {name: value for name, value in job.items() if name != "steps"}, row
        steps = job.get("steps")
        for step in steps if isinstance(steps, list) else []:
            yield step, _step_row(step, row)


def _sacct_row(job: dict[str, Any]) -> dict[str, str]:
    """Return the row of a job of ``sacct --json``."""
    row = _shared_columns(job, job.get("association"))
    comment, array, het = child(job, "comment"), child(job, "array"), child(job, "het")
    row["Comment"] = str(comment.get("job") or "")
    row["WorkDir"] = str(job.get("working_directory") or "")
    row["NNodes"] = number(job.get("allocation_nodes"))
    row["Restarts"] = number(job.get("restart_cnt"))
    row["JobID"] = _job_id(
        job, (array.get("job_id"), array.get("task_id"), array.get("task")), (het.get("job_id"), het.get("job_offset"))
    )
    return row


def _shared_columns(entry: dict[str, Any], association: Any = None) -> dict[str, str]:  # noqa: ANN401 - JSON
    """Return the columns that both jobs and steps have."""
    owner = association if isinstance(association, dict) else {}
    state, time, tres = child(entry, "state"), child(entry, "time"), child(entry, "tres")
    row = {
        column: str(entry.get(key) or owner.get(key) or "")
        for column, key in (("JobName", "name"), ("Cluster", "cluster"), ("Partition", "partition"), ("User", "user"),
                            ("Account", "account"), ("QOS", "qos"))
    }  # fmt: skip
    nodes = entry.get("nodes")
    row["NodeList"] = nodes if isinstance(nodes, str) else str(child(entry, "nodes").get("range") or "")
    row["State"] = _state_word(state.get("current") or entry.get("state"))
    row["Reason"] = str(state.get("reason") or "")
    row["Priority"] = number(entry.get("priority"))
    row["ExitCode"] = _exit_code(entry)
    for column, key in (("Submit", "submission"), ("Eligible", "eligible"), ("Start", "start"), ("End", "end")):
        row[column] = number(time.get(key), zero="")
    row["ElapsedRaw"], row["TimelimitRaw"] = number(time.get("elapsed")), number(time.get("limit"), zero="")
    row["Suspended"] = f"0:{number(time.get('suspended')) or 0}"
    total = child(time, "total")
    if total.get("seconds") or total.get("microseconds"):
        row["TotalCPU"] = f"0:{int(total.get('seconds') or 0)}.{int(total.get('microseconds') or 0):06d}"
    row["AllocTRES"], row["ReqTRES"] = _tres(tres.get("allocated")), _tres(tres.get("requested"))
    return row


def _step_row(step: Any, job: dict[str, str]) -> dict[str, str]:  # noqa: ANN401 - JSON
    if not isinstance(step, dict):
        return {}
    row = _shared_columns(step)
    name = child(step, "step")
    suffix = str(name.get("id") or "").partition(".")[2] or str(name.get("name") or "")
    row |= {column: job[column] for column in ("Cluster", "Partition", "User", "Account", "QOS") if column in job}
    row |= {"JobID": f"{job.get('JobID', '')}.{suffix}", "JobName": str(name.get("name") or ""), "ReqTRES": ""}
    row |= {"Submit": job.get("Submit", ""), "Eligible": "", "TimelimitRaw": ""}
    row["NNodes"] = number(child(step, "nodes").get("count"))
    maxima = child(child(step, "tres"), "requested").get("max")
    memory = [item for item in maxima if isinstance(item, dict) and item.get("type") == "mem"] if maxima else []
    row["MaxRSS"] = number(memory[0].get("count"), zero="") if memory else ""
    row["ConsumedEnergyRaw"] = number(child(child(step, "statistics"), "energy").get("consumed"), zero="")
    return row


def _squeue_row(job: dict[str, Any]) -> dict[str, str]:
    """Return the row of a job of ``squeue --json``, without expected start and end times."""
    row = {
        column: str(job.get(key) or "")
        for column, key in (("JobName", "name"), ("Cluster", "cluster"), ("Partition", "partition"),
                            ("Account", "account"), ("User", "user_name"), ("QOS", "qos"), ("Reason", "state_reason"),
                            ("NodeList", "nodes"), ("WorkDir", "current_working_directory"), ("Comment", "comment"),
                            ("AllocTRES", "tres_alloc_str"), ("ReqTRES", "tres_req_str"), ("Dependency", "dependency"))
    }  # fmt: skip
    state = row["State"] = _state_word(job.get("job_state"))
    times = {"Submit": "submit_time", "Eligible": "eligible_time", "Start": "start_time", "End": "end_time"}
    for column, key in times.items():
        is_expected = (column == "Start" and state in _WAITING) or (column == "End" and state in _NOT_ENDED)
        row[column] = "" if is_expected else number(job.get(key), zero="")
    for column, key in (("Priority", "priority"), ("NNodes", "node_count"), ("NCPUS", "cpus"),
                        ("Restarts", "restart_cnt")):  # fmt: skip
        row[column] = number(job.get(key))
    row["TimelimitRaw"] = number(job.get("time_limit"), zero="")
    row["ExitCode"] = "" if state in _NOT_ENDED else _exit_code(job)
    if state in _WAITING:
        row["AllocTRES"] = ""
    ids = (job.get("array_job_id"), job.get("array_task_id"), job.get("array_task_string"))
    row["JobID"] = _job_id(job, ids, (job.get("het_job_id"), job.get("het_job_offset")))
    return row


def number(value: Any, zero: str = "0") -> str:  # noqa: ANN401 - JSON
    """Return a number as sacct prints it: empty if it is not set, `zero` for 0."""
    if isinstance(value, dict):
        if value.get("infinite"):
            return "UNLIMITED"
        value = value.get("number") if value.get("set", True) else None
    if value is None or isinstance(value, bool) or value == "" or value in _NOT_SET:
        return ""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return zero if value in (0, "0") else str(value)


def _job_id(job: dict[str, Any], array: tuple[Any, Any, Any], het: tuple[Any, Any]) -> str:
    """Return a job's id as sacct prints it: 101_7 for an array task, 102+0 for a part of a heterogeneous job."""
    job_id, array_id, task = number(job.get("job_id")), number(array[0], zero=""), number(array[1])
    if het_id := number(het[0], zero=""):
        return f"{het_id}+{number(het[1])}"
    if not array_id:
        return job_id
    if task:
        return f"{array_id}_{task}"
    return f"{array_id}_[{array[2]}]" if array[2] and isinstance(array[2], str) else job_id


def _exit_code(entry: dict[str, Any]) -> str:
    code = entry.get("exit_code")
    if not isinstance(code, dict):  # a status of waitpid(2)
        status = number(code)
        return f"{int(status) >> 8}:{int(status) & 0x7F}" if status.isdecimal() else ""
    signal = child(code, "signal")
    return f"{number(code.get('return_code'))}:{number(signal.get('id', signal.get('signal_id'))) or 0}"


def _tres(items: Any) -> str:  # noqa: ANN401 - JSON
    """Format trackable resources as sacct does: ``cpu=8,mem=1024M,gres/gpu:h100=8``."""
    parts = []
    for item in items if isinstance(items, list) else []:
        if not isinstance(item, dict) or not (count := number(item.get("count"))) or count.startswith("-"):
            continue
        kind, name = str(item.get("type") or ""), str(item.get("name") or "")
        if kind == "mem" and float(count) >= _MAX_MEGABYTES:  # in another unit
            continue
        parts.append(f"{kind}/{name}={count}" if name else f"{kind}={count}{'M' * (kind == 'mem')}")
    return ",".join(parts)


def _state_word(state: Any) -> str:  # noqa: ANN401 - JSON
    return str(state[0] if isinstance(state, list) and state else state or "")


@dataclass
class Pool:
    """GPUs and nodes of a partition.

    Attributes
    ----------
    total, down
        Number of GPUs, and of those on nodes that are down.
    held, held_down
        Number of GPUs that jobs hold, and of those on nodes that are down; `held` is None if a node does not report it.
    nodes, nodes_held, nodes_down
        Number of nodes, of nodes with jobs, and of nodes that are down.
    types
        Types of GPUs.
    """

    total: int = 0
    held: int | None = 0
    held_down: int = 0
    down: int = 0
    nodes: int = 0
    nodes_held: int = 0
    nodes_down: int = 0
    types: set[str] = field(default_factory=set)

    def add(self, count: int, gres: str, used: str | None, states: list[str], *, is_used: bool) -> None:
        """Add `count` equal nodes. `gres`: resources of each; `used`: those that jobs hold, None if not reported."""
        per_node = _gpus(gres, self.types)
        held = _gpus(used, set()) if used is not None else None if per_node else 0
        is_down = any(_DOWN.search(state) for state in states)
        self.total += count * per_node
        self.held = None if self.held is None or held is None else self.held + count * held
        self.down += count * per_node * is_down
        self.held_down += count * (held or 0) * is_down
        self.nodes += count
        self.nodes_held += count * is_used
        self.nodes_down += count * is_down

    def columns(self) -> dict[str, Any]:
        """Return the columns of a row of ``pools``. GPUs of a node that is down are unavailable unless held."""
        row: dict[str, Any] = {
            "gpu_type": next(iter(self.types)) if len(self.types) == 1 else None, "gpu_total": float(self.total),
            "node_total": self.nodes, "node_allocated": self.nodes_held, "node_unavailable": self.nodes_down,
        }  # fmt: skip
        if self.held is not None:
            unavailable = self.down - self.held_down
            row |= {"gpu_allocated": float(self.held), "gpu_unavailable": float(unavailable)}
            row["gpu_idle"] = float(self.total - self.held - unavailable)
        return row


def pools(document: dict[str, Any]) -> dict[str, Pool]:
    """Return the partitions in a document of sinfo or of nodes, by name."""
    by_name: dict[str, Pool] = {}
    items = document.get("sinfo") or document.get("nodes")
    for item in (item for item in items if isinstance(item, dict)) if isinstance(items, list) else ():
        gres: Any = item.get("gres")
        used: Any = item.get("gres_used")
        names, states, cpus, count = _words(item.get("partitions")), item.get("state"), item.get("alloc_cpus"), 1
        if "sinfo" in document:
            names = _words(child(item, "partition").get("name"))
            states, cpus = child(item, "node").get("state"), child(item, "cpus").get("allocated")
            nodes = child(item, "nodes")
            count = int(number(nodes.get("total")) or len(_words(nodes.get("nodes"))))
        if isinstance(gres, dict):
            gres, used = gres.get("total"), gres.get("used")
        for name in names:
            is_used = number(cpus, zero="") != ""
            by_name.setdefault(name, Pool()).add(count, str(gres or ""), used, _words(states), is_used=is_used)
    return by_name


def _words(value: Any) -> list[str]:  # noqa: ANN401 - JSON
    return [str(item) for item in value] if isinstance(value, list) else [str(value)] if value else []


def _gpus(gres: str, types: set[str]) -> int:
    counts = [(kind, int(count)) for kind, count in _GPUS.findall(re.sub(r"\([^)]*\)", "", gres))]
    types.update(kind for kind, count in counts if kind and count)
    return sum(count for _, count in counts)
