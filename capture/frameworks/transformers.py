"""Transformers: a callback of its Trainer.

from ranklake.capture.frameworks.transformers import RanklakeCallback
trainer = transformers.Trainer(..., callbacks=[RanklakeCallback()])
"""

import functools
import time
from typing import TYPE_CHECKING, Any, Final

from transformers import TrainerCallback
from transformers import trainer as trainer_module

from ranklake.capture.frameworks import torch as torch_hooks
from ranklake.capture.frameworks.follower import follow
from ranklake.capture.frameworks.patches import PATCHES
from ranklake.capture.frameworks.transfers import Transfer, loading, record_failure, step_of

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from ranklake.capture.training.run import Run

__all__ = ["RanklakeCallback"]

_STEP_VALUES: Final = frozenset({"loss", "grad_norm", "learning_rate", "num_input_tokens_seen"})
_SPEEDS: Final = ("_runtime", "_per_second")


class RanklakeCallback(TrainerCallback):  # type: ignore[misc]  # typed as Any where it is not looked at
    """Records training: steps with phases, logs, evaluations, checkpoints, arguments.

    A step is a step of the optimizer, numbered by ``state.global_step`` at its begin; accumulated batches are its
    micro-batches. Tokens are recorded if the Trainer counts them (``include_num_input_tokens_seen``).

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start; by default the process's run, which is started by the
        training.
    settings
        Options of `ranklake.capture.start` for a run that the callback starts.
    """

    def __init__(self, run: "Run | str | None" = None, **settings: Any) -> None:
        self._run, self._settings = run, settings
        self._leads = False
        self._save_start_s: float | None = None
        self._tokens = 0
        self._follower = follow(run, **settings)
        self._watch_checkpoints()

    def load(self, trainer: Any, place: str, load_checkpoint: "Callable[[], Any]") -> Any:
        """Load the checkpoint that training resumes from, and record it. This starts the run."""
        follower = follow(self._run, **self._settings)
        with loading(follower, place, step_of(place), is_main=trainer.is_world_process_zero()):
            return load_checkpoint()

    def save(self, trainer: Any, save_checkpoint: "Callable[[], Any]") -> Any:
        """Save a checkpoint, and record a failure; `on_save` records a success."""
        start_s = time.monotonic()
        try:
            return save_checkpoint()
        except BaseException as error:
            with self._follower.contain_errors():
                step = int(trainer.state.global_step)
                transfer = Transfer(f"{trainer.args.output_dir}/checkpoint-{step}", step)
                record_failure(self._follower, "save_failed", transfer, error, time.monotonic() - start_s)
            raise

    def _watch_checkpoints(self) -> None:
        with self._follower.contain_errors():
            PATCHES.put(trainer_module.Trainer, "_load_from_checkpoint", _wrap_load)
            PATCHES.put(trainer_module.Trainer, "_save_checkpoint", _wrap_save)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Become the follower's leader, unless there is one."""
        self._follower = follow(self._run, **self._settings)
        with self._follower.contain_errors():
            self._leads = self._follower.lead(self, _config(args, kwargs.get("model")), _name(args))
            self._follower.adds_losses = self._leads  # the Trainer divides each loss by the number of micro-batches
            self._tokens = int(state.num_input_tokens_seen or 0)
            torch_hooks.install()
        self._watch_checkpoints()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Begin a step."""
        if self._leads:
            with self._follower.contain_errors():
                self._leave_phases()
                self._follower.begin_step(int(state.global_step))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the step, and begin the phase that the Trainer announces in `control`."""
        if not self._leads:
            return
        with self._follower.contain_errors():
            total_tokens = int(state.num_input_tokens_seen or 0)
            self._follower.end_step(tokens=total_tokens - self._tokens or None)
            self._tokens = total_tokens
            if control.should_evaluate:
                self._follower.enter("evaluation")
            elif control.should_save:
                self._begin_saving()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End phase ``evaluation`` and record its metrics."""
        with self._follower.contain_errors():
            if self._leads:
                self._follower.leave("evaluation")
                metrics: Mapping[str, Any] = kwargs.get("metrics") or {}
                self._follower.metrics(_registry_names(metrics), max(self._follower.latest, 0))
                self._follower.run.event("evaluation", step=max(self._follower.latest, 0), metrics=dict(metrics))
                if control.should_save:
                    self._begin_saving()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Record a checkpoint."""
        with self._follower.contain_errors():
            if self._leads:
                self._follower.leave("checkpoint")
                duration_s = None if self._save_start_s is None else time.monotonic() - self._save_start_s
                self._save_start_s = None
                if state.is_world_process_zero:
                    path = f"{args.output_dir}/checkpoint-{state.global_step}"
                    self._follower.checkpoint(path, int(state.global_step), duration_s)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Record the Trainer's logs, except loss, grad_norm and lr, which each step has exactly."""
        with self._follower.contain_errors():
            if not self._leads or not logs:
                return
            if "train_runtime" in logs:
                self._follower.run.event("fit_summary", **{str(name): value for name, value in logs.items()})
            elif not any(name.startswith("eval_") for name in logs):
                self._follower.metrics(_registry_names(logs), max(self._follower.latest, 0))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """End the fit."""
        with self._follower.contain_errors():
            self._leave_phases()
            self._follower.end_lead(self)

    def _begin_saving(self) -> None:
        self._save_start_s = time.monotonic()
        self._follower.enter("checkpoint")

    def _leave_phases(self) -> None:
        for phase in ("evaluation", "checkpoint"):  # in case the Trainer did not do what it announced
            self._follower.leave(phase)


