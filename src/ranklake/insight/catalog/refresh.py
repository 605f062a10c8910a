"""The catalog as tables: contracts, registry, sizes and freshness, written once a day or more often.

    contracts ─────┐                            ┌─▶ catalog_tables
    Delta logs ────┼─▶ what is there, how much ─┼─▶ catalog_columns
    footers, ts ───┘                            └─▶ catalog_metrics

A refresh replaces the rows of its day, so that the last one of each day stays, and the history shows growth.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.insight.catalog.sizes import Sizes, TableSize, column_sizes, live_files, newest, table_size
from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.load import contract
from ranklake.lake.plans.driver import Unit, carry_out
from ranklake.lake.rollups.life.register import lives
from ranklake.lake.rollups.life.state import Life
from ranklake.lake.tables.commit import LostRaceError, replace_partitions
from ranklake.lake.tables.read import read_batches

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Contract, Metric
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables

MOST_FILES: Final = 32
"""Number of newest files per table whose footers a refresh reads."""
MOST_ROWS: Final = 2_000_000
"""Number of rows of a long table in which a refresh looks for names of metrics."""
MOST_STRANGERS: Final = 1_000
"""Most unregistered metrics in the catalog."""
LONG: Final = ("scalars", "distributions")
_LEFT: Final = frozenset({"deprecated", "retired", "sunset"})
"""Long tables, whose rows name their metric."""

_BATCH_ROWS: Final = 262_144
_TRIES: Final = 5
Row = dict[str, Any]
Seen = tuple[int, datetime | None]
"""Number of values of a metric, and when the last was recorded."""


@dataclass(frozen=True, slots=True)
class CatalogRefreshResult:
    """Number of rows that a refresh wrote into each of the catalog's tables."""

    tables: int
    columns: int
    metrics: int


def refresh(lake: "Lake", *, now: datetime | None = None) -> CatalogRefreshResult:
    """Store the lake's present state, replacing an earlier refresh of the same UTC day.

    The three tables are committed one after the other; after a kill, the next refresh writes all of them again.

    Parameters
    ----------
    now
        Time from which freshness is computed; default: the present.

    Raises `LostRaceError` if others keep refreshing at the same time, and what reading and writing raise.
    """
    moment = now or datetime.now(UTC)
    contracts = lake.contracts()
    live = {name: live_files(lake.tables, name) for name in contracts}
    sizes = {name: table_size(name, *live[name]) for name in contracts}
    tables = [_table_row(table, sizes[table.table], moment) for table in contracts.values()]
    columns: list[Row] = []
    for table in contracts.values():
        files = live[table.table][1]
        chosen = None if files is None or not files.num_rows else newest(files, MOST_FILES)
        columns += _column_rows(
            table, sizes[table.table], None if chosen is None else column_sizes(lake.store, table, chosen), moment
        )
    seen = _newest_values(
        lake.store, contracts, {name: files for name, (_, files) in live.items() if files is not None}
    )
    metrics = _metric_rows(lake.catalog.metrics(), lives(lake), seen, moment)
    for name, rows in (("catalog_tables", tables), ("catalog_columns", columns), ("catalog_metrics", metrics)):
        unit = Unit("commit", name, (moment.date(),), writes=True)
        carry_out(unit, partial(_replace, lake.tables, name, rows, moment.date()))
    return CatalogRefreshResult(len(tables), len(columns), len(metrics))


def _replace(tables: "Tables", name: str, rows: list[Row], day: date) -> None:
    """Replace the rows of a day."""
    of = contract(name)
    table = pa.Table.from_pylist(rows, schema=arrow_schema(of))
    for left in reversed(range(_TRIES)):
        try:
            replace_partitions(tables, of, table, [day])
        except LostRaceError:  # another refresh of the same day: the last one has the newest state
            if not left:
                raise
        else:
            return


def _table_row(table: "Contract", size: TableSize, moment: datetime) -> Row:
    return {
        "table": table.table, "kind": table.kind, "contract_version": table.version, "owner": table.owner,
        "steward": table.steward, "summary": table.summary, "grain": ",".join(table.grain),
        "partition": ",".join(table.partition), "sort": ",".join(table.sort), "retention": table.retention,
        "column_count": len(table.columns), "rows": size.rows, "files": size.files, "stored_bytes": size.stored_bytes,
        "table_version": size.version, "first_date": size.first_date, "last_date": size.last_date,
        "last_ts": size.last_ts, "written_ts": size.written, "freshness_s": _age_s(size.written, moment),
        "daily_growth_rows": size.daily_rows, "daily_growth_bytes": size.daily_bytes,
        "ts": moment, "date": moment.date(),
    }  # fmt: skip


