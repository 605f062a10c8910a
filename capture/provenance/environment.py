"""Environment: reads packages, lock file, container, environment variables, and the time of the job's submission.

Nothing here imports a framework, initializes a device or draws a random number.
"""

import datetime as dt
import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

from ranklake.capture.common.settings import CaptureSettings
from ranklake.capture.common.values import json_text
from ranklake.redaction.redact import redact_names, redact_uri

Facts = dict[str, Any]
SIZES: Final = ("dp_size", "tp_size", "pp_size", "ep_size", "cp_size")
UNSEEDED: Final = 67280421310721
"""Seed of torch's generators before a program sets one (c10/core/GeneratorImpl.h, default_rng_seed_val)."""

_DIMENSIONS: Final = {
    **dict.fromkeys(("dp", "ddp", "fsdp", "hsdp", "data", "dp_replicate", "dp_shard", "replicate", "shard"), "dp_size"),
    **dict.fromkeys(("tp", "tensor", "model"), "tp_size"),
    **dict.fromkeys(("pp", "pipeline", "pipe"), "pp_size"),
    **dict.fromkeys(("ep", "expert"), "ep_size"),
    **dict.fromkeys(("cp", "context", "sp", "sequence"), "cp_size"),
}
_MEGATRON: Final = {
    "dp_size": "get_data_parallel_world_size",
    "tp_size": "get_tensor_model_parallel_world_size",
    "pp_size": "get_pipeline_model_parallel_world_size",
    "ep_size": "get_expert_model_parallel_world_size",
    "cp_size": "get_context_parallel_world_size",
}


def framework_facts() -> Facts:
    """Return versions, seed and determinism of torch by column; empty if torch is not imported.

    Raises any exception of a partly imported torch.
    """
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "initial_seed"):
        return {}
    facts: Facts = {
        "seed": _as_int64(torch.initial_seed()),
        "deterministic": bool(torch.are_deterministic_algorithms_enabled()),
        "cuda_version": getattr(torch.version, "cuda", None),
    }
    if facts["cuda_version"]:
        cudnn = torch.backends.cudnn.version()
        nccl = torch.cuda.nccl.version() if torch.distributed.is_nccl_available() else None
        facts["cudnn_version"] = None if cudnn is None else str(cudnn)
        facts["nccl_version"] = None if nccl is None else ".".join(str(part) for part in nccl)
    return {column: value for column, value in facts.items() if value is not None}


def flags() -> Facts:
    """Return torch's flags that affect determinism, by name; empty if torch is not imported."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "initial_seed"):
        return {}
    getters: dict[str, Callable[[], Any]] = {
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "torch_is_unseeded": lambda: torch.initial_seed() == UNSEEDED,
    }
    return _values(getters)


def generator_states() -> Facts:
    """Return digests of the states of Python's and numpy's global generators, if these are imported.

    Two runs with equal digests draw the same numbers from then on. A seed cannot be read from a state.
    """
    getters: dict[str, Callable[[], Any]] = {}
    random = sys.modules.get("random")
    if random is not None:
        getters["python_random_sha256"] = lambda: _digest(repr(random.getstate()).encode())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        getters["numpy_random_sha256"] = lambda: _digest(numpy.get_state(legacy=False)["state"]["key"].tobytes())
    return _values(getters)


def topology(mesh: object = None) -> Facts:
    """Return the sizes of parallel groups by column, from a device mesh or else from Megatron; empty if unknown.

    Parameters
    ----------
    mesh
        A `torch.distributed.device_mesh.DeviceMesh`. Sizes of dimensions of one kind (``dp_replicate``, ``dp_shard``)
        are multiplied. Dimensions with unknown names are ignored.
    """
    sizes: Facts = {}
    for name, size in _dimensions(mesh):
        column = _DIMENSIONS.get(name.lower())
        if column is not None:
            sizes[column] = sizes.get(column, 1) * size
    state = sys.modules.get("megatron.core.parallel_state")
    if not sizes and state is not None and state.model_parallel_is_initialized():
        sizes = _values({column: getattr(state, name) for column, name in _MEGATRON.items() if hasattr(state, name)})
    return sizes


def _dimensions(mesh: object) -> Iterable[tuple[str, int]]:
    names = getattr(mesh, "mesh_dim_names", None) or ()
    size = getattr(mesh, "size", None)
    return [(str(name), int(size(at))) for at, name in enumerate(names)] if callable(size) else []


def _values(getters: dict[str, Callable[[], Any]]) -> Facts:
    """Call functions, and return their texts and integers by name, without those that raise."""
    values: Facts = {}
    for name, get in getters.items():
        try:
            value = get()
        except Exception:  # noqa: BLE001, S112 - another version of a library may raise anything
            continue
        if isinstance(value, str | int):
            values[name] = value
    return values


def _as_int64(seed: int) -> int:
    """Convert torch's unsigned seed to a signed 64-bit integer."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()


