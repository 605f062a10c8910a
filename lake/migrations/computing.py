"""What migrations ask of whoever can compute derived tables: their dates again, from their inputs.

Rollups come after migrations in the order of the lake's folders, so a caller brings one of these along
(`ranklake.lake.rollups.anew`).
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.migrations.due import DueMigration
    from ranklake.lake.plans.workers import Workers
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.tables.live_files import DataFile


@dataclass(frozen=True, slots=True)
class ComputedDate:
    """A date of a derived table, computed from its inputs.

    Attributes
    ----------
    files
        Its rows, in no commit yet.
    inputs
        Digest of what it was computed from.
    """

    files: "tuple[DataFile, ...]"
    inputs: str


class Computing(Protocol):
    """Computes dates of derived tables."""

    def place(self, lake: "Lake", table: str) -> int:
        """Return where a table comes among those that are computed: after what it reads; 0 for what is not computed."""

    def anew(
        self, lake: "Lake", target: "Contract", days: Collection[date], workers: "Workers"
    ) -> dict[date, ComputedDate]:
        """Compute dates of a table under a contract, and write their rows; commit nothing.

        What cannot be computed is left out: dates whose inputs are gone, damaged or held back, tables that are not
        computed by this release under this contract, or read others that wait for a migration themselves.
        """

    def standing(self, lake: "Lake", target: "Contract", days: Mapping[date, str]) -> dict[date, bool]:
        """Compute dates once more; return whether the table holds just that.

        Parameters
        ----------
        days
            Each with the digest of its inputs. Dates with other inputs by now, or without, are left out.
        """


def in_order(lake: "Lake", items: "Iterable[DueMigration]", computing: Computing | None) -> "list[DueMigration]":
    """Return what is due with derived tables last, each after those that it is computed from."""
    every = list(items)
    if computing is None:
        return every
    return sorted(every, key=lambda item: (computing.place(lake, item.migration.table), item.migration.number))
