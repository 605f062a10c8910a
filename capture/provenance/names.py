"""Names: the name of a run, and a key that the ranks of one launch share and no other launch has.

All ranks of a run must get the same name. Unless `start` or RANKLAKE_RUN sets it, it is made from:

    Lightning's own processes          job and a hash of the process that started the others
    multiprocessing (also torch's)     the same, once torch.distributed is initialized
    torchrun with a rendezvous id      that id
    torchrun without, one node         job and a hash of the launch's temporary folder
    torchrun without, several nodes    SLURM's job and step within SLURM; otherwise each node records a
                                       separate run, with a warning to set RANKLAKE_RUN
    SLURM, MPI                         job and the scheduler's job id
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
"""Process id and name of a run that started before its process started the other ranks, as Lightning does."""
_UNFIT: Final = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST: Final = 128
_THIS_HOST: Final = frozenset({"127.0.0.1", "localhost", "::1"})
_SHOWN: Final = 40
LARGEST: Final = 999_999_999
"""Largest number that fits into names of files."""


def clean(name: str) -> str:
    """Return a valid run name without credentials; a changed name ends with a hash of the original."""
    redacted = str(redact_names(name))
    if redacted == name and RUN_NAME.fullmatch(name) and not name.startswith("."):
        return name
    plain = _UNFIT.sub("-", redacted).strip("-.")[: _LONGEST - 9] or "run"
    return f"{plain}-{_hash(name)}"


def script_name() -> str:
    """Return the name of the running script, such as ``train`` for ``train.py``; ``job`` if there is none."""
    path = PurePath(str((getattr(sys, "argv", None) or [""])[0]))
    is_script = path.suffix == ".py" and path.stem not in {"__main__", "ipykernel_launcher"}
    return path.stem if is_script else "job"


def number(environ: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    """Return the value of the first variable that is a number; None if no variable is."""
    for name in names:
        value = environ.get(name, "")
        if value.isascii() and value.isdigit() and int(value) <= LARGEST:
            return int(value)
    return None


def unusable(environ: Mapping[str, str], names: tuple[str, ...]) -> list[str]:
    """Return a warning for each variable that is set but not a number."""
    values = {name: environ.get(name, "").strip() for name in names}
    return [
        f"{name}={str(redact_names(value))[:_SHOWN]!r} is not a number from 0 to {LARGEST}"
        for name, value in values.items()
        if value and number(environ, (name,)) is None
    ]


def run_name(
    job: str, environ: Mapping[str, str], launcher: str, run: str | None, node_count: int | None
) -> tuple[str, str]:
    """Return the run's name, and a warning if not all ranks may get the same one; else empty."""
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
    """Return a key that the ranks of one launch on this host share, also after restarts, and no other launch has.

    For ranks started by a shell or a user's script it is their parent process (`is_started_by_hand`).
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
    """Whether a shell or a user's script started the ranks, which may have started other launches, too."""
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
    if here is None and environ.get("MASTER_ADDR") in _THIS_HOST:  # other nodes cannot connect to this address
        return False
    return number(environ, ("WORLD_SIZE",)) != here


def _shared_by_local_ranks(environ: Mapping[str, str]) -> str:
    """Return a key that the ranks of one launch on this host share, also after restarts, and no other launch has.

    torchrun creates a folder with a random name for each launch, with each rank's error file in it. If that is turned
    off, the key is made from the launcher's process, the parent of the ranks.
    """
    error_file = environ.get("TORCHELASTIC_ERROR_FILE", "")
    folder, attempt, _ = error_file.partition("/attempt_")
    if attempt:
        return f"{boot_id()} {folder}"
    return _shared_by_siblings(os.getppid())


def _shared_by_siblings(parent: int) -> str:
    return f"{boot_id()} {parent} {start_ticks(parent)}"


def _name_of_lightnings(job: str, environ: Mapping[str, str]) -> str:
    """Return the run's name for processes that Lightning started.

    The first process is the parent of the others, and may have started its run before them.
    """
    first = _first_of_lightnings(environ)
    parent, _, name = environ.get(PARENT_VARIABLE, "").partition(" ")
    return name if parent == str(first) and name else f"{job}-{_hash(_shared_by_siblings(first))}"


def _first_of_lightnings(environ: Mapping[str, str]) -> int:
    return os.getpid() if environ.get("LOCAL_RANK") == "0" else os.getppid()


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8]


def spawner() -> int | None:
    """Return the id of the parent that started this process by ``multiprocessing``, also torch's; None otherwise."""
    module = sys.modules.get("multiprocessing.process")
    parent = None if module is None else module.parent_process()
    return None if parent is None or parent.pid != os.getppid() else parent.pid
