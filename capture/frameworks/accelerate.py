"""Accelerate: a tracker.

from ranklake.capture.frameworks.accelerate import RanklakeTracker
accelerator = accelerate.Accelerator(log_with=[RanklakeTracker()])
accelerator.init_trackers("project", config=config)
"""

import functools
import os
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from accelerate import Accelerator
from accelerate.tracking import GeneralTracker

from ranklake.capture.frameworks import torch as torch_hooks
from ranklake.capture.frameworks.follower import FOLLOWED, Follower, follow
from ranklake.capture.frameworks.patches import PATCHES
from ranklake.capture.frameworks.transfers import loading, saving

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run

__all__ = ["RanklakeTracker"]


class RanklakeTracker(GeneralTracker):  # type: ignore[misc]  # typed as Any where it is not looked at
    """Records training by an Accelerator: steps, phases, metrics of ``accelerator.log``, checkpoints, configuration.

    A step is a step of the optimizer; batches under ``accelerator.accumulate`` are its micro-batches. Every rank
    records, except for metrics of ``accelerator.log``, which Accelerate passes only to the main process.

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start; by default the process's run, which is started by
        ``init_trackers``.
    settings
        Options of `ranklake.capture.start` for a run that the tracker starts.
    """

    name = "ranklake"
    requires_logging_directory = False
    main_process_only = False

    def __init__(self, run: "Run | str | None" = None, **settings: Any) -> None:
        super().__init__()
        self._run, self._settings = run, settings
        self._follower = follow(run, **settings)
        self._start_config: Mapping[str, Any] | None = None
        PATCHES.put(Accelerator, "init_trackers", _on_each_rank)

    @property
    def tracker(self) -> "Run":
        """The run that is recorded."""
        return self._follower.run

    def start(self) -> None:
        """Start to record training."""
        self._follower = follow(self._run, **self._settings)
        with self._follower.contain_errors():
            _begin(self._follower)
            self._follower.run.event("fit_start", framework="accelerate")

    def set_start_config(self, config: Mapping[str, Any] | None) -> None:
        """Set the hyperparameters of the run, if it has not started."""
        self._start_config = config if config and self._follower.set_start_config(config) else None

    def store_init_configuration(self, values: dict[str, Any]) -> None:
        """Record hyperparameters, unless the run started with them."""
        if self._start_config is None:
            with self._follower.contain_errors():
                self._follower.configure(values)

    def log(self, values: Mapping[str, Any], step: int | None = None, **_: object) -> None:
        """Record metrics."""
        with self._follower.contain_errors():
            self._follower.metrics(values, step)

    def finish(self) -> None:
        """End the training. The run stays open until the process ends or the user closes it."""
        with self._follower.contain_errors():
            self._follower.drop_step()
            self._follower.run.event("fit_end")


def _begin(follower: Follower) -> None:
    follower.adds_losses = True  # Accelerator.backward divides each loss by the number of micro-batches
    follower.run.collectives()
    torch_hooks.install()
    PATCHES.put(Accelerator, "save_state", _wrap_save)
    PATCHES.put(Accelerator, "load_state", _wrap_load)


def _wrap_save(original: Any) -> Any:
    @functools.wraps(original)
    def save_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        follower = FOLLOWED[0] if FOLLOWED else None
        if follower is None or not follower.is_on:
            return original(self, *args, **kwargs)
        place = (args[0] if args else kwargs.get("output_dir")) or _checkpoints_folder(self)
        with saving(follower, place, max(follower.latest, 0), is_main=self.is_main_process) as transfer:
            transfer.place = folder = original(self, *args, **kwargs)
        return folder

    return save_state


def _wrap_load(original: Any) -> Any:
    @functools.wraps(original)
    def load_state(self: Any, *args: Any, **kwargs: Any) -> Any:
        follower = FOLLOWED[0] if FOLLOWED else None
        if follower is None or not follower.is_on:
            return original(self, *args, **kwargs)
        place = None
        with follower.contain_errors():
            place = (args[0] if args else kwargs.get("input_dir")) or _latest_checkpoint(self)
        with loading(follower, place, is_main=self.is_main_process):
            return original(self, *args, **kwargs)

    return load_state


def _checkpoints_folder(accelerator: Any) -> str:
    """Return the folder of checkpoints that Accelerate names itself."""
    return f"{accelerator.project_dir}/checkpoints"


def _latest_checkpoint(accelerator: Any) -> str:
    """Return the checkpoint that Accelerate loads by default: that with the highest number, or else their folder.

    Raises `OSError`.
    """
    folder = _checkpoints_folder(accelerator)
    numbers = {name: re.findall(r"[0-9]+", name) for name in os.listdir(folder)}  # noqa: PTH208
    numbered = [name for name, number in numbers.items() if number]
    return f"{folder}/{max(numbered, key=lambda name: int(numbers[name][0]))}" if numbered else folder


def _on_each_rank(original: Any) -> Any:
    """Wrap `init_trackers` so that our tracker starts on each rank. Accelerate starts trackers only on the main one."""

    @functools.wraps(original)
    def init_trackers(
        self: Any, project_name: str, config: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> None:
        for tracker in self.log_with:
            if isinstance(tracker, RanklakeTracker):
                tracker.set_start_config(config)
        original(self, project_name, config, *args, **kwargs)
        if self.is_main_process:
            for tracker in self.trackers:
                if isinstance(tracker, RanklakeTracker):
                    with tracker._follower.contain_errors():  # noqa: SLF001 - a class of this module
                        tracker._follower.set_run_name(project_name)  # noqa: SLF001 - likewise
            return
        for tracker in self.log_with:
            if isinstance(tracker, RanklakeTracker) and tracker not in self.trackers:
                self.trackers.append(tracker)
                tracker.start()
                if config is not None:
                    tracker.store_init_configuration(config)

    return init_trackers


def attach() -> None:
    """Add a started tracker to every Accelerator created from now on."""
    PATCHES.put(Accelerator, "__init__", _with_tracker)


def _with_tracker(original: Any) -> Any:
    @functools.wraps(original)
    def init(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        follower = follow()
        with follower.contain_errors():
            if follower.leader is None and not any(isinstance(tracker, RanklakeTracker) for tracker in self.log_with):
                _begin(follower)
                self.trackers.append(RanklakeTracker())

    return init
