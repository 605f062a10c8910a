"""Determinism: seeds, flags, versions and topology, from what the training process has imported by itself.

Nothing here imports a framework, starts a device or draws a random number.
"""

import hashlib
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

Facts = dict[str, Any]
SIZES: Final = ("dp_size", "tp_size", "pp_size", "ep_size", "cp_size")
UNSEEDED: Final = 67280421310721
"""What torch's generators begin with (c10/core/GeneratorImpl.h, default_rng_seed_val): nobody has set a seed yet."""

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
    """Return the columns that torch tells, if it has been imported: versions, seed, determinism; none without it.

    Raises whatever a half-imported torch raises.
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
    """Return the framework's flags that bear on determinism, by name; none without torch."""
    torch = sys.modules.get("torch")
    if torch is None or not hasattr(torch, "initial_seed"):
        return {}
    asked: dict[str, Callable[[], Any]] = {
        "cudnn_deterministic": lambda: torch.backends.cudnn.deterministic,
        "cudnn_benchmark": lambda: torch.backends.cudnn.benchmark,
        "deterministic_warn_only": torch.is_deterministic_algorithms_warn_only_enabled,
        "fill_uninitialized_memory": lambda: torch.utils.deterministic.fill_uninitialized_memory,
        "float32_matmul_precision": torch.get_float32_matmul_precision,
        "torch_is_unseeded": lambda: torch.initial_seed() == UNSEEDED,
    }
    return _answers(asked)


def generator_states() -> Facts:
    """Return digests of the states of Python's and numpy's global generators, where they are in use.

    Two runs with equal digests draw the same numbers from there on. A state does not tell its seed.
    """
    asked: dict[str, Callable[[], Any]] = {}
    random = sys.modules.get("random")
    if random is not None:
        asked["python_random_sha256"] = lambda: _digest(repr(random.getstate()).encode())
    numpy = sys.modules.get("numpy.random")
    if numpy is not None:
        asked["numpy_random_sha256"] = lambda: _digest(numpy.get_state(legacy=False)["state"]["key"].tobytes())
    return _answers(asked)


def topology(mesh: object = None) -> Facts:
    """Return the sizes of parallel groups, as a device mesh or Megatron tells them; nothing where neither does.

    Parameters
    ----------
    mesh
        A `torch.distributed.device_mesh.DeviceMesh`. Sizes of dimensions of one kind (``dp_replicate``, ``dp_shard``)
        are multiplied; those of other names are left out.
    """
    sizes: Facts = {}
    for name, size in _dimensions(mesh):
        column = _DIMENSIONS.get(name.lower())
        if column is not None:
            sizes[column] = sizes.get(column, 1) * size
    state = sys.modules.get("megatron.core.parallel_state")
    if not sizes and state is not None and state.model_parallel_is_initialized():
        sizes = _answers({column: getattr(state, name) for column, name in _MEGATRON.items() if hasattr(state, name)})
    return sizes


def _dimensions(mesh: object) -> Iterable[tuple[str, int]]:
    names = getattr(mesh, "mesh_dim_names", None) or ()
    size = getattr(mesh, "size", None)
    return [(str(name), int(size(at))) for at, name in enumerate(names)] if callable(size) else []


def _answers(asked: dict[str, Callable[[], Any]]) -> Facts:
    """Return what can be answered; another version of a library may not know a question."""
    answers: Facts = {}
    for name, ask in asked.items():
        try:
            value = ask()
        except Exception:  # noqa: BLE001, S112 - a foreign library
            continue
        if isinstance(value, str | int):
            answers[name] = value
    return answers


def _as_int64(seed: int) -> int:
    """Return a seed as a signed integer of 64 bits: torch's own are unsigned."""
    return seed - (1 << 64) if seed >= 1 << 63 else seed


def _digest(state: bytes) -> str:
    return hashlib.sha256(state).hexdigest()
