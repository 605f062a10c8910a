"""What the demo recorded beside its steps: host, code, data, checkpoint and log lines, asked from the lake."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ranklake.allowed import allowed
from ranklake.artifacts import recorded, verify
from ranklake.lake.query.sql import query

if TYPE_CHECKING:
    from ranklake.demo.launch import Trained
    from ranklake.lake.storage.store import Lake

_HOST = """
    SELECT count(*) AS n, avg(cpu_utilization_ratio) AS cpu_ratio, max(memory_used_bytes) AS memory_bytes
    FROM host_samples WHERE holder_run = $run OR run = $run
"""
_GPU = "SELECT count(*) AS n FROM gpu_samples WHERE holder_run = $run OR run = $run"
_NO_GPU = "SELECT message FROM events WHERE run = $run AND event = 'sampler_unavailable' ORDER BY ts LIMIT 1"
_CODE = "SELECT git_commit, git_dirty, packages, os_description, cpu_model FROM runs WHERE run = $run"
_DATA = "SELECT name, version, bytes, tokens, merkle_root_sha256 FROM datasets WHERE run = $run ORDER BY name"
_MADE = "SELECT name FROM artifacts WHERE run = $run AND action = 'created' ORDER BY ts"
_LOGS = "SELECT severity_text AS severity, count(*) AS n FROM logs WHERE run = $run GROUP BY 1 ORDER BY 1"


@dataclass(frozen=True, slots=True)
class Sources:
    """What the lake knows of a run beside its steps.

    Attributes
    ----------
    host
        n rows of ``host_samples``, with the mean cpu_ratio and the greatest memory_bytes.
    gpu_rows, no_gpu
        Rows of ``gpu_samples``, and why there are none.
    code
        The run's commit, packages and machine, from ``runs``.
    datasets
        Rows of ``datasets``.
    artifacts
        By name, what hashing it again said.
    logs
        Lines by severity.
    """

    host: dict[str, Any]
    gpu_rows: int
    no_gpu: str | None
    code: dict[str, Any]
    datasets: list[dict[str, Any]]
    artifacts: dict[str, str]
    logs: dict[str, int]


def ask(lake: "Lake", trained: "Trained") -> Sources:
    """Ask the lake; artifacts are hashed once more."""

    def rows(text: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = query(lake, text, {"run": trained.run}).to_pylist()
        return found

    own = allowed([str(trained.journal)], [])
    made = [recorded(lake, row["name"], trained.run) for row in rows(_MADE)]
    told = rows(_NO_GPU)
    codes = rows(_CODE)
    return Sources(
        host=rows(_HOST)[0],
        gpu_rows=rows(_GPU)[0]["n"],
        no_gpu=told[0]["message"] if told else None,
        code=codes[0] if codes else {},
        datasets=rows(_DATA),
        artifacts={row["name"]: verify(lake, row, own).said for row in made},
        logs={row["severity"]: row["n"] for row in rows(_LOGS)},
    )
