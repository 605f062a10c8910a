"""Facts of ``ranklake catalog`` about tables and metrics, from contracts and from a lake."""

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
from ranklake.lake.rollups.declaration import SqlBody
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.state import Life
from ranklake.lake.rollups.registry import ROLLUPS
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
_WHOLE = (
    *("table", "version", "kind", "owner", "steward", "retention", "summary", "decision"),
    *("grain", "partition", "sort"),
)


@dataclass(frozen=True, slots=True)
class TableEntry:
    """A table.

    Attributes
    ----------
    contract
        Its contract.
    stored
        Its files in the lake; None without a lake.
    archived
        Archived ranges of dates.
    masks
        Results of verifying stored samples against the masks of columns.
    unproven
        Why `masks` is unknown; empty if it is known.
    """

    contract: Contract
    stored: TableSize | None = None
    archived: tuple[Archive, ...] = ()
    masks: tuple[Proof, ...] = ()
    unproven: str = ""

    def brief(self) -> dict[str, Any]:
        """Return its line of a listing."""
        return self._facts(_BRIEF, {"columns": len(self.contract.columns)})

    def whole(self) -> dict[str, Any]:
        """Return all facts of its contract."""
        contract = self.contract
        columns = [{key.rstrip("_"): value for key, value in asdict(column).items()} for column in contract.columns]
        checks, retired = ([asdict(item) for item in items] for items in (contract.checks, contract.retired))
        history = [asdict(change) for change in column_changes(contract.table)]
        contract_facts = {"columns": columns, "checks": checks, "retired": retired, "history": history}
        masks = {"masks": [proof.plain() for proof in self.masks], "masks_unknown": self.unproven or None}
        origin = {"producer": producer_of(contract), "sql": sql_of(contract) or None}
        return self._facts(
            _WHOLE, {**contract_facts, **origin, "archived": [archive.plain() for archive in self.archived], **masks}
        )

    def _facts(self, keys: Sequence[str], more: dict[str, Any]) -> dict[str, Any]:
        own = {key: getattr(self.contract, key) for key in keys}
        return own | more | ({} if self.stored is None else {"stored": self.stored})


@dataclass(frozen=True, slots=True)
class MetricEntry:
    """A metric.

    Attributes
    ----------
    metric
        Its registration; steward and producer default to those of its table.
    sql
        Query of its values in a run.
    life
        Its status by the lake's audit log; None without a lake.
    """

    metric: Metric
    sql: str
    life: Life | None = None

    def whole(self) -> dict[str, Any]:
        """Return all its facts."""
        return {**asdict(self.metric), "sql": self.sql, "life": None if self.life is None else self.life.plain()}


@dataclass(frozen=True, slots=True)
class Listing:
    """All tables, and the names of all metrics."""

    tables: Sequence[TableEntry]
    metrics: Sequence[str]


@dataclass(frozen=True, slots=True)
class UnregisteredMetric:
    """An unregistered metric in the lake: number of rows and runs, first and last time."""

    metric: str
    status: str
    stored_in: str
    rows: int
    runs: int
    first: datetime
    last: datetime


def listing(context: Context, *, needs_lake: bool) -> Listing:
    """Return all tables and metrics. Raises `NotALakeError` if there is no lake and `needs_lake`."""
    lake, overlay = _lake_and_contracts(context, needs_lake=needs_lake)
    return Listing(
        [_entry(lake, contract) for contract in load_contracts(overlay).values()], list(load_metrics(overlay))
    )


def find_entry(context: Context, name: str, *, needs_lake: bool) -> TableEntry | MetricEntry | UnregisteredMetric:
    """Return the table or metric of a name. Raises `UnknownNameError` with similar names, and as `listing`."""
    lake, overlay = _lake_and_contracts(context, needs_lake=needs_lake)
    try:
        result = find(name, overlay)
    except UnknownNameError:
        return _recorded(lake, name, overlay)
    if not isinstance(result, Contract):
        return _metric_entry(lake, result, overlay)
    if lake is None:
        return _entry(lake, result)
    entry = replace(_entry(lake, result), archived=tuple(archives(lake.tables, result.table)))
    try:
        return replace(entry, masks=tuple(context.mask_proofs(lake, [result.table])))
    except RanklakeError as error:  # a missing key or file must not hide the other facts
        return replace(entry, unproven=str(error))


def _lake_and_contracts(context: Context, *, needs_lake: bool) -> tuple[Lake | None, Path | Overlay | None]:
    """Return the lake (None if there is none and none is needed) and the operator's contracts."""
    try:
        lake = context.open_lake() if context.config.lake.uri else None
    except NotALakeError:  # nothing was ingested yet
        if needs_lake:
            raise
        lake = None
    return lake, context.overlay if lake is None else lake.catalog.overlay


def _metric_entry(lake: Lake | None, metric: Metric, overlay: Path | Overlay | None) -> MetricEntry:
    table, _, column = metric.stored_in.partition(".")
    home = load_contracts(overlay).get(table)
    life = None if lake is None else lives(lake).get(metric.name)
    if home is None:
        return MetricEntry(metric, "", life)
    producer = metric.producer or (producer_of(home) if home.kind == "derived" else "ranks, agents and imports")
    stored = replace(metric, steward=metric.steward or home.steward, producer=producer)
    place, condition = ("series", f"metric = '{metric.name}' AND ") if column == "value" else (home.name, "")
    sql = f"SELECT {'step, value' if condition else f'ts, {column}'} FROM {place} WHERE {condition}run = 'RUN'"  # noqa: S608
    return MetricEntry(stored, sql, life)


def producer_of(contract: Contract) -> str:
    """Return the producer of a table's rows."""
    if contract.kind != "derived":
        return "ranks, agents and imports" if contract.kind == "fact" else "ranklake itself"
    inputs = {each.name: each.tables for each in ROLLUPS}.get(contract.table)
    if contract.rollup is not None:
        inputs = tuple(each.table for each in contract.rollup.inputs)
    return f"the rollup {contract.table} of {', '.join(inputs)}" if inputs else "ranklake itself"


def sql_of(contract: Contract) -> str:
    """Return the SQL that computes a derived table; empty if Python computes it, or if it is not derived."""
    if contract.rollup is not None:
        return contract.rollup.sql
    rollup = next((each for each in ROLLUPS if each.name == contract.table), None)
    return rollup.transform.sql if rollup is not None and isinstance(rollup.transform, SqlBody) else ""


def _entry(lake: Lake | None, contract: Contract) -> TableEntry:
    return TableEntry(
        contract, None if lake is None else table_size(contract.table, *live_files(lake.tables, contract.table))
    )


def _recorded(lake: Lake | None, name: str, overlay: Path | Overlay | None) -> UnregisteredMetric:
    if lake is not None:
        (row,) = query(lake, _OF_METRIC, {"name": name}).to_pylist()
        if row["rows"]:
            return UnregisteredMetric(name, "unregistered", "scalars.value", **row)
    known = [*load_contracts(overlay), *load_metrics(overlay)]
    if lake is not None:
        unregistered = query(lake, _NAMES)["metric"].to_pylist()
        known += unregistered or query(lake, "SELECT DISTINCT metric FROM scalars")["metric"].to_pylist()
    raise UnknownNameError(name, hint=did_you_mean(name, {item for item in known if item}))
