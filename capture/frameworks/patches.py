"""Patches: replacements of frameworks' own functions, until the followed run has ended."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class Patch:
    """One attribute that was replaced."""

    owner: Any
    name: str
    original: Any
    replacement: Any
    was_its_own: bool

    def take_back(self) -> bool:
        """Restore the original; False if other code has replaced our replacement."""
        if vars(self.owner).get(self.name) is not self.replacement:
            return False
        if self.was_its_own:
            setattr(self.owner, self.name, self.original)
        else:
            delattr(self.owner, self.name)
        return True


class Patches:
    """All that this process has replaced and hooked.

    Notes
    -----
    What somebody else wrapped meanwhile stays, beneath theirs: where nobody is followed it passes on what it is called
    with, and it is not put in place a second time.
    """

    def __init__(self) -> None:
        self._made: list[Patch] = []
        self._undos: list[Callable[[], object]] = []

    def put(self, owner: object, name: str, replacement_of: Callable[[Any], Any]) -> None:
        """Wrap a function in place; no change where it is wrapped already or does not exist."""
        original: Any = getattr(owner, name, None)
        if original is None or any(one.owner is owner and one.name == name for one in self._made):
            return
        replacement = replacement_of(original)
        self._made.append(Patch(owner, name, original, replacement, name in vars(owner)))
        setattr(owner, name, replacement)

    def undo_by(self, undo: Callable[[], object]) -> None:
        """Have something called when all is taken back, once."""
        if undo not in self._undos:
            self._undos.append(undo)

    def take_back(self) -> None:
        """Put back what was replaced, the last first; nothing is raised."""
        undos, self._undos = self._undos, []
        for undo in reversed(undos):
            with contextlib.suppress(Exception):
                undo()
        self._made = [one for one in reversed(self._made) if not one.take_back()][::-1]


PATCHES: Final = Patches()
