"""The catalog on a terminal: tables, their columns and checks, metrics, and sizes of columns."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ranklake.catalog_facts import Listing, MetricEntry, TableEntry, UnregisteredMetric, producer_of, sql_of
from ranklake.insight.catalog.catalog import span
from ranklake.insight.catalog.sizes import Sizes, TableSize
from ranklake.lake.contracts import Column, Metric
from ranklake.lake.contracts.checks.registry import promise
from ranklake.lake.migrations.registry import column_changes
from ranklake.lake.rollups.life.state import Life
from ranklake.printable import counted
from ranklake.retention.archive.register import Archive
from ranklake.retention.plans.mask_proof import Proof
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import size_text

_WIDTH: Final = 100
_SIZES: Final = (
    TextColumn("table", 18),
    *numbers(["rows"], 14),
    *numbers(["files"], 8),
    *numbers(["stored"], 12),
    *numbers(["bytes a row"], 13),
)
_OF_COLUMNS: Final = (
    TextColumn("column"),
    *numbers(["stored"], 12),
    *numbers(["share"], 8),
    *numbers(["a row", "a value"], 9),
    *numbers(["plain"], 12),
    TextColumn("  encodings"),
)


def listing_lines(listing: Listing) -> Iterator[str]:
    """Yield the tables by kind, each with its size in the lake."""
    wide = max(len(table.contract.table) for table in listing.tables)
    for kind in ("fact", "derived", "system"):
        yield f"{kind} tables"
        for table in listing.tables:
            if table.contract.kind == kind:
                size = table.stored
                figures = f"{size.rows:>14,} rows {size_text(size.stored_bytes):>9}  " if size else ""
                room = _WIDTH - wide - 4 - len(figures)
                summary = textwrap.shorten(table.contract.summary, room, placeholder=" …")
                yield f"  {table.contract.table:<{wide}}  {figures}{summary}"
    yield f"{len(listing.tables)} tables, {len(listing.metrics)} metrics; `ranklake catalog NAME` shows one"


def entry_lines(entry: TableEntry | MetricEntry | UnregisteredMetric) -> Iterator[str]:
    """Yield the description of a table or metric."""
    if isinstance(entry, TableEntry):
        yield from _table(entry)
    elif isinstance(entry, MetricEntry):
        yield from _metric(entry)
    else:
        yield from _unregistered_lines(entry)


def _table(entry: TableEntry) -> Iterator[str]:
    contract = entry.contract
    yield f"{contract.table} (version {contract.version}, {contract.kind}): {contract.summary}"
    yield f"owner {contract.owner}, steward {contract.steward}; retention class {contract.retention}"
    if contract.decision:
        yield from textwrap.wrap(f"decision it serves: {contract.decision}", 100, subsequent_indent="    ")
    if contract.kind == "derived":
        yield f"made by {producer_of(contract)}{'; its SQL: --json' if sql_of(contract) else ''}"
    yield f"one row per {', '.join(contract.grain)}; partitioned by {', '.join(contract.partition)}"
    if entry.stored is not None:
        yield _size_line(entry.stored)
    if entry.archived:
        yield _archive_line(entry.archived)
    yield ""
    rows = [(c.name, c.type, c.unit or "", _class(c), "required" if c.required else "") for c in contract.columns]
    lines = table_lines([TextColumn("")] * len(rows[0]), rows, has_head=False)
    for line, column in zip(lines, contract.columns, strict=True):
        yield line
        yield from textwrap.wrap(column.doc, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield ""
    yield from map(_proof, entry.masks)
    if entry.unproven:
        yield f"masks where values are stored: not known: {entry.unproven}"
    for check in contract.all_checks():
        yield f"check {check.id} ({check.severity}, {check.on_fail}): {promise(check)}"
    for change in column_changes(contract.table):
        line = f"since version {change.since}: {change.what} ({change.migration})"
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _proof(proof: Proof) -> str:
    seen = {
        "masked": f"{proof.values:,} distinct values of a sample are",
        "unseen": "no value was seen",
        "due": f"{proof.unmasked:,} of {proof.values:,} distinct values of a sample are due",
        "unmasked": f"{proof.unmasked:,} of {proof.values:,} distinct values of a sample are NOT",
    }
    return f"{proof.column} is masked {proof.place} ({proof.mask}): {seen[proof.status]}"


def _archive_line(archives: Sequence[Archive]) -> str:
    """Return the archived ranges of a table, as one line."""
    days = [archive.partition_date for archive in archives]
    rows = f"{sum(archive.rows for archive in archives):,} rows of {min(days)} to {max(days)}"
    size = size_text(sum(archive.bytes for archive in archives))
    return f"archived: {rows}, {size}; 'ranklake retain archives list' shows where"


def _size_line(size: TableSize) -> str:
    """Return size, freshness and growth, as one line."""
    if not size.rows:
        return "holds nothing yet"
    line = f"holds {size.rows:,} rows in {size.files:,} files, {size_text(size.stored_bytes)}"
    if size.written is not None:
        line += f"; last written {size.written:%Y-%m-%d %H:%M:%SZ}"
    if size.daily_bytes is not None:
        line += f"; a day adds {size_text(size.daily_bytes)}"
    return line


def _class(column: Column) -> str:
    return f"{column.class_} ({column.mask})" if column.mask else column.class_


def _metric(entry: MetricEntry) -> Iterator[str]:
    metric, life = entry.metric, entry.life
    yield f"{metric.name}: {metric.doc}"
    facts = {
        "purpose": metric.purpose or "",
        "decision": metric.decision or "",
        "unit": metric.unit,
        "kind": metric.kind,
        "due": f"once per {metric.sampling}",
        "range": span(metric),
        "stored in": metric.stored_in,
        "owner": metric.owner,
        "steward": metric.steward or "",
        "made by": metric.producer or "",
        "SQL": entry.sql,
        "status": _status(metric, life),
        "deprecated": metric.deprecated or "",
        "replaced by": metric.replaced_by or ("" if life is None else ", ".join(link.name for link in life.links)),
        "also known as": ", ".join(metric.aka),
    }
    for key, value in facts.items():
        if value:
            yield f"  {key:<13}  {value}"


def _status(metric: Metric, life: Life | None) -> str:
    """Return the status of a metric, by the lake's trail if there is a lake; empty for active ones."""
    status = metric.stage if life is None else life.status
    days = [] if life is None else [("recorded until", life.until), ("rows until", life.ends)]
    days_text = ", ".join(f"{words} {day}" for words, day in days if day is not None)
    return "" if status == "active" else f"{status}{f'; {days_text}' if days_text else ''}"


