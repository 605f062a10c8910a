"""Autolog: one line that records whatever trains.

from ranklake import capture
capture.autolog()
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, Final

from ranklake.capture.frameworks.follower import Follower, follow
from ranklake.capture.frameworks.patches import PATCHES

if TYPE_CHECKING:
    from ranklake.capture.training.run import Run

_HOOKS: Final = {
    "torch": ("torch", "install"),
    "lightning.pytorch": ("lightning", "attach"),
    "pytorch_lightning": ("lightning", "attach"),
    "transformers.trainer": ("transformers", "attach"),
    "accelerate": ("accelerate", "attach"),
    "deepspeed": ("deepspeed", "attach"),
}
"""What is called, in which module of this folder, once a framework has been imported, or the part that is hooked."""


def autolog(run: "Run | str | None" = None, **settings: Any) -> "Run":
    """Record whatever trains in this process: plain torch, Lightning, Transformers, Accelerate, DeepSpeed.

    Frameworks that are imported are hooked now, the others when they are imported; none is imported by this. Calling it
    again changes nothing.

    Parameters
    ----------
    run
        To record into, or the name of a run to begin; by default one is begun now.
    settings
        For `ranklake.capture.start`.

    Returns
    -------
    The run. Nothing is raised: what cannot be hooked is reported in a warning, and the rest is recorded.
    """
    follower = follow(run, **settings)
    run_followed = follower.run
    if follower.is_on:
        with follower.contain_errors():
            run_followed.collectives()
            if run_followed.recording is not None and follower.given is None:
                run_followed.recording.await_config()  # those of a framework come when it begins to train
        for name in _HOOKS:
            if name in sys.modules:
                _hook(name, follower)
        if not any(isinstance(finder, OnImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, OnImport())
        PATCHES.undo_by(_import_as_ever)
    return run_followed


def _import_as_ever() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, OnImport)]


def _hook(name: str, follower: Follower) -> None:
    module, function = _HOOKS[name]
    with follower.contain_errors():
        getattr(importlib.import_module(f"ranklake.capture.frameworks.{module}"), function)()


class OnImport(importlib.abc.MetaPathFinder):
    """Hooks a framework when it is imported later."""

    def __init__(self) -> None:
        self._looking: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the module's own spec with a loader that hooks it once it is there; None for all other modules."""
        del path, target
        if name not in _HOOKS or name in self._looking:
            return None
        self._looking.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._looking.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, name)
        return spec


class _HookingLoader(importlib.abc.Loader):
    """A module's loader, and then its hook."""

    def __init__(self, loader: Any, name: str) -> None:
        self._loader, self._name = loader, name

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["_loader"], name)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        self._loader.exec_module(module)
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        _hook(self._name, follow())