def _column_rows(table: "Contract", size: TableSize, sizes: Sizes | None, moment: datetime) -> Iterable[Row]:
    measured = {} if sizes is None else {column.column: column for column in sizes.columns}
    scale = 1.0 if sizes is None or not sizes.stored_bytes else size.stored_bytes / sizes.stored_bytes
    for position, column in enumerate(table.columns):
        size_of = measured.get(column.name)
        row: Row = {
            "table": table.table, "column": column.name, "position": position, "column_id": column.id,
            "type": column.type, "unit": column.unit, "class": column.class_, "mask": column.mask,
            "required": column.required, "doc": column.doc, "since": column.since, "deprecated": column.deprecated,
            "aka": ",".join(column.aka) or None, "files_read": 0 if sizes is None else sizes.files,
            "ts": moment, "date": moment.date(),
        }  # fmt: skip
        if size_of is not None and sizes is not None:
            row |= {
                "value_count": size_of.values,
                "stored_bytes": round(size_of.stored_bytes * scale),
                "plain_bytes": round(size_of.plain_bytes * scale),
                "mean_row_bytes": size_of.stored_bytes / sizes.rows if sizes.rows else None,
                "mean_value_bytes": size_of.stored_bytes / size_of.values if size_of.values else None,
                "encodings": ",".join(size_of.encodings) or None,
            }
        yield row


def _newest_values(
    store: "Store", contracts: Mapping[str, "Contract"], live: Mapping[str, pa.Table]
) -> dict[str, dict[str, Seen]]:
    """Return values in the newest files: by table, and by metric (in `LONG`) or column (in other tables)."""
    seen = {
        name: _named(store, contracts[name], newest(live[name], most_rows=MOST_ROWS)) for name in LONG if name in live
    }
    for name, files in live.items():
        if name not in LONG and files.num_rows:
            seen[name] = _filled_counts(contracts[name], newest(files, most_rows=MOST_ROWS))
    return seen


def _named(store: "Store", table: "Contract", chosen: pa.Table) -> dict[str, Seen]:
    parts = [
        batch.group_by("metric").aggregate([("ts", "count"), ("ts", "max")])
        for batch in read_batches(store, table, chosen, ["metric", "ts"], batch_rows=_BATCH_ROWS)
    ]
    if not parts:
        return {}
    summed = pa.concat_tables(parts).group_by("metric").aggregate([("ts_count", "sum"), ("ts_max", "max")])
    return {row["metric"]: (row["ts_count_sum"], row["ts_max_max"]) for row in summed.to_pylist()}


def _filled_counts(table: "Contract", chosen: pa.Table) -> dict[str, Seen]:
    """Return values by column from the Delta log; the time of the last value is at least that of the last row."""
    rows = pc.sum(chosen["num_records"]).as_py() or 0
    last = pc.max(chosen["max.ts"]).as_py() if "max.ts" in chosen.column_names else None
    seen: dict[str, Seen] = {}
    for column in table.columns:
        statistic = f"null_count.{column.name}"
        if statistic in chosen.column_names and not chosen[statistic].null_count:
            values = rows - pc.sum(chosen[statistic]).as_py()
            seen[column.name] = (values, last if values else None)
    return seen


def _metric_rows(
    registry: Mapping[str, "Metric"],
    every: Mapping[str, Life],
    seen: Mapping[str, Mapping[str, Seen]],
    moment: datetime,
) -> list[Row]:
    """Return a row per metric, with its status from the registry and later changes by `ranklake metric`."""
    rows = []
    for metric in registry.values():
        table, _, column = metric.stored_in.partition(".")
        places = [(name, metric.name) for name in LONG] if table in LONG else [(table, column)]
        counts = [seen.get(name, {}).get(what, (0, None)) for name, what in places]
        count = sum(values for values, _ in counts)
        last = max((at for _, at in counts if at is not None), default=None)
        life = every[metric.name]
        has_left = life.status in _LEFT and life.since is not None
        deprecated = metric.deprecated or (life.since.date().isoformat() if has_left and life.since else None)
        replaced_by = metric.replaced_by or ",".join(link.name for link in life.links) or None
        rows.append({
            "metric": metric.name, "status": life.status, "unit": metric.unit, "kind": metric.kind,
            "owner": metric.owner, "sampling": metric.sampling, "stored_in": metric.stored_in,
            "range_min": metric.min, "range_max": metric.max,
            "doc": metric.doc, "since": metric.since, "deprecated": deprecated, "replaced_by": replaced_by,
            "aka": ",".join(metric.aka) or None, "seen_values": count, "last_ts": last,
            "freshness_s": _age_s(last, moment), "ts": moment, "date": moment.date(),
        })  # fmt: skip
    strangers: dict[str, Row] = {}
    for table in LONG:
        for name, (count, last) in seen.get(table, {}).items():
            if name not in registry and name not in strangers and len(strangers) < MOST_STRANGERS:
                strangers[name] = {
                    "metric": name, "status": "unregistered",
                    "stored_in": f"{table}.{'value' if table == 'scalars' else 'metric'}",
                    "seen_values": count, "last_ts": last, "freshness_s": _age_s(last, moment),
                    "ts": moment, "date": moment.date(),
                }  # fmt: skip
    return rows + [strangers[name] for name in sorted(strangers)]


def _age_s(then: datetime | None, moment: datetime) -> float | None:
    return None if then is None else (moment - then).total_seconds()
