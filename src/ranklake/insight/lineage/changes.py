"""What became of partitions after they were read: which plan rewrote or removed them."""

from collections.abc import Mapping
from datetime import date
from functools import cached_property
from typing import TYPE_CHECKING

import pyarrow as pa

from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.kinds import INGEST
from ranklake.lake.plans.plan import LEDGER
from ranklake.lake.rollups.inputs import WHOLE, day_of
from ranklake.lake.store.governance import retired_dates
from ranklake.lake.tables.live_files import plan_of
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract
    from ranklake.lake.store.tables import Tables


class Changes:
    """What the ledger of plans and the register of retention say of changed partitions; read when first asked."""

    def __init__(self, tables: "Tables") -> None:
        self._tables = tables

    def clause(self, known: "Contract | None", name: str, live: pa.Table) -> str:
        """Return what became of a partition, in a clause.

        Parameters
        ----------
        known
            Contract of the table; None where the lake has none any more.
        name
            The partition; empty for the whole table.
        live
            The partition's files now, rows of `ranklake.lake.tables.live_files.files`.
        """
        if known is None:
            return "its table is gone"
        if not live.num_rows:
            plan = None if name == WHOLE else self.removed(known.table).get(day_of(name))
            return "removed" if plan is None else f"removed by plan {plan} ({self._kind(plan)})"
        if known.kind == "derived":
            return "computed again"
        plan = max((plan_of(path) or 0 for path in live["path"].to_pylist()), default=0)
        verb = "more rows came" if self._kind(plan) == INGEST.name else "rewritten"
        return f"{verb} by plan {plan} ({self._kind(plan)})"

    def removed(self, table: str) -> Mapping[date, int]:
        """Return the dates of a table that retention took, each with the plan that did."""
        return self._retired.get(table, {})

    def _kind(self, plan: int) -> str:
        return self._kinds.get(plan, "of another writer")

    @cached_property
    def _kinds(self) -> dict[int, str]:
        return {row["plan"]: row["kind"] for row in read(self._tables, contract(LEDGER), ["plan", "kind"]).to_pylist()}

    @cached_property
    def _retired(self) -> Mapping[str, Mapping[date, int]]:
        return retired_dates(self._tables)