_METADATA: Final = re.compile(
    r"(?P<name>[^-]+(?:-[^-]+)*?)(?:-(?P<version>\d[^-]*))?(?:-py[\d.]+.*)?\.(?:dist|egg)-info"
)
_LOCK_FILES: Final = (
    *("uv.lock", "poetry.lock", "pdm.lock", "Pipfile.lock", "pixi.lock", "conda-lock.yml", "requirements.lock"),
    *("requirements.txt", "requirements*.txt", "constraints.txt", "environment.yml", "environment.yaml"),
)
_LOCK_BYTES: Final = 64 << 20
_CONTAINER_SIGNS: Final = ("docker", "kubepods", "containerd", "libpod", "lxc")
_DIGEST: Final = re.compile(r"sha256:[0-9a-f]{64}")

_LAUNCHER: Final = """
    RANK WORLD_SIZE LOCAL_RANK LOCAL_WORLD_SIZE NODE_RANK GROUP_RANK GROUP_WORLD_SIZE ROLE_NAME OMP_NUM_THREADS
    TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT TORCHELASTIC_MAX_RESTARTS TORCHELASTIC_USE_AGENT_STORE
    OMPI_COMM_WORLD_SIZE OMPI_COMM_WORLD_LOCAL_SIZE PMI_SIZE ACCELERATE_MIXED_PRECISION ACCELERATE_USE_FSDP
    ACCELERATE_USE_DEEPSPEED ACCELERATE_DYNAMO_BACKEND
"""
_SCHEDULER: Final = """
    SLURM_JOB_ID SLURM_STEP_ID SLURM_JOB_PARTITION SLURM_JOB_ACCOUNT SLURM_JOB_QOS SLURM_CLUSTER_NAME SLURM_NNODES
    SLURM_NTASKS SLURM_NTASKS_PER_NODE SLURM_GPUS SLURM_GPUS_PER_NODE SLURM_GPUS_PER_TASK SLURM_CPUS_PER_TASK
    SLURM_MEM_PER_NODE SLURM_RESTART_COUNT SLURM_ARRAY_JOB_ID SLURM_ARRAY_TASK_ID SLURM_JOB_RESERVATION PBS_JOBID
    PBS_QUEUE LSB_JOBID LSB_QUEUE
"""
_LIBRARIES: Final = """
    CUDA_VISIBLE_DEVICES NVIDIA_VISIBLE_DEVICES CUDA_DEVICE_ORDER CUDA_DEVICE_MAX_CONNECTIONS CUDA_LAUNCH_BLOCKING
    CUDA_MODULE_LOADING NVIDIA_TF32_OVERRIDE CUBLAS_WORKSPACE_CONFIG PYTHONHASHSEED PL_GLOBAL_SEED
    PYTORCH_CUDA_ALLOC_CONF PYTORCH_ALLOC_CONF TORCH_NCCL_ASYNC_ERROR_HANDLING TORCH_NCCL_BLOCKING_WAIT
    TORCH_NCCL_TRACE_BUFFER_SIZE TORCH_FR_BUFFER_SIZE TORCH_NCCL_DUMP_ON_TIMEOUT TORCH_DISTRIBUTED_DEBUG
    NCCL_DEBUG NCCL_ALGO NCCL_PROTO NCCL_SOCKET_IFNAME
    NCCL_IB_HCA NCCL_IB_DISABLE NCCL_IB_TIMEOUT NCCL_P2P_DISABLE NCCL_P2P_LEVEL NCCL_SHM_DISABLE NCCL_NET_GDR_LEVEL
    NCCL_BUFFSIZE NCCL_MIN_NCHANNELS NCCL_MAX_NCHANNELS NCCL_NVLS_ENABLE NCCL_CROSS_NIC NCCL_TIMEOUT
    TOKENIZERS_PARALLELISM HF_HUB_OFFLINE MKL_NUM_THREADS MALLOC_ARENA_MAX
"""
ALLOWED: Final = frozenset((_LAUNCHER + _SCHEDULER + _LIBRARIES).split())
"""Environment variables that are recorded, with redacted values. Others are not read."""
_MAX_CHARACTERS: Final = 1024
_PLACES: Final = {
    "cluster": ("k8s.cluster.name", "SLURM_CLUSTER_NAME"),
    "pool": ("RANKLAKE_POOL", "SLURM_JOB_PARTITION", "PBS_QUEUE", "LSB_QUEUE"),
    "team": ("RANKLAKE_TEAM", "SLURM_JOB_ACCOUNT"),
    "deployment_environment": ("deployment.environment.name", "deployment.environment"),
    "region": ("cloud.region",),
}
"""Attributes of OpenTelemetry's resource, and variables, for columns of ``runs``; the first that is set is used."""
_SCHEDULER_VARIABLES: Final = frozenset(name for tried in _PLACES.values() for name in tried if name.isupper())


