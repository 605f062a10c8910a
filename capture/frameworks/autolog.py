"""Autolog: one line that records training by any supported framework.

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
"""Module of this folder, and its function to call, by the framework's module after whose import it is called."""


def autolog(run: "Run | str | None" = None, **settings: Any) -> "Run":
    """Record training in this process by plain torch, Lightning, Transformers, Accelerate or DeepSpeed.

    Imported frameworks are hooked now, others when they are imported. No framework is imported by this call. Another
    call has no effect.

    Parameters
    ----------
    run
        The run to record into, or the name of a run to start; by default a run is started now.
    settings
        Options of `ranklake.capture.start`.

    Returns
    -------
    The run. Nothing is raised: a hook that fails is reported as a warning, and the rest is recorded.
    """
    follower = follow(run, **settings)
    followed_run = follower.run
    if follower.is_on:
        with follower.contain_errors():
            followed_run.collectives()
            if followed_run.recording is not None and follower.given is None:
                followed_run.recording.await_config()  # frameworks have it when training begins
        for name in _HOOKS:
            if name in sys.modules:
                _hook(name, follower)
        if not any(isinstance(finder, OnImport) for finder in sys.meta_path):
            sys.meta_path.insert(0, OnImport())
        PATCHES.undo_by(_remove_finder)
    return followed_run


def _remove_finder() -> None:
    sys.meta_path[:] = [finder for finder in sys.meta_path if not isinstance(finder, OnImport)]


def _hook(name: str, follower: Follower) -> None:
    module, function = _HOOKS[name]
    with follower.contain_errors():
        getattr(importlib.import_module(f"ranklake.capture.frameworks.{module}"), function)()


class OnImport(importlib.abc.MetaPathFinder):
    """Hooks a framework when it is imported later."""

    def __init__(self) -> None:
        self._searching: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return a framework's spec with a loader that hooks the framework after loading; None for other modules."""
        del path, target
        if name not in _HOOKS or name in self._searching:
            return None
        self._searching.add(name)
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._searching.discard(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _HookingLoader(spec.loader, name)
        return spec


class _HookingLoader(importlib.abc.Loader):
    """Loads a module with its own loader, and then hooks it."""

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
