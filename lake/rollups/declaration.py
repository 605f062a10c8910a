"""The declaration of a rollup: its inputs, its grain, and when it is due."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from typing import Literal

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.contracts.model import Contract
from ranklake.lake.rollups.bodies import Body, SqlBody
from ranklake.lake.rollups.reach import Input

Scope = Literal["partition", "run"]


@dataclass(frozen=True)
class Rollup:
    """One derived table.

    Attributes
    ----------
    name
        Of the rollup and its table, and of its SQL file unless it has another body.
    scope
        ``partition``: an output date is computed from input dates. ``run``: an output date holds the runs that began
        on it, each computed as a whole.
    inputs
        What it reads.
    leads
        How many of the inputs, from the first, say which dates of a partition rollup there are.
    parameters
        Values for the SQL's ``$names``, or for the function, besides ``$date`` and ``$begin`` of partition rollups.
    lookups
        Small constant tables that the SQL names, by name.
    secrets
        Which of the lookups may hold a key: then no other process gets them.
    cut
        Integer column of the first input, part of the SQL's group key, by which large dates are computed in pieces,
        from ``$first`` to ``$last`` each; of a rollup that is one query, since pieces share a session.
    in_a_row
        Whether the body computes any number of dates at once, ``$days`` of them from ``$date`` to ``$last``.
    body
        How the rows are computed; None for the SQL file of the rollup's name.
    own
        Contract of an operator's table; None for a packaged one.
    """

    name: str
    scope: Scope
    inputs: tuple[Input, ...]
    parameters: Mapping[str, float] = field(default_factory=dict)
    lookups: Mapping[str, Callable[[], pa.Table]] = field(default_factory=dict)
    secrets: tuple[str, ...] = ()
    leads: int = 1
    cut: str = ""
    in_a_row: bool = False
    body: Body | None = None
    own: Contract | None = None

    @property
    def contract(self) -> Contract:
        """The contract of its table."""
        return self.own or contract(self.name)

    @cached_property
    def transform(self) -> Body:
        """The body; where none is given, the SQL file of the rollup's name."""
        return SqlBody(self.name) if self.body is None else self.body

    @cached_property
    def sha256(self) -> str:
        """Digest of all that determines the output besides the inputs: body, parameters, lookups."""
        lookups = {name: make().to_pylist() for name, make in self.lookups.items()}
        facts = [self.transform.source, sorted(self.parameters.items()), lookups]
        return hashlib.sha256(json.dumps(facts, default=str).encode()).hexdigest()

    @property
    def holds_secret(self) -> bool:
        """Whether a lookup holds a key now."""
        found = [column for name in self.secrets for column in self.lookups[name]().columns]
        return any(column.null_count < len(column) for column in found)

    def with_lookups(self) -> "Rollup":
        """Return the rollup with its lookups as they are here, for another process."""
        return replace(self, lookups={name: partial(_told, make()) for name, make in self.lookups.items()})

    @property
    def tables(self) -> tuple[str, ...]:
        """Names of the inputs."""
        return tuple(item.table for item in self.inputs)


def _told(lookup: pa.Table) -> pa.Table:
    return lookup
