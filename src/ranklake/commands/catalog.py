"""``ranklake catalog``: tables, columns and metrics by name, on a terminal or as JSON, and what hangs on them."""

import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ranklake.commands.catalog_parts import export, refresh, sizes
from ranklake.commands.context import with_context
from ranklake.commands.options import contracts_option, json_option, overriding
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.catalog.catalog import UnknownNameError, find, span
from ranklake.lake.catalog.sizes import TableSize, live_files, table_size
from ranklake.lake.contracts import Column, Contract, Metric, load_contracts, load_metrics
from ranklake.lake.contracts.checks.registry import promise
from ranklake.lake.query.sql import query
from ranklake.lake.storage.store import Lake, NotALakeError
from ranklake.views.json_output import json_text, show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.words import size_text

_WIDTH = 100
_OF_METRIC = (
    'SELECT count(*) AS "rows", count(DISTINCT run) AS runs, min(ts) AS first, max(ts) AS last FROM scalars '
    "WHERE metric = $name"
)
_NAMES = "SELECT metric FROM catalog_metrics WHERE status = 'unregistered'"


class _ShowByDefault(click.Group):
    """Takes what is no command for the name of a table or metric, as ``ranklake catalog steps`` has it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"-h", "--help"}):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[TABLE|METRIC] | COMMAND [ARGS]..."]


@click.group(cls=_ShowByDefault)
def catalog() -> None:
    """Show what a table or metric is; without a name, list them."""


@catalog.command()
@click.argument("name", metavar="[TABLE|METRIC]", required=False)
@json_option
@contracts_option
@overriding(
    "--lake",
    place="lake.uri",
    expose_value=True,
    metavar="URI",
    help="Lake whose sizes to show; default: the configured one, if it exists.",
)
@with_context
def show(context: Context, name: str | None, lake: str | None, *, as_json: bool) -> None:
    """Show what a table or metric is, and how fresh and large; without a name, list them."""
    target, overlay = _lake(context, is_needed=lake is not None), context.overlay
    if name is None:
        tables, metrics = load_contracts(overlay), load_metrics(overlay)
        held = {one: _size(target, one) for one in tables} if target else {}
        if as_json:
            briefs = [_brief(one) | _held(held.get(one.table)) for one in tables.values()]
            show_json({"tables": briefs, "metrics": list(metrics)})
        else:
            click.echo("\n".join(_listing(tables.values(), len(metrics), held)))
        return
    try:
        found = find(name, overlay)
    except UnknownNameError:
        seen = _recorded(target, name, overlay)
        click.echo(json_text(seen) if as_json else "\n".join(_unregistered(seen)))
        return
    size = _size(target, found.table) if target and isinstance(found, Contract) else None
    if as_json:
        facts = _table_facts(found) | _held(size) if isinstance(found, Contract) else asdict(found)
        show_json(facts)
    else:
        click.echo("\n".join(_table(found, size) if isinstance(found, Contract) else _metric(found)))


def _recorded(target: Lake | None, name: str, overlay: Path | None) -> dict[str, Any]:
    """Return what the lake has of a metric that nobody registered. Raises `UnknownNameError` with names like it."""
    if target is not None:
        (row,) = query(target, _OF_METRIC, {"name": name}, overlay=overlay).to_pylist()
        if row["rows"]:
            return {"metric": name, "status": "unregistered", "stored_in": "scalars.value", **row}
    known = [*load_contracts(overlay), *load_metrics(overlay)]
    if target is not None:
        noted = query(target, _NAMES, {}, overlay=overlay)["metric"].to_pylist()
        known += (
            noted or query(target, "SELECT DISTINCT metric FROM scalars", {}, overlay=overlay)["metric"].to_pylist()
        )
    raise UnknownNameError(name, mend=did_you_mean(name, {one for one in known if one}))


def _unregistered(seen: Mapping[str, Any]) -> Iterator[str]:
    name = seen["metric"]
    yield f"{name}: recorded, and not registered: its unit and its bounds are not known"
    yield f"  values         {seen['rows']:,} in {seen['runs']:,} run{'s' * (seen['runs'] != 1)}"
    yield f"  recorded       {seen['first']:%Y-%m-%d %H:%M:%SZ} to {seen['last']:%Y-%m-%d %H:%M:%SZ}"
    yield f"  stored in      {seen['stored_in']}"
    yield f"`ranklake request-signal {name} --unit … --why … --owner … --contracts DIR` asks for it to be registered"


for _part in (sizes, refresh, export):
    catalog.add_command(_part)


def _lake(context: Context, *, is_needed: bool) -> Lake | None:
    """Return the lake; None if there is none and it is not needed."""
    try:
        return context.open_lake() if context.config.lake.uri else None
    except NotALakeError:  # nothing was ingested yet
        if is_needed:
            raise
        return None


def _size(lake: Lake, table: str) -> TableSize:
    return table_size(table, *live_files(lake, table))


def _held(size: TableSize | None) -> dict[str, Any]:
    return {} if size is None else {"stored": asdict(size)}


def _brief(one: Contract) -> dict[str, Any]:
    keys = ("table", "version", "kind", "owner", "retention", "summary")
    return {key: getattr(one, key) for key in keys} | {"columns": len(one.columns)}


def _table_facts(one: Contract) -> dict[str, Any]:
    keys = ("table", "version", "kind", "owner", "steward", "retention", "summary", "grain", "partition", "sort")
    return {key: getattr(one, key) for key in keys} | {
        "columns": [{key.rstrip("_"): value for key, value in asdict(column).items()} for column in one.columns],
        "checks": [asdict(check) for check in one.checks],
        "retired": [asdict(gone) for gone in one.retired],
    }


def _listing(tables: Iterable[Contract], metrics: int, held: Mapping[str, TableSize]) -> Iterator[str]:
    tables = list(tables)
    wide = max(len(one.table) for one in tables)
    for kind in ("fact", "derived", "system"):
        yield f"{kind} tables"
        for one in tables:
            if one.kind == kind:
                size = held.get(one.table)
                figures = f"{size.rows:>14,} rows {size_text(size.stored_bytes):>9}  " if size else ""
                room = _WIDTH - wide - 4 - len(figures)
                yield f"  {one.table:<{wide}}  {figures}{textwrap.shorten(one.summary, room, placeholder=' …')}"
    yield f"{len(tables)} tables, {metrics} metrics; `ranklake catalog NAME` shows one"


def _table(one: Contract, size: TableSize | None) -> Iterator[str]:
    yield f"{one.table} (version {one.version}, {one.kind}): {one.summary}"
    yield f"owner {one.owner}, steward {one.steward}; retention class {one.retention}"
    yield f"one row per {', '.join(one.grain)}; partitioned by {', '.join(one.partition)}"
    if size is not None:
        yield _stored(size)
    yield ""
    rows = [(c.name, c.type, c.unit or "", _class(c), "required" if c.required else "") for c in one.columns]
    lines = table_lines([TextColumn("")] * len(rows[0]), rows, has_head=False)
    for line, column in zip(lines, one.columns, strict=True):
        yield line
        yield from textwrap.wrap(column.doc, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield ""
    for check in one.all_checks():
        yield f"check {check.id} ({check.severity}, {check.on_fail}): {promise(check)}"


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
