"""Launcher: finds out which rank of which run this process is.

The rank is taken from the arguments of `start`, or else from torch.distributed if it is initialized (`group_of`), or
else from variables of frameworks that start processes, or else from variables of the launcher.
"""

import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.provenance.names import (
    LARGEST,
    SET_RUN,
    is_started_by_hand,
    number,
    run_name,
    shared_by_a_launch,
    spawner,
    unusable,
)


@dataclass(frozen=True, slots=True)
class Group:
    """A process's place in the default process group."""

    rank: int
    world_size: int


def group_of() -> Group | None:
    """Return this process's place; None if torch.distributed is not initialized. Never raises or waits."""
    distributed = sys.modules.get("torch.distributed")
    try:
        if distributed is None or not distributed.is_available() or not distributed.is_initialized():
            return None
        group = Group(int(distributed.get_rank()), int(distributed.get_world_size()))
    except Exception:  # noqa: BLE001 - another thread may be importing it or shutting it down
        return None
    return group if 0 <= group.rank < group.world_size else None


@dataclass(frozen=True, slots=True)
class Launch:
    """Run, rank and launcher of this process.

    Attributes
    ----------
    run, attempt, rank
        The envelope of its rows.
    world_size
        Number of ranks.
    local_rank, local_world_size
        Its number among the ranks of this host, and their number; None if unknown.
    launcher
        ``torchrun``, ``lightning``, ``multiprocessing``, ``horovod``, ``slurm``, ``mpi`` or ``none``.
    scheduler_job_id
        Id of the scheduler's job; None without one.
    node_count
        Number of hosts; None if unknown.
    warning
        A warning for the user; empty if there is none.
    is_certain
        Whether rank and size come from the caller or torch.distributed. Variables may be missing, or belong to another
        process.
    key
        A text that all ranks of this launch on this host share, also after a restart, and that no other launch has.
        Empty if no other process has the run's name.
    is_by_hand
        Whether a shell or a user's script started the ranks. Other launches may then have the same `key`.
    is_named
        Whether other processes may record a run with this name.
    is_told
        Whether the caller or RANKLAKE_ATTEMPT set the attempt.
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
    is_certain: bool = True
    key: str = ""
    is_named: bool = False
    is_told: bool = False
    is_by_hand: bool = False

    @property
    def is_alone(self) -> bool:
        """Whether the launch seems to be this process only, and no attempt is set."""
        return self.launcher == "none" and self.world_size == 1 and not self.is_told

    @property
    def is_on_one_node(self) -> bool:
        """Whether all ranks seem to be on this host."""
        nodes = 1 if self.local_world_size == self.world_size else self.node_count
        return nodes == 1 or (nodes is None and self.launcher in {"lightning", "multiprocessing"})


@dataclass(frozen=True, slots=True)
class _Dialect:
    """Environment variables of a launcher; the first that is set is used."""

    launcher: str
    rank: tuple[str, ...]
    world_size: tuple[str, ...]
    local_rank: tuple[str, ...] = ()
    local_world_size: tuple[str, ...] = ()
    attempt: tuple[str, ...] = ()
    node_count: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    """One of these must be set too."""


_LIGHTNING: Final = _Dialect(
    "lightning", rank=("LOCAL_RANK",), world_size=("WORLD_SIZE",), local_rank=("LOCAL_RANK",), also=("NODE_RANK",)
)
"""Variables of processes that Lightning starts. The local rank is the global rank only on the first node."""

_DIALECTS: Final = (
    _Dialect(
        "torchrun",
        rank=("RANK",),
        world_size=("WORLD_SIZE",),
        local_rank=("LOCAL_RANK",),
        local_world_size=("LOCAL_WORLD_SIZE", "LOCAL_SIZE"),
        attempt=("TORCHELASTIC_RESTART_COUNT",),
        node_count=("GROUP_WORLD_SIZE", "CROSS_SIZE"),
    ),
    _Dialect(
        "horovod",
        rank=("HOROVOD_RANK",),
        world_size=("HOROVOD_SIZE",),
        local_rank=("HOROVOD_LOCAL_RANK",),
        local_world_size=("HOROVOD_LOCAL_SIZE",),
        node_count=("HOROVOD_CROSS_SIZE",),
    ),
    _Dialect(
        "mpi",
        rank=("OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK"),
        world_size=("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE"),
        local_rank=("OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK"),
        local_world_size=("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS", "MV2_COMM_WORLD_LOCAL_SIZE"),
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
    group: Group | None = None,
) -> Launch:
    """Return the launch of this process, from the sources in the module's order.

    Parameters
    ----------
    group
        The place in torch.distributed's default group, if it is initialized.

    Invalid numbers in the environment are ignored. Raises `ValueError` for arguments out of range.
    """
    launcher, place = _launcher(environ, group)
    own_rank = place.get("rank", 0) if rank is None else int(rank)
    own_world = max(place.get("world_size", 1), own_rank + 1) if world_size is None else int(world_size)
    named_attempt = number(environ, ("RANKLAKE_ATTEMPT",))
    own_attempt = place.get("attempt", 0) if named_attempt is None else named_attempt
    own_attempt = own_attempt if attempt is None else int(attempt)
    if not 0 <= own_rank < own_world or not 0 <= own_attempt <= LARGEST or own_world > LARGEST:
        raise ValueError(f"rank {own_rank} of {own_world}, attempt {own_attempt}")
    name, warning = run_name(job, environ, launcher, run, place.get("node_count"))
    warnings = [] if attempt is not None or named_attempt is not None else unusable(environ, ("RANKLAKE_ATTEMPT",))
    if rank is None and group is None:
        warnings += _misread(environ, launcher, place)
    if launcher == "none" and own_world > 1 and not (run or environ.get("RANKLAKE_RUN")):
        warning = SET_RUN
    is_by_chance = launcher == "none" and not any((run, environ.get("RANKLAKE_RUN"), environ.get("SLURM_JOB_ID")))
    return Launch(
        run=name,
        attempt=own_attempt,
        rank=own_rank,
        world_size=own_world,
        local_rank=place.get("local_rank"),
        local_world_size=place.get("local_world_size", 1 if own_world == 1 else None),
        launcher=launcher,
        scheduler_job_id=environ.get("SLURM_JOB_ID") or environ.get("PBS_JOBID") or environ.get("LSB_JOBID") or None,
        node_count=place.get("node_count", 1 if own_world == 1 else None),
        warning="; ".join([*warnings, *([warning] if warning else [])]),
        is_certain=rank is not None or group is not None,
        key="" if is_by_chance else shared_by_a_launch(environ, launcher, own_world),
        is_named=not is_by_chance,
        is_told=attempt is not None or named_attempt is not None,
        is_by_hand=is_started_by_hand(environ, launcher, own_world),
    )


def _misread(environ: Mapping[str, str], launcher: str, place: Mapping[str, int]) -> list[str]:
    """Return warnings about invalid or contradictory variables, from which the rank was read."""
    hint = "set RANK and WORLD_SIZE, or hand over rank= and world_size="
    if launcher != "none":
        rank, world_size = place["rank"], place["world_size"]
        is_out = rank >= world_size
        message = f"rank {rank} of {world_size} cannot be, and is recorded as rank {rank} of {rank + 1}"
        return [f"{message}: {hint}"] if is_out else []
    wrong = []
    for dialect in _DIALECTS:
        bad = unusable(environ, (*dialect.rank, *dialect.world_size))
        ranks = [name for name in dialect.rank if number(environ, (name,)) is not None]
        if ranks and not bad and number(environ, dialect.world_size) is None:
            bad = [f"{ranks[0]} is set, and {dialect.world_size[0]} is not"]
        wrong += bad
    return [f"{', '.join(wrong)}: this process is recorded as rank 0 of 1; {hint}"] if wrong else []


def _launcher(environ: Mapping[str, str], group: Group | None) -> tuple[str, dict[str, int]]:
    """Return the launcher of this process, and its known numbers (rank, world_size, and others) by name."""
    is_lightnings = number(environ, ("RANK",)) is None and _speaks_lightning(environ)
    own = {} if group is None else {"rank": group.rank, "world_size": group.world_size}
    if is_lightnings and (own or (environ.get("NODE_RANK") == "0" and number(environ, ("WORLD_SIZE",)))):
        return "lightning", _numbers(_LIGHTNING, environ) | own
    dialect = next((known for known in _DIALECTS if _uses_dialect(known, environ)), None)
    place = {} if dialect is None else _numbers(dialect, environ)
    if all(place.get(name) == value for name, value in own.items()):
        return "none" if dialect is None else dialect.launcher, place
    # The variables belong to another process, such as a node's script that starts a process for each GPU.
    kept = {name: place[name] for name in ("attempt",) if name in place}
    first = {"local_rank": 0} if own["rank"] == 0 else {}
    is_spawned = spawner() is not None and own["world_size"] > 1
    return ("multiprocessing" if is_spawned else "none"), own | kept | first


def _speaks_lightning(environ: Mapping[str, str]) -> bool:
    return all(number(environ, (name,)) is not None for name in (*_LIGHTNING.rank, *_LIGHTNING.also))


def _uses_dialect(dialect: _Dialect, environ: Mapping[str, str]) -> bool:
    if number(environ, dialect.rank) is None or number(environ, dialect.world_size) is None:
        return False
    # A batch script has SLURM_PROCID=0 and the job's SLURM_NTASKS, but is not a task of a step.
    return not dialect.also or any(name in environ for name in dialect.also) or environ.get(dialect.rank[0]) != "0"


def _numbers(dialect: _Dialect, environ: Mapping[str, str]) -> dict[str, int]:
    wanted = ("rank", "world_size", "local_rank", "local_world_size", "attempt", "node_count")
    numbers = {name: number(environ, getattr(dialect, name)) for name in wanted}
    return {name: value for name, value in numbers.items() if value is not None}


_FORM: Final = re.compile(
    r"(?!ff|00.{53}-)[0-9a-f]{2}-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?"
)
"""W3C traceparent: later versions than 00 may append fields; ids of zeros and version ff are invalid."""


def find_traceparent(environ: Mapping[str, str]) -> str:
    """Return the current trace and span as a W3C traceparent of version 00; empty without a trace. Never raises."""
    api: Any = sys.modules.get("opentelemetry.trace")
    if api is not None:
        with suppress(Exception):  # another release may raise anything
            context = api.get_current_span().get_span_context()
            if context.is_valid:
                return f"00-{context.trace_id:032x}-{context.span_id:016x}-{int(context.trace_flags):02x}"
    parts = _FORM.fullmatch(environ.get("TRACEPARENT", "").strip())
    return "" if parts is None else "-".join(("00", *parts.groups()))


def trace_id_of(traceparent: str) -> str | None:
    """Return the trace id of a traceparent; None if it is empty."""
    return traceparent[3:35] or None


def add_label(labels: object, traceparent: str) -> object:
    """Add the label ``traceparent`` to a run's labels, unless the user has set it."""
    if not traceparent or not isinstance(labels, Mapping | None):
        return labels
    return {"traceparent": traceparent} | dict(labels or {})
