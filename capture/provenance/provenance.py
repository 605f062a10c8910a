"""Provenance: columns of the row of ``runs`` that rank 0 records when a run starts.

They are fast to read, and reading them initializes no device. `run_record` adds slower ones later.
"""

import getpass
import hashlib
import json
import os
import platform
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import ranklake
from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import MOST_CHARACTERS, Room, json_text, redacted_name, text, to_json
from ranklake.capture.provenance.environment import (
    SIZES,
    NotSubmittedError,
    allowed_variables,
    container,
    os_description,
    place_facts,
    submitted_us,
)
from ranklake.capture.provenance.launcher import Launch
from ranklake.redaction.known_secrets import learn_arguments, learn_settings, learn_variables
from ranklake.redaction.redact import redact_arguments, redact_names

_FRAMEWORKS: Final = ("torch", "jax", "tensorflow", "mlx")
_LONGEST_CONFIG: Final = 1 << 18
_LONGEST_COMMAND: Final = 1 << 14
Facts = dict[str, Any]


def learn_secrets(config: object) -> None:
    """Redact from now on, wherever they appear, the secrets in this process's variables, arguments and config."""
    learn_variables(os.environ)
    learn_arguments(sys.orig_argv)
    learn_settings(to_json(config))


def run_row(launch: Launch, job: str, given: Facts, settings: CaptureSettings) -> Facts:
    """Return the columns of a ``runs`` row.

    Parameters
    ----------
    given
        Arguments of `start`: config, labels, injected, compute_dtype, param_count, dp_size and so on.
    settings
        Settings, which may set cluster, deployment_environment and region.

    Returns
    -------
    The columns with a value. ``unavailable`` has the reasons why others are missing.
    """
    unavailable: dict[str, str] = {}

    def looked_up(column: str, look: Callable[[], Any]) -> Any:  # noqa: ANN401 - a column's value
        try:
            value = look()
        except Exception as error:  # noqa: BLE001 - whatever the host has in store must not stop a run
            value, why = None, str(error) if isinstance(error, NotSubmittedError) else type(error).__name__
        else:
            why = "not found"
        if value is None:
            unavailable[column] = why
        return value

    labels = None if given.get("labels") is None else _as_object(given["labels"])
    config, too_long = config_columns(given.get("config"))
    unavailable |= too_long
    device = looked_up("device_name", lambda: device_columns(launch))
    row = {
        "job": redacted_name(job, 256),
        "user": looked_up("user", getpass.getuser),
        "host": os.uname().nodename,
        "pid": os.getpid(),
        **launch_columns(launch),
        "compute_dtype": given.get("compute_dtype"),
        "param_count": given.get("param_count"),
        **(looked_up("framework_version", framework_columns) or {}),
        "python_version": platform.python_version(),
        "ranklake_version": ranklake.__version__,
        **config,
        "labels": None if labels is None else json_text(redact_names(labels)),
        "injected": redact_names(given.get("injected")),
        "command_line": looked_up("command_line", _command_line),
        "environment": json_text(allowed_variables(os.environ)),
        **place_facts(os.environ, settings, labels or {}),
        **{name: given.get(name) for name in SIZES},
        "submitted_ts": looked_up("submitted_ts", lambda: submitted_us(os.environ)),
        "os_description": looked_up("os_description", os_description),
        "cpu_model": looked_up("cpu_model", cpu_model),
        "cpu_count": os.cpu_count(),
        "host_memory_bytes": looked_up("host_memory_bytes", _host_memory_bytes),
        **(device or {}),
    }
    image, why = container(os.environ)
    row |= image
    unavailable |= {column: why for column in ("container_image", "container_image_digest") if column not in image}
    row["unavailable"] = json_text(unavailable)
    return {column: value for column, value in row.items() if value is not None}


def config_columns(config: object) -> tuple[Facts, dict[str, str]]:
    """Return the columns of redacted hyperparameters, and a reason in ``unavailable`` if some had to be cut."""
    kept, room = "", Room()
    while config is not None and (not kept or len(kept) > _LONGEST_CONFIG):
        room = Room(characters=MOST_CHARACTERS if not kept else len(kept) // 8)
        kept = json.dumps(
            redact_names(_as_object(config, room)), sort_keys=True, separators=(",", ":"), ensure_ascii=False
        )
    if kept in {"", "{}"}:
        return {}, {}
    why = {"config": "some of it is left out: it is more than is kept"} if room.is_short else {}
    return {"config": kept, "config_sha256": hashlib.sha256(kept.encode()).hexdigest()}, why


def launch_columns(launch: Launch) -> Facts:
    """Return the columns of ``runs`` about its launch; None for unknown ones."""
    return {
        "world_size": launch.world_size,
        "local_world_size": launch.local_world_size,
        "launcher": launch.launcher,
        "scheduler_job_id": launch.scheduler_job_id,
        "node_count": launch.node_count,
    }


def framework_columns() -> Facts:
    """Return name and version of the imported training framework by column; empty without one."""
    name = next((name for name in _FRAMEWORKS if name in sys.modules), None)
    version = None if name is None else getattr(sys.modules[name], "__version__", None)
    columns = {"framework": name, "framework_version": None if version is None else str(version)}
    return {column: value for column, value in columns.items() if value is not None}


def _command_line() -> str | None:
    return text(shlex.join(redact_arguments(sys.orig_argv)), _LONGEST_COMMAND) or None


def _as_object(given: object, room: Room | None = None) -> Facts:
    value = to_json(given, room=room)
    return value if isinstance(value, dict) else {"value": value}


def cpu_model() -> str | None:
    """Return the CPU's name from /proc/cpuinfo; None if it has none, as on some Arm machines."""
    with Path("/proc/cpuinfo").open(encoding="utf-8", errors="replace") as lines:
        for line in lines:
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return None


def _host_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def device_columns(launch: Launch) -> Facts | None:
    """Return device_type, device_name, device_count and driver_version.

    torch is queried only after the program has initialized its devices. An earlier query would initialize them, and
    then the process could no longer fork workers that use them. NVML has no such effect.
    """
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return {"device_type": "cuda", "device_name": torch.cuda.get_device_name(), "device_count": launch.world_size}
    built_for_cpu = torch is not None and not torch.backends.cuda.is_built()
    if Path("/dev/nvidiactl").exists() and not built_for_cpu:
        return _nvidia(launch)
    name = cpu_model()
    return {"device_type": "cpu", "device_count": launch.world_size, **({"device_name": name} if name else {})}


def _nvidia(launch: Launch) -> Facts:
    import pynvml  # only where there is such a device

    pynvml.nvmlInit()
    try:
        handle = pynvml.nvmlDeviceGetHandleByIndex(min(launch.local_rank or 0, pynvml.nvmlDeviceGetCount() - 1))
        return {
            "device_type": "cuda",
            "device_name": _decode(pynvml.nvmlDeviceGetName(handle)),
            "device_count": launch.world_size,
            "driver_version": _decode(pynvml.nvmlSystemGetDriverVersion()),
        }
    finally:
        pynvml.nvmlShutdown()


def _decode(value: str | bytes) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value
