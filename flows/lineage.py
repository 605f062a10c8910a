"""Tables as Prefect assets: the table that a unit writes and its inputs, described by the contracts."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

from prefect.assets import Asset, AssetProperties

from ranklake.lake.plans.driver import SPOOL, Unit
from ranklake.redaction.place_keys import place_key

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract


@dataclass(frozen=True, slots=True)
class Lineage:
    """The assets of a lake.

    Attributes
    ----------
    lake, spool
        URIs.
    contracts
        Contracts of all tables.
    """

    lake: str
    spool: str
    contracts: "Mapping[str, Contract]"

    def key(self, name: str) -> str:
        """Return the asset key of a table, or of the spool."""
        return place_key(self.spool) if name == SPOOL else f"{place_key(self.lake)}/tables/{name}"

    def written(self, unit: Unit) -> Asset | None:
        """Return the asset of the table that a unit writes; None if it writes none."""
        if not unit.writes:
            return None
        contract = self.contracts.get(unit.table)
        properties = (
            None
            if contract is None
            else AssetProperties(name=unit.table, description=contract.summary, owners=[contract.owner])
        )
        return Asset(key=self.key(unit.table), properties=properties)

    def read(self, unit: Unit) -> list[Asset | str]:
        """Return the assets that a unit reads."""
        return [Asset(key=self.key(name)) for name in unit.reads if name != SPOOL or self.spool]
