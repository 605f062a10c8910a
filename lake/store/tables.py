"""What a process remembers of a lake's tables: open handles, and data files that it found sound."""

from dataclasses import dataclass, field
from typing import Any

from ranklake.lake.store.store import Store


@dataclass(frozen=True)
class Tables:
    """The tables in a store, as this process knows them; what it remembers goes to no other.

    Attributes
    ----------
    store
        Where they are.
    opened
        Handles that `ranklake.lake.tables.tables.latest` keeps, by name, each with what tells its last commit from
        another.
    sound
        Data files that `ranklake.lake.tables.live_files` found sound, by path, each as it was then.
    """

    store: Store
    opened: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    sound: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process may have."""
        return {**self.__dict__, "opened": {}, "sound": {}}
