"""Snapshots: copies of the states of model, optimizer and others in main memory, for rolling back."""

import copy
import sys
from collections import deque
from dataclasses import dataclass
from typing import Any, Protocol


class Stateful(Protocol):
    """An object with torch's interface for states: a model, optimizer, scheduler or scaler."""

    def state_dict(self) -> dict[str, Any]:
        """Return the state."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> object:
        """Load a state."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """States of all objects before a step.

    Attributes
    ----------
    step
        Number of the step.
    states
        One state per object.
    """

    step: int
    states: tuple[Any, ...]


class Snapshots:
    """The latest snapshots of some objects.

    Parameters
    ----------
    every
        Steps between two snapshots.
    keep
        Most snapshots to keep; each takes as much main memory as the objects' states.

    Raises `ValueError` for numbers below 1, and `TypeError` for objects without a state.
    """

    def __init__(self, objects: tuple[Stateful, ...], every: int, keep: int) -> None:
        if every < 1 or keep < 1:
            raise ValueError(f"every={every} and keep={keep} must be 1 or more")
        stateless = [type(item).__name__ for item in objects if not hasattr(item, "load_state_dict")]
        if stateless:
            raise TypeError(f"{', '.join(stateless)} has no state_dict and load_state_dict")
        self._objects, self._every = objects, every
        self._kept: deque[Snapshot] = deque(maxlen=keep)

    def take_if_due(self, step: int) -> None:
        """Copy the states if `every` steps have passed. Errors of copying are raised; existing snapshots are kept."""
        if not self._kept or step - self._kept[-1].step >= self._every or step < self._kept[-1].step:
            self._kept.append(Snapshot(step, tuple(_deep_copy(item.state_dict()) for item in self._objects)))

    def newest_before(self, step: float) -> int | None:
        """Return the step of the newest snapshot before `step`; None if there is none."""
        return next((snapshot.step for snapshot in reversed(self._kept) if snapshot.step < step), None)

    def restore(self, step: int) -> None:
        """Load the snapshot of a step that `newest_before` returned, and delete later ones. Raises loading errors."""
        while self._kept[-1].step != step:
            self._kept.pop()
        for item, state in zip(self._objects, self._kept[-1].states, strict=True):
            item.load_state_dict(copy.deepcopy(state))


def _deep_copy(state: Any) -> Any:  # noqa: ANN401 - any nested value
    """Return a copy that shares no memory with the original, with tensors in main memory."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(state, torch.Tensor):
        return state.detach().to("cpu", copy=True)
    if isinstance(state, dict):
        return {name: _deep_copy(value) for name, value in state.items()}
    if type(state) in (list, tuple):
        return type(state)(_deep_copy(value) for value in state)
    return copy.deepcopy(state)
