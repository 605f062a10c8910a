"""What lint goes by: the files, the rules that apply, the tables, the region, the day."""

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from datetime import date

    from ranklake.lake.contracts.model import Contract
    from ranklake.retention.rules.model import Rule
    from ranklake.retention.rules.read import Sources


@dataclass(frozen=True, slots=True)
class Look:
    """What lint goes by.

    Attributes
    ----------
    sources
        The files.
    rules
        Those that apply in the region.
    contracts
        All tables.
    region
        As configured; empty if it is not.
    today
        The day that review dates are held against.
    """

    sources: "Sources"
    rules: "tuple[Rule, ...]"
    contracts: "Mapping[str, Contract]"
    region: str
    today: "date"
