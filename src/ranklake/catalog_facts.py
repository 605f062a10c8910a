"""Facts of ``ranklake catalog`` about tables and metrics: what contracts say, and what a lake holds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any

from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.insight.catalog.catalog import UnknownNameError, find
from ranklake.insight.catalog.sizes import TableSize, live_files, table_size
from ranklake.lake.contracts import Contract, Metric, load_contracts, load_metrics
from ranklake.lake.contracts.overlay import Overlay
from ranklake.lake.migrations.registry import column_changes
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.reachability import NotALakeError
from ranklake.retention.archive.register import Archive, archives
from ranklake.retention.plans.mask_proof import Proof

_OF_METRIC = (
    'SELECT count(*) AS "rows", count(DISTINCT run) AS runs, min(ts) AS first, max(ts) AS last FROM scalars '
    "WHERE metric = $name"
)
_NAMES = "SELECT metric FROM catalog_metrics WHERE status = 'unregistered'"
_BRIEF = ("table", "version", "kind", "owner", "retention", "summary")
_WHOLE = ("table", "version", "kind", "owner", "steward", "retention", "summary", "grain", "partition", "sort")


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table.

    Attributes
    ----------
    contract
        What it holds by its contract.
    stored
        What the lake has of it; None where no lake was looked at.
    archived
        Ranges that left the lake for an archive, by date.
    masks
        What a sample of the lake shows of columns that are masked where they are stored.
    unproven
        Why nothing is known of them; empty where something is.
    """

    contract: Contract
    stored: TableSize | None = None
    archived: tuple[Archive, ...] = ()
    masks: tuple[Proof, ...] = ()
    unproven: str = ""

    def brief(self) -> dict[str, Any]:
        """Return what a listing says of it."""
        return self._facts(_BRIEF, {"columns": len(self.contract.columns)})

    def whole(self) -> dict[str, Any]:
        """Return all that its contract says of it."""
        contract = self.contract
        columns = [{key.rstrip("_"): value for key, value in asdict(column).items()} for column in contract.columns]
        checks, retired = ([asdict(item) for item in items] for items in (contract.checks, contract.retired))
        history = [asdict(change) for change in column_changes(contract.table)]
        told_of = {"columns": columns, "checks": checks, "retired": retired, "history": history}
        masks = {"masks": [one.plain() for one in self.masks], "masks_unknown": self.unproven or None}
        return self._facts(_WHOLE, {**told_of, "archived": [moved.plain() for moved in self.archived], **masks})

    def _facts(self, keys: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
        own = {key: getattr(self.contract, key) for key in keys}
        return own | more | ({} if self.stored is None else {"stored": self.stored})


@dataclass(frozen=True, slots=True)
class Listing:
    """All tables, and the names of all metrics."""

    tables: Sequence[TableEntry]
    metrics: Sequence[str]


@dataclass(frozen=True, slots=True)
class UnregisteredMetric:
    """What the lake has of a metric that nobody registered: how many rows of how many runs, from when to when."""

    metric: str
    status: str
    stored_in: str
    rows: int
    runs: int
    first: datetime
    last: datetime


def listing(context: Context, *, needs_lake: bool) -> Listing:
    """Return all tables and metrics. Raises `NotALakeError` where there is no lake and one is needed."""
    lake, overlay = _lake_and_contracts(context, needs_lake=needs_lake)
    return Listing([_entry(lake, one) for one in load_contracts(overlay).values()], list(load_metrics(overlay)))


def find_entry(context: Context, name: str, *, needs_lake: bool) -> TableEntry | Metric | UnregisteredMetric:
    """Return the table or metric of a name. Raises `UnknownNameError` with names like it, and as `listing`."""
    lake, overlay = _lake_and_contracts(context, needs_lake=needs_lake)
    try:
        result = find(name, overlay)
    except UnknownNameError:
        return _recorded(lake, name, overlay)
    if not isinstance(result, Contract):
        return result
    if lake is None:
        return _entry(lake, result)
    entry = replace(_entry(lake, result), archived=tuple(archives(lake.tables, result.table)))
    try:
        return replace(entry, masks=tuple(context.mask_proofs(lake, [result.table])))
    except RanklakeError as error:  # a key or a file that is not here is no reason to tell nothing
        return replace(entry, unproven=str(error))


def _lake_and_contracts(context: Context, *, needs_lake: bool) -> tuple[Lake | None, Path | Overlay | None]:
    """Return the lake, None if there is none and it is not needed; and operators' contracts."""
    try:
        lake = context.open_lake() if context.config.lake.uri else None
    except NotALakeError:  # nothing was ingested yet
        if needs_lake:
            raise
        lake = None
    return lake, context.overlay if lake is None else lake.catalog.overlay


def _entry(lake: Lake | None, contract: Contract) -> TableEntry:
    return TableEntry(
        contract, None if lake is None else table_size(contract.table, *live_files(lake.store, contract.table))
    )


def _recorded(lake: Lake | None, name: str, overlay: Path | Overlay | None) -> UnregisteredMetric:
    if lake is not None:
        (row,) = query(lake, _OF_METRIC, {"name": name}).to_pylist()
        if row["rows"]:
            return UnregisteredMetric(name, "unregistered", "scalars.value", **row)
    known = [*load_contracts(overlay), *load_metrics(overlay)]
    if lake is not None:
        noted = query(lake, _NAMES)["metric"].to_pylist()
        known += noted or query(lake, "SELECT DISTINCT metric FROM scalars")["metric"].to_pylist()
    raise UnknownNameError(name, hint=did_you_mean(name, {one for one in known if one}))