def _registry_names(metrics: "Mapping[str, Any]") -> dict[str, Any]:
    """Return metrics by the registry's names, without values of steps and the Trainer's speeds."""
    renamed = {}
    for name, value in metrics.items():
        if name in _STEP_VALUES or name.endswith(_SPEEDS):
            continue
        if name == "epoch":
            renamed["train/epoch"] = value
        else:
            renamed["eval/" + name.removeprefix("eval_") if name.startswith("eval_") else name] = value
    return renamed


def _name(args: Any) -> str | None:
    """Return ``run_name``; None if it is the output folder, which is Transformers' default."""
    name = getattr(args, "run_name", None)
    return None if name == getattr(args, "output_dir", None) else name


def _config(args: Any, model: Any) -> dict[str, Any]:
    config = dict(args.to_sanitized_dict())
    return {**config, "model": type(model).__name__} if model is not None else config


def _callback_of(trainer: Any) -> RanklakeCallback | None:
    callbacks = trainer.callback_handler.callbacks
    return next((callback for callback in callbacks if isinstance(callback, RanklakeCallback)), None)


def _wrap_load(original: Any) -> Any:
    @functools.wraps(original)
    def load(self: Any, resume_from_checkpoint: Any, *args: Any, **kwargs: Any) -> Any:
        load_checkpoint = functools.partial(original, self, resume_from_checkpoint, *args, **kwargs)
        callback = _callback_of(self)
        return load_checkpoint() if callback is None else callback.load(self, resume_from_checkpoint, load_checkpoint)

    return load


def _wrap_save(original: Any) -> Any:
    @functools.wraps(original)
    def save(self: Any, *args: Any, **kwargs: Any) -> Any:
        save_checkpoint = functools.partial(original, self, *args, **kwargs)
        callback = _callback_of(self)
        return save_checkpoint() if callback is None else callback.save(self, save_checkpoint)

    return save


def attach() -> None:
    """Add the callback to every Trainer created from now on."""
    if RanklakeCallback not in trainer_module.DEFAULT_CALLBACKS:
        trainer_module.DEFAULT_CALLBACKS.append(RanklakeCallback)
        PATCHES.undo_by(_detach)


def _detach() -> None:
    trainer_module.DEFAULT_CALLBACKS.remove(RanklakeCallback)
