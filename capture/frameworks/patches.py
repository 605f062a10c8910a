"""Patches: functions of frameworks that are wrapped until the followed run ends."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Patch:
    """A replaced attribute; `was_inherited` if the owner itself did not define it."""

    owner: Any
    name: str
    original: Any
    replacement: Any
    was_inherited: bool

    def restore(self) -> bool:
        """Restore the original; return False if other code has wrapped the replacement."""
        if vars(self.owner).get(self.name) is not self.replacement:
            return False
        if not self.was_inherited:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        return True


class Patches:
    """All patches and hooks of this process.

    Notes
    -----
    A replacement that other code has wrapped cannot be removed. It stays, calls the original while no run is followed,
    and is not added a second time.
    """

    def __init__(self) -> None:
        self._patches: list[Patch] = []
        self._undos: list[Callable[[], object]] = []

    def put(self, owner: object, name: str, wrap: Callable[[Any], Any]) -> None:
        """Replace a function by its wrapper; no effect if it is wrapped already, or does not exist."""
        original: Any = getattr(owner, name, None)
        if original is None or any(patch.owner is owner and patch.name == name for patch in self._patches):
            return
        replacement = wrap(original)
        self._patches.append(Patch(owner, name, original, replacement, name not in vars(owner)))
        setattr(owner, name, replacement)

    def undo_by(self, undo: Callable[[], object]) -> None:
        """Register a function that `restore` calls once."""
        if undo not in self._undos:
            self._undos.append(undo)

    def restore(self) -> None:
        """Restore all originals, the last replaced first, and call the registered functions. Never raises."""
        undos, self._undos = self._undos, []
        for undo in reversed(undos):
            with contextlib.suppress(Exception):
                undo()
        self._patches = [patch for patch in reversed(self._patches) if not patch.restore()][::-1]


PATCHES: Final = Patches()
