"""Tables as Prefect assets: what a task wrote, and from what, by the contracts."""

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from prefect.assets import Asset, AssetProperties

from ranklake.lake.plans.driver import SPOOL, Unit
from ranklake.redaction.redact import has_credential

if TYPE_CHECKING:
    from collections.abc import Mapping

    from ranklake.lake.contracts.model import Contract

_LONGEST: Final = 400
_UNFIT: Final = re.compile(r"[^A-Za-z0-9/._~=:+-]")
"""What no key of an asset may hold, and more."""


def place_key(uri: str) -> str:
    """Return the key of a place, a valid URI: the same for each run, without user info, query or what is a credential.

    A place that cannot be written without one is replaced by a digest.
    """
    head, _, rest = uri.partition("://") if "://" in uri else ("file", "", uri)
    host, slash, path = rest.partition("?")[0].partition("/")
    bare = f"{host.rpartition('@')[2]}{slash}{path}".rstrip("/")
    digest = hashlib.sha256(bare.encode()).hexdigest()
    cleaned = _UNFIT.sub("_", bare)
    key = f"{head.lower()}://{cleaned}" + ("" if cleaned == bare else f"~{digest[:8]}")
    return f"ranklake://{digest[:16]}" if has_credential(key) or len(key) > _LONGEST else key


@dataclass(frozen=True, slots=True)
class Lineage:
    """The assets of a lake.

    Attributes
    ----------
    lake, spool
        URIs.
    contracts
        All tables.
    """

    lake: str
    spool: str
    contracts: "Mapping[str, Contract]"

    def key(self, name: str) -> str:
        """Return the key of a table, or of the spool."""
        return place_key(self.spool) if name == SPOOL else f"{place_key(self.lake)}/tables/{name}"

    def written(self, unit: Unit) -> Asset | None:
        """Return the table that a unit writes, as its contract describes it."""
        if not unit.writes:
            return None
        item = self.contracts.get(unit.table)
        about = (
            None if item is None else AssetProperties(name=unit.table, description=item.summary, owners=[item.owner])
        )
        return Asset(key=self.key(unit.table), properties=about)

    def read(self, unit: Unit) -> list[Asset | str]:
        """Return what a unit reads."""
        return [Asset(key=self.key(name)) for name in unit.reads if name != SPOOL or self.spool]
