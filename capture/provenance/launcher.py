"""Launcher: which rank of which run this process is, from what torchrun, SLURM or MPI put into the environment.

Arguments of `start` come first, then RANKLAKE_RUN and RANKLAKE_ATTEMPT, then the launcher's variables. All ranks of
a run must come to the same name:

    torchrun with a rendezvous id      that id
    torchrun without, one node         job and what all local ranks share: the folder made for this launch
    torchrun without, several nodes    SLURM's job and step if it runs below SLURM; else each node is a
                                       run of its own, and a warning says to set RANKLAKE_RUN
    SLURM, MPI                         the scheduler's job id
    none                               job, time and a random number
"""

import hashlib
import os
import re
import secrets
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from ranklake.capture.spool.owner import boot_id, start_ticks
from ranklake.lake.contracts.redact import redact
from ranklake.lake.contracts.segment import RUN_NAME

SET_RUN: Final = "ranks of one run on several nodes cannot agree on its name: set RANKLAKE_RUN to the same text on all"
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 128
_LARGEST: Final = 999_999_999


@dataclass(frozen=True, slots=True)
class Launch:
    """Who this process is.

    Attributes
    ----------
    run, attempt, rank
        The envelope of its rows.
    world_size, local_rank, local_world_size
        Ranks in all; its number and their count on this host. The local ones are None if not known.
    launcher
        ``torchrun``, ``slurm``, ``mpi`` or ``none``.
    scheduler_job_id
        As the scheduler calls it; None without one.
    node_count
        Hosts; None if not known.
    warning
        Something the user should know, or empty.
    """

    run: str
    attempt: int = 0
    rank: int = 0
    world_size: int = 1
    local_rank: int | None = None
    local_world_size: int | None = None
    launcher: str = "none"
    scheduler_job_id: str | None = None
    node_count: int | None = None
    warning: str = ""


@dataclass(frozen=True, slots=True)
class _Dialect:
    """How one launcher names things; the first variable that is set counts."""

    launcher: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_world_size: tuple[str, ...] = ()
    attempt: tuple[str, ...] = ()
    node_count: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """One of these must be set too."""


_DIALECTS: Final = (
    _Dialect(
        "torchrun",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE",),
        attempt=("TORCHELASTIC_RESTART_COUNT",),
        node_count=("GROUP_WORLD_SIZE",),
    ),
    _Dialect(
        "mpi",
        rank=("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK"),
        world_size=("OMPI_COMM_WORLD_SIZE", "PMI_SIZE"),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID"),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"),
        attempt=("SLURM_RESTART_COUNT",),
        node_count=("SLURM_NNODES",),
    ),
    _Dialect(
        "slurm",
        rank=("SLURM_PROCID",),
        world_size=("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"),
        local_rank=("SLURM_LOCALID",),
        attempt=("SLURM_RESTART_COUNT",),
        node_count=("SLURM_STEP_NUM_NODES", "SLURM_NNODES", "SLURM_JOB_NUM_NODES"),
        also=("SLURM_STEP_ID", "SLURM_STEPID", "SLURM_LOCALID"),
    ),
)


def find_launch(
    job: str,
    environ: Mapping[str, str],
    *,
    run: str | None = None,
    rank: int | None = None,
    world_size: int | None = None,
    attempt: int | None = None,
) -> Launch:
    """Return who this process is; what is given as an argument overrides what the environment says.

    Numbers in the environment that are none are passed over. Raises `ValueError` for arguments out of range.
    """
    dialect = next((known for known in _DIALECTS if _speaks(known, environ)), None)
    found = {} if dialect is None else _numbers(dialect, environ)
    launcher = "none" if dialect is None else dialect.launcher
    own_rank = found.get("rank", 0) if rank is None else int(rank)
    own_world = max(found.get("world_size", 1), own_rank + 1) if world_size is None else int(world_size)
    said = _number(environ, ("RANKLAKE_ATTEMPT",))
    own_attempt = found.get("attempt", 0) if said is None else said
    own_attempt = own_attempt if attempt is None else int(attempt)
    if not 0 <= own_rank < own_world or not 0 <= own_attempt <= _LARGEST or own_world > _LARGEST:
        raise ValueError(f"rank {own_rank} of {own_world}, attempt {own_attempt}")
    name, warning = _name(job, environ, launcher, run, found.get("node_count"))
    if launcher == "none" and own_world > 1 and not (run or environ.get("RANKLAKE_RUN")):
        warning = SET_RUN
    return Launch(
        run=name,
        attempt=own_attempt,
        rank=own_rank,
        world_size=own_world,
        local_rank=found.get("local_rank"),
        local_world_size=found.get("local_world_size", 1 if own_world == 1 else None),
        launcher=launcher,
        scheduler_job_id=environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or environ.get("LSB_JOBID") or None,
        node_count=found.get("node_count", 1 if own_world == 1 else None),
        warning=warning,
    )


