"""The catalog on a terminal: tables, their columns and checks, metrics, and what columns weigh."""

import textwrap
from collections.abc import Iterator, Sequence
from typing import Final

from ranklake.catalog_facts import Listing, TableEntry, UnregisteredMetric
from ranklake.insight.catalog.catalog import span
from ranklake.insight.catalog.sizes import Sizes, TableSize
from ranklake.lake.contracts import Column, Metric
from ranklake.lake.contracts.checks.registry import promise
from ranklake.lake.migrations.registry import told
from ranklake.retention.archive.register import Archive
from ranklake.retention.plans.mask_proof import Proof
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import counted, size_text

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


def listing_lines(found: Listing) -> Iterator[str]:
    """Yield the tables by kind, each with what the lake holds of it."""
    wide = max(len(one.contract.table) for one in found.tables)
    for kind in ("fact", "derived", "system"):
        yield f"{kind} tables"
        for one in found.tables:
            if one.contract.kind == kind:
                size = one.stored
                figures = f"{size.rows:>14,} rows {size_text(size.stored_bytes):>9}  " if size else ""
                room = _WIDTH - wide - 4 - len(figures)
                summary = textwrap.shorten(one.contract.summary, room, placeholder=" …")
                yield f"  {one.contract.table:<{wide}}  {figures}{summary}"
    yield f"{len(found.tables)} tables, {len(found.metrics)} metrics; `ranklake catalog NAME` shows one"


def entry_lines(found: TableEntry | Metric | UnregisteredMetric) -> Iterator[str]:
    """Yield what a table or metric is."""
    if isinstance(found, TableEntry):
        yield from _table(found)
    elif isinstance(found, Metric):
        yield from _metric(found)
    else:
        yield from _unregistered(found)


def _table(found: TableEntry) -> Iterator[str]:
    one = found.contract
    yield f"{one.table} (version {one.version}, {one.kind}): {one.summary}"
    yield f"owner {one.owner}, steward {one.steward}; retention class {one.retention}"
    yield f"one row per {', '.join(one.grain)}; partitioned by {', '.join(one.partition)}"
    if found.stored is not None:
        yield _stored(found.stored)
    if found.archived:
        yield _archived(found.archived)
    yield ""
    rows = [(c.name, c.type, c.unit or "", _class(c), "required" if c.required else "") for c in one.columns]
    lines = table_lines([TextColumn("")] * len(rows[0]), rows, has_head=False)
    for line, column in zip(lines, one.columns, strict=True):
        yield line
        yield from textwrap.wrap(column.doc, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield ""
    yield from map(_proof, found.masks)
    if found.unproven:
        yield f"masks where values are stored: not known: {found.unproven}"
    for check in one.all_checks():
        yield f"check {check.id} ({check.severity}, {check.on_fail}): {promise(check)}"
    for change in told(one.table):
        line = f"since version {change.since}: {change.what} ({change.migration})"
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="    ", break_on_hyphens=False)


def _proof(one: Proof) -> str:
    seen = {
        "masked": f"{one.values:,} distinct values of a sample are",
        "unseen": "no value was seen",
        "due": f"{one.unmasked:,} of {one.values:,} distinct values of a sample are due",
        "unmasked": f"{one.unmasked:,} of {one.values:,} distinct values of a sample are NOT",
    }
    return f"{one.column} is masked {one.place} ({one.mask}): {seen[one.status]}"


def _archived(some: Sequence[Archive]) -> str:
    """Return in a line what of a table is archived."""
    days = [one.partition_date for one in some]
    rows = f"{sum(one.rows for one in some):,} rows of {min(days)} to {max(days)}"
    return f"archived: {rows}, {size_text(sum(one.bytes for one in some))}; 'ranklake retain archives list' shows where"


def _stored(size: TableSize) -> str:
    """Return in a line how large, how fresh, and how fast it grows."""
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


def _metric(one: Metric) -> Iterator[str]:
    yield f"{one.name}: {one.doc}"
    facts = {
        "unit": one.unit,
        "kind": one.kind,
        "due": f"once per {one.sampling}",
        "range": span(one),
        "stored in": one.stored_in,
        "owner": one.owner,
        "status": "" if one.status == "active" else one.status,
        "deprecated": one.deprecated or "",
        "replaced by": one.replaced_by or "",
        "also known as": ", ".join(one.aka),
    }
    for key, value in facts.items():
        if value:
            yield f"  {key:<13}  {value}"


def _unregistered(seen: UnregisteredMetric) -> Iterator[str]:
    name = seen.metric
    yield f"{name}: recorded, and not registered: its unit and its bounds are not known"
    yield f"  values         {seen.rows:,} in {counted(seen.runs, 'run')}"
    yield f"  recorded       {seen.first:%Y-%m-%d %H:%M:%SZ} to {seen.last:%Y-%m-%d %H:%M:%SZ}"
    yield f"  stored in      {seen.stored_in}"
    yield f"`ranklake request-signal {name} --unit … --why … --owner … --contracts DIR` asks for it to be registered"


def size_lines(held: Sequence[TableSize]) -> list[str]:
    """Return how much each table takes, a row each."""
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


def column_size_lines(found: Sizes) -> Iterator[str]:
    """Yield how much each column of a table takes, the largest first."""
    each = f", {found.value_bytes:.2f} a value" if found.value_bytes is not None else ""
    yield (
        f"{found.table}: {found.rows:,} rows in {found.files:,} files, {size_text(found.stored_bytes)}; "
        f"{found.row_bytes:.2f} bytes a row{each}"
    )
    rows = [
        (
            column.column,
            size_text(column.stored_bytes),
            f"{column.stored_bytes / found.stored_bytes:.1%}",
            f"{column.stored_bytes / found.rows:.3f}",
            f"{column.stored_bytes / column.values:.3f}" if column.values else "",
            size_text(column.plain_bytes),
            f"  {', '.join(column.encodings)}",
        )
        for column in sorted(found.columns, key=lambda column: -column.stored_bytes)
    ]
    rest = ("(footers and indexes)", size_text(found.rest_bytes), f"{found.rest_bytes / found.stored_bytes:.1%}")
    yield from table_lines(_OF_COLUMNS, [*rows, rest], gap="")