def allowed_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the set variables of `ALLOWED`, redacted."""
    variables = redact_names({name: environ[name] for name in sorted(ALLOWED & environ.keys())})
    return {
        name: value[:_MAX_CHARACTERS] for name, value in variables.items()
    }  # cut after redaction, which does not recognize half a secret


def place_facts(environ: Mapping[str, str], settings: CaptureSettings, labels: Mapping[str, object]) -> dict[str, str]:
    """Return the columns cluster, pool, team, deployment_environment and region, if set.

    The order is: settings, variables such as RANKLAKE_POOL, OpenTelemetry's resource, the scheduler, and last the run's
    labels. These columns decide who pays for a run and who may see it, so operators come before users. AWS_REGION and
    the like are not read, because they name the region of a client's requests, not that of the process.
    """
    resource = resource_attributes(environ.get("OTEL_RESOURCE_ATTRIBUTES", ""))
    values = {**resource, **{name: environ[name] for name in _SCHEDULER_VARIABLES if name in environ}}
    facts = {
        column: next(filter(None, (getattr(settings, column, ""), *map(values.get, names), labels.get(column))), None)
        for column, names in _PLACES.items()
    }
    return {column: redact_names(str(value))[:256] for column, value in facts.items() if value}


def resource_attributes(text: str) -> dict[str, str]:
    """Parse OTEL_RESOURCE_ATTRIBUTES: ``name=value,…``, percent-encoded. Parts without ``=`` are ignored."""
    pairs = (part.partition("=") for part in text.split(","))
    return {name.strip(): unquote(value.strip()) for name, sign, value in pairs if sign and name.strip()}


@lru_cache(maxsize=2)
def packages(path: tuple[str, ...]) -> dict[str, str]:
    """Return the versions of the distributions on a search path by name, from the names of their folders.

    Opening each one's metadata, as `importlib.metadata` does, would take a second of CPU for many distributions. As
    there, the first on the path is used.
    """
    versions: dict[str, str] = {}
    for place in path:
        try:
            entries = sorted(entry.name for entry in os.scandir(place or "."))
        except OSError:  # not a folder: an archive, or nothing
            continue
        for entry in entries:
            match = _METADATA.fullmatch(entry)
            if match and match["version"]:
                versions.setdefault(match["name"].replace("_", "-").lower(), match["version"])
    return dict(sorted(versions.items()))


def packages_sha256(versions: Mapping[str, str]) -> str:
    """Return a digest of the installed distributions, with which ranks can be compared."""
    return hashlib.sha256((json_text(versions) or "").encode()).hexdigest()


def lockfile_sha256(folders: Iterable[Path]) -> str | None:
    """Return the SHA-256 of the first lock file of at most 64 MiB in these folders; None if there is none."""
    for folder in folders:
        for pattern in _LOCK_FILES:
            for file in sorted(folder.glob(pattern)) if "*" in pattern else [folder / pattern]:
                if file.is_file() and file.stat().st_size <= _LOCK_BYTES:
                    return hashlib.sha256(file.read_bytes()).hexdigest()
    history = Path(sys.prefix, "conda-meta", "history")
    return hashlib.sha256(history.read_bytes()).hexdigest() if history.is_file() else None


def container(environ: Mapping[str, str], root: Path = Path("/")) -> tuple[dict[str, str], str]:
    """Return the columns of the container image, and the reason why others are missing.

    A container does not contain its image's name. It is read from RANKLAKE_CONTAINER_IMAGE and
    RANKLAKE_CONTAINER_IMAGE_DIGEST (on Kubernetes set from the downward API or the manifest), from Apptainer's
    variables, or from Podman's file.
    """
    image = environ.get("RANKLAKE_CONTAINER_IMAGE") or environ.get("CONTAINER_IMAGE") or ""
    digest = environ.get("RANKLAKE_CONTAINER_IMAGE_DIGEST") or environ.get("CONTAINER_IMAGE_DIGEST") or ""
    image = image or environ.get("APPTAINER_CONTAINER") or environ.get("SINGULARITY_CONTAINER") or ""
    podman = root / "run" / ".containerenv"
    is_docker = (root / ".dockerenv").exists()
    is_inside = bool(image) or podman.exists() or is_docker or "KUBERNETES_SERVICE_HOST" in environ
    if podman.is_file():
        image_columns = dict(
            line.partition("=")[::2] for line in podman.read_text(encoding="utf-8", errors="replace").splitlines()
        )
        image = image or image_columns.get("image", "").strip('"')
    if not is_inside:
        is_inside = _has_container_cgroup(root)
    digest = digest or (match[0] if (match := _DIGEST.search(image)) else "")
    name = redact_uri(image) if "://" in image else redact_names(image)  # without a scheme, "@" precedes a digest
    columns = {"container_image": name[:_MAX_CHARACTERS], "container_image_digest": digest[:256]}
    hint = "a container that does not name its image: set RANKLAKE_CONTAINER_IMAGE and RANKLAKE_CONTAINER_IMAGE_DIGEST"
    reason = hint if is_inside else "no container was found"
    return {column: value for column, value in columns.items() if value}, reason


def _has_container_cgroup(root: Path) -> bool:
    try:
        groups = (root / "proc" / "1" / "cgroup").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return any(sign in groups for sign in _CONTAINER_SIGNS)


def os_description(root: Path = Path("/")) -> str:
    """Return the distribution's name from /etc/os-release, with the kernel's name and release."""
    kernel = f"{os.uname().sysname} {os.uname().release}"
    try:
        lines = (root / "etc" / "os-release").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return kernel
    name = next((line.partition("=")[2].strip("\"'") for line in lines if line.startswith("PRETTY_NAME=")), "")
    return f"{name}, {kernel}" if name else kernel


VARIABLE: Final = "RANKLAKE_SUBMITTED_TS"
_MAX_WAIT: Final = dt.timedelta(days=366)
_SLACK: Final = dt.timedelta(minutes=5)


class NotSubmittedError(ValueError):
    """The environment has no valid time of submission. The message has the reason, without the value."""


def submitted_us(environ: Mapping[str, str], now: dt.datetime | None = None) -> int:
    """Return the time of the job's submission, µs since 1970.

    Parameters
    ----------
    environ
        `VARIABLE` is in seconds since 1970, or in ISO 8601; without an offset it is the host's local time, as Slurm's.

    Raises
    ------
    NotSubmittedError
        `VARIABLE` is not set or invalid, is in the future, or is more than a year ago.
    """
    value = environ.get(VARIABLE, "").strip()
    if not value:
        raise NotSubmittedError(f"{VARIABLE} is not set")
    moment = now or dt.datetime.now(dt.UTC)
    try:
        is_number = value.replace(".", "", 1).isdigit()
        submitted = dt.datetime.fromtimestamp(float(value), dt.UTC) if is_number else dt.datetime.fromisoformat(value)
        wait = moment - (submitted if submitted.tzinfo is not None else submitted.astimezone())
    except (ValueError, OverflowError, OSError):
        raise NotSubmittedError(f"{VARIABLE} is neither seconds since 1970 nor ISO 8601") from None
    if not -_SLACK <= wait <= _MAX_WAIT:
        raise NotSubmittedError(f"{VARIABLE} is in the future, or more than a year ago")
    return round((moment - wait).timestamp() * 1e6)