def clean(name: str) -> str:
    """Return a run's name without credentials and what paths cannot hold; a changed one keeps apart by a hash."""
    shown = str(redact(name))
    if shown == name and RUN_NAME.fullmatch(name) and not name.startswith("."):
        return name
    plain = _UNFIT.sub("-", shown).strip("-.")[: _LONGEST - 9] or "run"
    return f"{plain}-{_hash(name)}"


def _speaks(dialect: _Dialect, environ: Mapping[str, str]) -> bool:
    if _number(environ, dialect.rank) is None or _number(environ, dialect.world_size) is None:
        return False
    # A batch script sees SLURM_PROCID=0 and the job's SLURM_NTASKS, but is no task of a step.
    return not dialect.also or any(name in environ for name in dialect.also) or environ.get(dialect.rank[0]) != "0"


def _numbers(dialect: _Dialect, environ: Mapping[str, str]) -> dict[str, int]:
    wanted = ("rank", "world_size", "local_rank", "local_world_size", "attempt", "node_count")
    found = {name: _number(environ, getattr(dialect, name)) for name in wanted}
    return {name: value for name, value in found.items() if value is not None}


def _number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    for name in names:
        value = environ.get(name, "")
        if value.isascii() and value.isdigit() and int(value) <= _LARGEST:
            return int(value)
    return None


def _name(
    job: str, environ: Mapping[str, str], launcher: str, run: str | None, node_count: int | None
) -> tuple[str, str]:
    """Return the run's name and a warning."""
    given = run or environ.get("RANKLAKE_RUN", "")
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "")
    scheduled = ".".join(filter(None, [environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")]))
    warning = ""
    if given:
        name = given
    elif launcher == "torchrun" and rendezvous not in {"", "none"}:
        name = rendezvous
    elif launcher == "torchrun" and not _several_nodes(environ, node_count):
        name = f"{job}-{_hash(_shared_by_local_ranks(environ))}"
    elif scheduled or (launcher == "mpi" and _mpi_job(environ)):
        name = f"{job}-{scheduled or _mpi_job(environ)}"
    elif launcher != "none":
        name, warning = f"{job}-{_hash(_shared_by_local_ranks(environ))}", SET_RUN
    else:
        moment = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime())
        name = f"{job}-{moment}-{secrets.token_hex(3)}"
    return clean(name), warning


def _mpi_job(environ: Mapping[str, str]) -> str:
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "LSB_JOBID")
    return next((environ[name] for name in names if environ.get(name)), "")


def _several_nodes(environ: Mapping[str, str], node_count: int | None) -> bool:
    if node_count is not None:
        return node_count > 1
    return _number(environ, ("WORLD_SIZE",)) != _number(environ, ("LOCAL_WORLD_SIZE",))


def _shared_by_local_ranks(environ: Mapping[str, str]) -> str:
    """Return a text that the ranks of one launch on this host share, its restarts included, and nobody else has.

    torchrun makes a folder with a random name per launch and puts each rank's error file below it. Where it was
    told not to, the launcher's process itself, the parent of its ranks, serves.
    """
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    folder, attempt, _ = error_file.partition("/attempt_")
    if attempt:
        return f"{boot_id()} {folder}"
    parent = os.getppid()
    return f"{boot_id()} {parent} {start_ticks(parent)}"


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]
