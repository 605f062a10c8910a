"""``ranklake catalog``: tables, columns and metrics by name, on a terminal or as JSON."""

import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from ranklake.commands.options import configuration, json_option
from ranklake.lake.catalog import find, promise, span
from ranklake.lake.contracts import Column, Contract, Metric, load_contracts, load_metrics

_WIDTH = 100


def _overlay(ctx: click.Context, parameter: click.Parameter, value: Path | None) -> Path | None:
    """Return the overlay from ``--contracts``, else the configured one."""
    del parameter
    configured = configuration(ctx).contracts.overlay
    return value or (Path(configured) if configured else None)


@click.command()
@click.argument("name", metavar="[TABLE|METRIC]", required=False)
@json_option
@click.option(
    "--contracts",
    "overlay",
    metavar="DIR",
    type=click.Path(path_type=Path),
    callback=_overlay,
    help="Folder of your own contracts and metrics.",
)
def catalog(name: str | None, as_json: bool, overlay: Path | None) -> None:
    """Show what a table or metric is; without a name, list them."""
    if name is None:
        tables, metrics = load_contracts(overlay), load_metrics(overlay)
        if as_json:
            click.echo(json.dumps({"tables": [_brief(one) for one in tables.values()], "metrics": list(metrics)}))
        else:
            click.echo("\n".join(_listing(tables.values(), len(metrics))))
        return
    found = find(name, overlay)
    if as_json:
        click.echo(json.dumps(_table_facts(found) if isinstance(found, Contract) else asdict(found)))
    else:
        click.echo("\n".join(_table(found) if isinstance(found, Contract) else _metric(found)))


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


def _listing(tables: Iterable[Contract], metrics: int) -> Iterator[str]:
    tables = list(tables)
    wide = max(len(one.table) for one in tables)
    for kind in ("fact", "derived", "system"):
        yield f"{kind} tables"
        for one in tables:
            if one.kind == kind:
                room = _WIDTH - wide - 4
                yield f"  {one.table:<{wide}}  {textwrap.shorten(one.summary, room, placeholder=' …')}"
    yield f"{len(tables)} tables, {metrics} metrics; `ranklake catalog NAME` shows one"


def _table(one: Contract) -> Iterator[str]:
    yield f"{one.table} (version {one.version}, {one.kind}): {one.summary}"
    yield f"owner {one.owner}, steward {one.steward}; retention class {one.retention}"
    yield f"one row per {', '.join(one.grain)}; partitioned by {', '.join(one.partition)}"
    yield ""
    rows = [(c.name, c.type, c.unit or "", _class(c), "required" if c.required else "") for c in one.columns]
    wide = [max(len(cell) for cell in cells) for cells in zip(*rows, strict=True)]
    for row, column in zip(rows, one.columns, strict=True):
        yield "  ".join(f"{cell:<{width}}" for cell, width in zip(row, wide, strict=True)).rstrip()
        yield from textwrap.wrap(column.doc, _WIDTH, initial_indent="    ", subsequent_indent="    ")
    yield ""
    for check in one.all_checks():
        yield f"check {check.id} ({check.severity}, {check.on_fail}): {promise(check)}"


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
