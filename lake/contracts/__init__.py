"""Contracts: the schema and rules of every table, loaded from YAML; see README.md.

The names below are imported on first use. The modules `arrow`, `edge` and `freeze` work on loaded contracts.
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
    """Import a name of `__all__` on first use, so that processes which need no contract do not import PyYAML."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "errors" if name.endswith("Error") else "model" if name[0].isupper() else "load"
    globals()[name] = value = getattr(import_module(f"{__name__}.{module}"), name)
    return value
