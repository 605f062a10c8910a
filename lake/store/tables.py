"""A process' cache for the tables of a lake: open handles, and data files whose digests it has verified."""

from dataclasses import dataclass, field
from typing import Any

from ranklake.lake.store.store import Store


@dataclass(frozen=True)
class Tables:
    """The tables in a store, with caches of this process. A pickled copy has empty caches.

    Attributes
    ----------
    store
        The place of the tables.
    opened
        Table handles by table name, each with an identifier of its last commit. `ranklake.lake.tables.tables.latest`
        fills it.
    sound
        Verified data files by path, each with its state at that time. `ranklake.lake.tables.live_files` fills it.
    """

    store: Store
    opened: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    sound: dict[str, object] = field(default_factory=dict, init=False, repr=False, compare=False)

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the caches."""
        return {**self.__dict__, "opened": {}, "sound": {}}
