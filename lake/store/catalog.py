"""The contracts and metrics of a lake: the packaged ones, and those of the operator's overlay."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from ranklake.lake.contracts.errors import ContractError
from ranklake.lake.contracts.load import contract, load_contracts, load_metrics
from ranklake.lake.contracts.model import Contract, Metric
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.store import overlays
from ranklake.lake.store.store import Store


@dataclass(frozen=True)
class Catalog:
    """A lake's contracts and metrics, including an operator's tables and columns.

    Attributes
    ----------
    store
        The lake's store, which contains the overlays under which it was written.
    folder
        Folder of the configured overlay; empty for none.
    """

    store: Store
    folder: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return the state without the cached overlay. Another process reads it again."""
        return {"store": self.store, "folder": self.folder}

    @cached_property
    def overlay(self) -> Overlay | None:
        """The operator's overlay: the lake's stored one merged with the configured folder. None if there is neither.

        It is read once per catalog. Raises `ranklake.lake.contracts.errors.ContractError` or `LakeUnreachableError`.
        """
        return overlays.merge(overlays.newest_overlay(self.store), self.configured())

    def contract(self, table: str) -> Contract:
        """Return a table's contract. Raises as `overlay`, and `ranklake.lake.contracts.errors.UnknownTableError`."""
        return contract(table, self.overlay)

    def contracts(self) -> Mapping[str, Contract]:
        """Return all contracts by table, sorted. Raises as `overlay`."""
        return load_contracts(self.overlay)

    def metrics(self) -> Mapping[str, Metric]:
        """Return the metric registry by name, sorted. Raises as `overlay`."""
        return load_metrics(self.overlay)

    def at_number(self, number: int) -> "Catalog":
        """Return the catalog of the lake's stored overlay ``number``; with 0, of the packaged contracts only."""
        catalog = Catalog(self.store, self.folder)
        catalog.__dict__["overlay"] = overlays.stored_overlay(self.store, number)
        return catalog

    def refusal(self) -> ContractError | None:
        """Return why the lake cannot be written with the configured overlay; None if it can. Raises as `overlay`."""
        own = self.configured()
        return None if own is None else overlays.refusal(overlays.newest_overlay(self.store), own)

    def unapplied_versions(self) -> dict[str, int]:
        """Return the operator's tables that have unapplied migrations, with their versions in the lake."""
        return overlays.unapplied_versions(self.store, self.configured())

    def keep(self, waiting: Mapping[str, int] = overlays.NONE_WAITING) -> int:
        """Store the configured overlay in the lake. Returns its number; see `ranklake.lake.store.overlays.keep`."""
        number = overlays.keep(self.store, self.configured(), waiting)
        self._drop_cache()
        return number

    def restore_version(self, table: str, version: int) -> bool:
        """Restore an operator's table to an earlier version; see `ranklake.lake.store.overlays.restore_version`."""
        self._drop_cache()
        return overlays.restore_version(self.store, table, version)

    def _drop_cache(self) -> None:
        self.__dict__.pop("overlay", None)

    def configured(self) -> Overlay | None:
        """Return the overlay of the configured folder. Raises `ranklake.lake.contracts.errors.ContractError`."""
        return Overlay.read(Path(self.folder).absolute()) if self.folder else None
