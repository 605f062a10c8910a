"""Contracts: what every table holds, as data that everything else derives from; see README.md.

The modules `arrow`, `delta`, `edge`, `diff` and `lint` derive from what is loaded here.
"""

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
