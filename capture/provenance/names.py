"""Names: the name of a run, and what the ranks of one launch share that no other launch has.

All ranks of a run must come to the same name. Who is asked, after the arguments of `start` and RANKLAKE_RUN:

    Lightning's own processes          job and what they share: the process that started the others
    multiprocessing, torch's too       the same, as soon as torch.distributed says that they are a group
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
import sys
import time
from collections.abc import Mapping
from pathlib import PurePath
from typing import Final

from ranklake.capture.spool.owner import boot_id, start_ticks
from ranklake.redaction.redact import redact_names
from ranklake.segments.segment import RUN_NAME

SET_RUN: Final = "not all ranks may come to this name of the run: set RANKLAKE_RUN to the same text on all of them"
PARENT_VARIABLE: Final = "RANKLAKE_PARENT_RUN"
"""Process and name of a run that began before its process started others of the run, as Lightning does."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 128
_THIS_HOST: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SHOWN: Final = 40
LARGEST: Final = 999_999_999
"""Of what is counted in names of files."""


def clean(name: str) -> str:
    """Return a run's name without credentials and what paths cannot hold; a changed one keeps apart by a hash."""
    shown = str(redact_names(name))
    if shown == name and RUN_NAME.fullmatch(name) and not name.startswith("."):
        return name
    plain = _UNFIT.sub("-", shown).strip("-.")[: _LONGEST - 9] or "run"
    return f"{plain}-{_hash(name)}"


def script_name() -> str:
    """Return the name of the script that runs, such as ``train`` of ``train.py``; ``job`` where there is none."""
    path = PurePath(str((getattr(sys, "argv", None) or [""])[0]))
    is_script = path.suffix == ".py" and path.stem not in {"__main__", "ipykernel_launcher"}
    return path.stem if is_script else "job"


def number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the number in the first of the variables that has one; None if none does."""
    for name in names:
        value = environ.get(name, "")
        if value.isascii() and value.isdigit() and int(value) <= LARGEST:
            return int(value)
    return None


def unusable(environ: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    """Return what to say of variables that are set and hold no number."""
    held = {name: environ.get(name, "").strip() for name in names}
    return [
        f"{name}={str(redact_names(value))[:_SHOWN]!r} is not a number from 0 to {LARGEST}"
        for name, value in held.items()
        if value and number(environ, (name,)) is None
    ]


def run_name(
    job: str, environ: Mapping[str, str], launcher: str, run: str | None, node_count: int | None
) -> tuple[str, str]:
    """Return the run's name and a warning."""
    given = run or environ.get("RANKLAKE_RUN", "")
    rendezvous = environ.get("TORCHELASTIC_RUN_ID", "")
    scheduled = _scheduler_name(environ)
    warning = ""
    if given:
        name = given
    elif launcher == "lightning":
        name = _name_of_lightnings(job, environ)
    elif launcher == "multiprocessing" and not scheduled:
        name = f"{job}-{_hash(_shared_by_siblings(os.getppid()))}"
        is_a_nodes = (number(environ, ("WORLD_SIZE",)) or 1) > 1 and environ.get("MASTER_ADDR") not in _THIS_HOST
        warning = SET_RUN if is_a_nodes else ""
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


def shared_by_a_launch(environ: Mapping[str, str], launcher: str, world_size: int) -> str:
    """Return a text that the ranks of one launch on this host share, its restarts included, and nobody else has.

    Of ranks that a shell or somebody's own script has started it is their parent, see `is_started_by_hand`.
    """
    scheduled = _scheduler_name(environ)
    if launcher == "slurm" or (scheduled and launcher != "torchrun"):
        return scheduled
    if launcher == "mpi" and _mpi_job(environ):
        return _mpi_job(environ)
    if launcher == "lightning":
        return _shared_by_siblings(_first_of_lightnings(environ))
    if launcher == "none" and spawner() is None and world_size == 1:
        return _shared_by_siblings(os.getpid())
    return _shared_by_local_ranks(environ)


def is_started_by_hand(environ: Mapping[str, str], launcher: str, world_size: int) -> bool:
    """Whether a shell or somebody's own script started the ranks: what they share may have started others."""
    if launcher == "none":
        return world_size > 1 and not _scheduler_name(environ)
    if launcher not in {"torchrun", "horovod", "mpi"} or (launcher == "mpi" and _mpi_job(environ)):
        return False
    if launcher != "torchrun" and _scheduler_name(environ):
        return False
    return not environ.get("TORCHELASTIC_RUN_ID") and "/attempt_" not in environ.get("TORCHELASTIC_ERROR_FILE", "")


def _scheduler_name(environ: Mapping[str, str]) -> str:
    return ".".join(filter(None, [environ.get("SLURM_JOB_ID"), environ.get("SLURM_STEP_ID")]))


def _mpi_job(environ: Mapping[str, str]) -> str:
    names = ("PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid", "PBS_JOBID", "LSB_JOBID")
    return next((environ[name] for name in names if environ.get(name)), "")


def _several_nodes(environ: Mapping[str, str], node_count: int | None) -> bool:
    if node_count is not None:
        return node_count > 1
    here = number(environ, ("LOCAL_WORLD_SIZE",))
    if here is None and environ.get("MASTER_ADDR") in _THIS_HOST:  # where ranks of other nodes could not meet
        return False
    return number(environ, ("WORLD_SIZE",)) != here


def _shared_by_local_ranks(environ: Mapping[str, str]) -> str:
    """Return a text that the ranks of one launch on this host share, its restarts included, and nobody else has.

    torchrun makes a folder with a random name per launch and puts each rank's error file below it. Where it was
    told not to, the launcher's process itself, the parent of its ranks, serves.
    """
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    folder, attempt, _ = error_file.partition("/attempt_")
    if attempt:
        return f"{boot_id()} {folder}"
    return _shared_by_siblings(os.getppid())


def _shared_by_siblings(parent: int) -> str:
    return f"{boot_id()} {parent} {start_ticks(parent)}"


def _name_of_lightnings(job: str, environ: Mapping[str, str]) -> str:
    """Return the name that a process shares with those that Lightning started from it.

    The first of them is the parent of the others, and may have begun its run before there were any.
    """
    first = _first_of_lightnings(environ)
    parent, _, begun = environ.get(PARENT_VARIABLE, "").partition(" ")
    return begun if parent == str(first) and begun else f"{job}-{_hash(_shared_by_siblings(first))}"


def _first_of_lightnings(environ: Mapping[str, str]) -> int:
    return os.getpid() if environ.get("LOCAL_RANK") == "0" else os.getppid()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def spawner() -> int | None:
    """Return the process that started this one through ``multiprocessing``, or torch's; None if none did so."""
    module = sys.modules.get("multiprocessing.process")
    parent = None if module is None else module.parent_process()
    return None if parent is None or parent.pid != os.getppid() else parent.pid
