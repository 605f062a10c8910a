"""Lightning: a callback.

from ranklake.capture.frameworks.lightning import RanklakeCallback
trainer = lightning.Trainer(callbacks=[RanklakeCallback()])
"""

import functools
import os
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if "pytorch_lightning" in sys.modules and "lightning.pytorch" not in sys.modules:
    import pytorch_lightning as pl
else:
    import lightning.pytorch as pl

from ranklake.capture.frameworks import torch as torch_hooks
from ranklake.capture.frameworks.follower import Follower, follow
from ranklake.capture.frameworks.patches import PATCHES
from ranklake.capture.frameworks.transfers import loading, saving

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run

__all__ = ["RanklakeCallback"]


class RanklakeCallback(pl.Callback):  # type: ignore[misc]  # typed as Any where it is not looked at
    """Records fits: steps with phases, the module's metrics, validation, checkpoints, hyperparameters, failures.

    A step is a step of the optimizer, numbered as ``trainer.global_step``; accumulated batches are its micro-batches.

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start; by default the process's run, which is started by the
        fit.
    settings
        Options of `ranklake.capture.start` for a run that the callback starts.
    """

    def __init__(self, run: "Run | str | None" = None, **settings: Any) -> None:
        super().__init__()
        self._run, self._settings = run, settings
        self._seen: dict[str, object] = {}
        self._validation_metrics: set[str] = set()
        self._loss: Any = None
        self._samples: int | None = 0
        self._leads = False
        self._follower = follow(run, **settings)

    def setup(self, trainer: Any, pl_module: Any, stage: str) -> None:
        """Time the loading of checkpoints, which the trainer resumes from before the fit starts."""
        if stage == "fit":
            self._follower = follow(self._run, **self._settings)
            with self._follower.contain_errors():
                _watch_checkpoints(trainer)

    def on_fit_start(self, trainer: Any, pl_module: Any) -> None:
        """Become the follower's leader."""
        self._follower = follow(self._run, **self._settings)
        with self._follower.contain_errors():
            self._leads = self._follower.lead(self, _config(trainer, pl_module), _name(trainer))
            torch_hooks.install()
            self._follower.run.collectives(trainer.model)
            _watch_checkpoints(trainer)

    def on_train_epoch_start(self, trainer: Any, pl_module: Any) -> None:
        """Record the metrics that the module logged at the end of the previous epoch."""
        with self._follower.contain_errors():
            if self._leads:
                metrics = self._new_metrics(trainer.logged_metrics)
                training_metrics = {name: metrics[name] for name in metrics.keys() - self._validation_metrics}
                self._follower.metrics(training_metrics)

    on_train_end = on_train_epoch_start

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step unless the batch belongs to the open one."""
        if self._leads:
            with self._follower.contain_errors():
                if self._follower.step is None:
                    self._loss, self._samples = None, 0
                    self._new_metrics(trainer.logged_metrics)  # skip metrics of a validation within the epoch
                self._follower.begin_step(int(trainer.global_step))

    def on_train_batch_end(
        self,
        trainer: Any,
        pl_module: Any,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        """End the step if the optimizer has stepped."""
        if not self._leads:
            return
        with self._follower.contain_errors():
            loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
            if loss is not None:  # already divided by the number of accumulated batches
                loss = loss.detach()
                self._loss = loss if self._loss is None else self._loss + loss
            if self._follower.step is not None and trainer.global_step > self._follower.latest:
                metrics = self._new_metrics(trainer.logged_metrics)
                self._follower.metrics(metrics)
                self._follower.end_step(loss=self._loss)

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """Begin phase ``evaluation``."""
        with self._follower.contain_errors():
            if self._leads:
                self._new_metrics(trainer.callback_metrics)  # skip metrics of training
                self._follower.enter("evaluation")

    def on_validation_end(self, trainer: Any, pl_module: Any) -> None:
        """End phase ``evaluation``, and record the metrics that the module logged in it."""
        with self._follower.contain_errors():
            if self._leads:
                self._follower.leave("evaluation")
                metrics = self._new_metrics(trainer.callback_metrics)
                self._validation_metrics |= metrics.keys()
                if not trainer.sanity_checking:
                    self._follower.metrics(metrics)
                    self._follower.run.event("evaluation", step=max(self._follower.latest, 0), metrics=sorted(metrics))

    on_test_start, on_test_end = on_validation_start, on_validation_end

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """Record the failure."""
        with self._follower.contain_errors():
            if self._leads:
                self._follower.fail(exception)
                self._follower.end_lead(self)

    def on_fit_end(self, trainer: Any, pl_module: Any) -> None:
        """End the fit."""
        with self._follower.contain_errors():
            self._follower.end_lead(self)

    def _new_metrics(self, metrics: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metrics logged since the last call; Lightning keeps each value until the next one."""
        new = {name: value for name, value in metrics.items() if self._seen.get(name) is not value}
        self._seen |= new
        return new

    def __getstate__(self) -> dict[str, Any]:
        own = {"_run": self._run, "_settings": self._settings}
        return {**own, "_pid": os.getpid(), "_start_options": self._follower.start_options()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        is_same_process = state["_pid"] == os.getpid()
        settings = {"run": state["_run"], **state["_settings"]} if is_same_process else state["_start_options"]
        self.__init__(**settings)  # type: ignore[misc]  # in another process: records another rank of the run


def _name(trainer: Any) -> str | None:
    """Return the run's name in the first logger that has one, such as wandb's display name; None without one."""
    for logger in trainer.loggers:
        for attribute in ("_run_name", "_name"):  # of MLflow, and of wandb and others; `name` is their project
            name = getattr(logger, attribute, None)
            if isinstance(name, str) and name not in {"", "lightning_logs"}:
                return name
    return None


def _config(trainer: Any, module: Any) -> dict[str, Any]:
    facts = {
        "max_steps": trainer.max_steps,
        "max_epochs": trainer.max_epochs,
        "accumulate_grad_batches": trainer.accumulate_grad_batches,
        "precision": str(trainer.precision),
        "gradient_clip_val": trainer.gradient_clip_val,
        "num_devices": trainer.num_devices,
        "num_nodes": trainer.num_nodes,
        "strategy": type(trainer.strategy).__name__,
        "model": type(module).__name__,
    }
    return {**facts, **dict(getattr(module, "hparams", {}))}


def _watch_checkpoints(trainer: Any) -> None:
    """Wrap the functions through which Lightning saves and loads all checkpoints."""
    PATCHES.put(pl.Trainer, "save_checkpoint", _wrap_save)
    PATCHES.put(type(trainer._checkpoint_connector), "resume_start", _wrap_load)  # noqa: SLF001 - no hook exists


def _follower_of(trainer: Any) -> Follower | None:
    callbacks = (callback for callback in trainer.callbacks if isinstance(callback, RanklakeCallback))
    return next((callback._follower for callback in callbacks), None)  # noqa: SLF001 - a class of this module


def _wrap_save(original: Any) -> Any:
    @functools.wraps(original)
    def save_checkpoint(self: Any, filepath: Any, *args: Any, **kwargs: Any) -> Any:
        follower = _follower_of(self)
        if follower is None or not follower.is_on:
            return original(self, filepath, *args, **kwargs)
        with saving(follower, filepath, int(self.global_step), is_main=self.is_global_zero):
            return original(self, filepath, *args, **kwargs)

    return save_checkpoint


def _wrap_load(original: Any) -> Any:
    @functools.wraps(original)
    def resume_start(self: Any, checkpoint_path: Any = None, *args: Any, **kwargs: Any) -> Any:
        follower = _follower_of(self.trainer)
        if not checkpoint_path or follower is None or self.trainer.state.fn != "fit":
            return original(self, checkpoint_path, *args, **kwargs)
        with loading(follower, checkpoint_path, is_main=self.trainer.is_global_zero) as transfer:
            result = original(self, checkpoint_path, *args, **kwargs)
            with follower.contain_errors():
                transfer.step = (self._loaded_checkpoint or {}).get("global_step")
        return result

    return resume_start


def attach() -> None:
    """Add the callback to every Trainer created from now on."""
    PATCHES.put(pl.Trainer, "__init__", _with_callback)


def _with_callback(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        if not any(isinstance(callback, RanklakeCallback) for callback in self.callbacks):
            self.callbacks.append(RanklakeCallback())

    return init
