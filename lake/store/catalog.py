"""The contracts of a lake: those of the release, and the operator's overlay."""

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
    """A lake's contracts and metrics, an operator's own tables and columns among them.

    Attributes
    ----------
    store
        Where the lake keeps the overlays that it was written under.
    folder
        The configured overlay's; empty for none.
    """

    store: Store
    folder: str = ""

    def __getstate__(self) -> dict[str, Any]:
        """Return what another process may have: it looks the overlays up by itself."""
        return {"store": self.store, "folder": self.folder}

    @cached_property
    def overlay(self) -> Overlay | None:
        """Operators' contracts: those that the lake was written under, and those of the configured folder.

        They are looked up once: a catalog knows what was there then.

        Raises `ranklake.lake.contracts.errors.ContractError` or `LakeUnreachableError`.
        """
        return overlays.merge(overlays.newest_kept(self.store), self.configured())

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
        """Return the catalog by the overlay that the lake kept under a number; 0 for none."""
        catalog = Catalog(self.store, self.folder)
        catalog.__dict__["overlay"] = overlays.stored_overlay(self.store, number)
        return catalog

    def refusal(self) -> ContractError | None:
        """Return why nothing can be written under the configured overlay; None if it can. Raises as `overlay`."""
        own = self.configured()
        return None if own is None else overlays.refusal(overlays.newest_kept(self.store), own)

    def ahead(self) -> dict[str, int]:
        """Return the operator's tables with unapplied migrations, each with the version that the lake has."""
        return overlays.unapplied_versions(self.store, self.configured())

    def keep(self, waiting: Mapping[str, int] = overlays.NONE_WAITING) -> int:
        """Keep the configured overlay in the lake, for who writes rows; see `ranklake.lake.store.overlays.keep`."""
        number = overlays.keep(self.store, self.configured(), waiting)
        self._forget()
        return number

    def put_back(self, table: str, version: int) -> bool:
        """Return an operator's table to an earlier version; see `ranklake.lake.store.overlays.put_back`."""
        self._forget()
        return overlays.put_back(self.store, table, version)

    def _forget(self) -> None:
        self.__dict__.pop("overlay", None)

    def configured(self) -> Overlay | None:
        """Return the overlay of the configured folder. Raises `ranklake.lake.contracts.errors.ContractError`."""
        return Overlay.read(Path(self.folder).absolute()) if self.folder else None
