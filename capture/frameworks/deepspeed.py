"""DeepSpeed: records the training of an engine.

from ranklake.capture.frameworks.deepspeed import record
engine, optimizer, _, _ = deepspeed.initialize(...)
run = record(engine)
"""

import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from deepspeed.runtime.engine import DeepSpeedEngine

from ranklake.capture.frameworks import torch as torch_hooks
from ranklake.capture.frameworks.follower import FOLLOWED, Follower, follow
from ranklake.capture.frameworks.patches import PATCHES
from ranklake.capture.frameworks.transfers import loading, saving

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run

__all__ = ["record"]


class Leader:
    """Leads the follower by the step counter of an engine."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def number(self) -> int:
        """Return the number of the current step."""
        return int(self.engine.global_steps)


def record(engine: Any, run: "Run | str | None" = None, **settings: Any) -> "Run":
    """Record an engine's training: steps with phases, loss, lr, grad_norm, samples, checkpoints, configuration.

    A step ends when the engine updates its parameters. Its number is ``engine.global_steps`` at its begin.

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start; by default the process's run, which is started now.
    settings
        Options of `ranklake.capture.start` for a run that this call starts.

    Returns
    -------
    The run.
    """
    follower = follow(run, **settings)
    with follower.contain_errors():
        _lead(follower, engine)
        attach()
    return follower.run


def _lead(follower: Follower, engine: Any) -> None:
    if isinstance(follower.leader, Leader) and follower.leader.engine is not engine:
        follower.end_lead(follower.leader)
    if follower.leader is None:
        follower.lead(Leader(engine), _config(engine))
        torch_hooks.install()


def _config(engine: Any) -> dict[str, Any]:
    config = engine.config if isinstance(engine.config, dict) else getattr(engine.config, "_param_dict", None)
    return {"deepspeed": config, "model": type(engine.module).__name__}


def _follower_of(engine: Any) -> Follower | None:
    follower = FOLLOWED[0] if FOLLOWED else None
    if follower is None or not follower.is_on:
        return None
    with follower.contain_errors():
        _lead(follower, engine)
    return follower if isinstance(follower.leader, Leader) and follower.leader.engine is engine else None


def _init(original: Callable[..., None], engine: Any, *args: Any, **kwargs: Any) -> None:
    original(engine, *args, **kwargs)
    _follower_of(engine)


def _backward(original: Callable[..., Any], engine: Any, loss: Any, *args: Any, **kwargs: Any) -> Any:
    follower = _follower_of(engine)
    if follower is None:
        return original(engine, loss, *args, **kwargs)
    with follower.contain_errors():
        micro_loss = loss.detach() / engine.gradient_accumulation_steps()
        sum_before = follower.facts.get("loss")
        follower.facts["loss"] = micro_loss if sum_before is None else sum_before + micro_loss
    return original(engine, loss, *args, **kwargs)


def _step(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    follower, steps_before = _follower_of(engine), engine.global_steps
    result = original(engine, *args, **kwargs)
    if follower is not None and engine.global_steps > steps_before:
        with follower.contain_errors():
            norm = engine.get_global_grad_norm()
            samples = engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps()
            follower.end_step(grad_norm=norm, samples=samples)
    return result


def _save(original: Callable[..., Any], engine: Any, save_dir: Any, *args: Any, **kwargs: Any) -> Any:
    follower = _follower_of(engine)
    if follower is None:
        return original(engine, save_dir, *args, **kwargs)
    tag = args[0] if args else kwargs.get("tag") or f"global_step{engine.global_steps}"
    with saving(follower, f"{save_dir}/{tag}", int(engine.global_steps), is_main=engine.global_rank == 0):
        return original(engine, save_dir, *args, **kwargs)


def _load(original: Callable[..., Any], engine: Any, load_dir: Any, *args: Any, **kwargs: Any) -> Any:
    follower = _follower_of(engine)
    if follower is None:
        return original(engine, load_dir, *args, **kwargs)
    tag = args[0] if args else kwargs.get("tag")
    with loading(follower, f"{load_dir}/{tag}" if tag else load_dir, is_main=engine.global_rank == 0) as transfer:
        result = original(engine, load_dir, *args, **kwargs)
        with follower.contain_errors():
            if result[0] is None:
                transfer.problem = "DeepSpeed found no checkpoint there"
            else:
                transfer.place, transfer.step = Path(result[0]).parent, int(engine.global_steps)
    return result


def attach() -> None:
    """Record every engine that trains from now on."""
    wrappers = {"__init__": _init, "backward": _backward, "step": _step, "save_checkpoint": _save}
    wrappers["load_checkpoint"] = _load
    for name, wrapper in wrappers.items():
        PATCHES.put(DeepSpeedEngine, name, functools.partial(_wrap_method, wrapper))


def _wrap_method(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def call_wrapper(engine: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, engine, *args, **kwargs)

    return call_wrapper
