"""Contracts: what every table holds, as data that everything else derives from; see README.md.

The modules `arrow`, `edge` and `freeze` derive from what is loaded here.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ranklake.lake.contracts.errors import (
        ContractError,
        ContractMismatchError,
        UnknownColumnError,
        UnknownMetricError,
        UnknownTableError,
    )
    from ranklake.lake.contracts.load import contract, load_contracts, load_metrics, metric, table_names
    from ranklake.lake.contracts.model import Check, Column, Contract, Metric, Tombstone

__all__ = [
    "Check",
    "Column",
    "Contract",
    "ContractError",
    "ContractMismatchError",
    "Metric",
    "Tombstone",
    "UnknownColumnError",
    "UnknownMetricError",
    "UnknownTableError",
    "contract",
    "load_contracts",
    "load_metrics",
    "metric",
    "table_names",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - functions and classes
    """Import what is asked for: capture's agent needs a segment's name each minute, and no YAML for that."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    place = "errors" if name.endswith("Error") else "model" if name[0].isupper() else "load"
    globals()[name] = value = getattr(import_module(f"{__name__}.{place}"), name)
    return value
