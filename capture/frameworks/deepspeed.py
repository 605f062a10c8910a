"""DeepSpeed: an engine that is followed.

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
    """Says where the steps of an engine are."""

    def __init__(self, engine: Any) -> None:
        self.engine = engine

    def number(self) -> int:
        """Return the number of the step that a forward pass now belongs to."""
        return int(self.engine.global_steps)


def record(engine: Any, run: "Run | str | None" = None, **settings: Any) -> "Run":
    """Record what an engine trains: steps with phases, loss, lr, grad_norm, samples, checkpoints, its configuration.

    A step is one in which the engine changes its parameters, numbered as ``engine.global_steps`` was when it began.

    Parameters
    ----------
    run
        To record into, or the name of a run to begin; by default the process's own, which is begun now.
    settings
        For `ranklake.capture.start`, where this begins the run.

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
    given = getattr(engine.config, "_param_dict", None) if not isinstance(engine.config, dict) else engine.config
    return {"deepspeed": given, "model": type(engine.module).__name__}


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
        part = loss.detach() / engine.gradient_accumulation_steps()
        before = follower.facts.get("loss")
        follower.facts["loss"] = part if before is None else before + part
    return original(engine, loss, *args, **kwargs)


def _step(original: Callable[..., Any], engine: Any, *args: Any, **kwargs: Any) -> Any:
    follower, before = _follower_of(engine), engine.global_steps
    done = original(engine, *args, **kwargs)
    if follower is not None and engine.global_steps > before:
        with follower.contain_errors():
            norm = engine.get_global_grad_norm()
            samples = engine.train_micro_batch_size_per_gpu() * engine.gradient_accumulation_steps()
            follower.end_step(grad_norm=norm, samples=samples)
    return done


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
    with loading(follower, f"{load_dir}/{tag}" if tag else load_dir, is_main=engine.global_rank == 0) as moved:
        done = original(engine, load_dir, *args, **kwargs)
        with follower.contain_errors():
            if done[0] is None:
                moved.lacks = "DeepSpeed found no checkpoint there"
            else:
                moved.place, moved.step = Path(done[0]).parent, int(engine.global_steps)
    return done


def attach() -> None:
    """Follow every engine that trains from now on."""
    wrappers = {"__init__": _init, "backward": _backward, "step": _step, "save_checkpoint": _save}
    wrappers["load_checkpoint"] = _load
    for name, wrapper in wrappers.items():
        PATCHES.put(DeepSpeedEngine, name, functools.partial(_wrap_method, wrapper))


def _wrap_method(wrapper: Callable[..., Any], original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def through(engine: Any, *args: Any, **kwargs: Any) -> Any:
        return wrapper(original, engine, *args, **kwargs)

    return through