def _unregistered_lines(seen: UnregisteredMetric) -> Iterator[str]:
    name = seen.metric
    yield f"{name}: recorded, and not registered: its unit and its bounds are not known"
    yield f"  values         {seen.rows:,} in {counted(seen.runs, 'run')}"
    yield f"  recorded       {seen.first:%Y-%m-%d %H:%M:%SZ} to {seen.last:%Y-%m-%d %H:%M:%SZ}"
    yield f"  stored in      {seen.stored_in}"
    yield f"`ranklake request-signal {name} --unit … --why … --owner … --contracts DIR` asks for it to be registered"


def size_lines(held: Sequence[TableSize]) -> list[str]:
    """Return the size of each table, one row each."""
    rows = [
        (
            one.table,
            f"{one.rows:,}",
            f"{one.files:,}",
            size_text(one.stored_bytes),
            f"{one.stored_bytes / one.rows:.2f}",
        )
        for one in held
    ]
    return table_lines(_SIZES, rows, gap="")


def column_size_lines(sizes: Sizes) -> Iterator[str]:
    """Yield the size of each column of a table, the largest first."""
    each = f", {sizes.value_bytes:.2f} a value" if sizes.value_bytes is not None else ""
    yield (
        f"{sizes.table}: {sizes.rows:,} rows in {sizes.files:,} files, {size_text(sizes.stored_bytes)}; "
        f"{sizes.row_bytes:.2f} bytes a row{each}"
    )
    rows = [
        (
            column.column,
            size_text(column.stored_bytes),
            f"{column.stored_bytes / sizes.stored_bytes:.1%}",
            f"{column.stored_bytes / sizes.rows:.3f}",
            f"{column.stored_bytes / column.values:.3f}" if column.values else "",
            size_text(column.plain_bytes),
            f"  {', '.join(column.encodings)}",
        )
        for column in sorted(sizes.columns, key=lambda column: -column.stored_bytes)
    ]
    rest = ("(footers and indexes)", size_text(sizes.rest_bytes), f"{sizes.rest_bytes / sizes.stored_bytes:.1%}")
    yield from table_lines(_OF_COLUMNS, [*rows, rest], gap="")
