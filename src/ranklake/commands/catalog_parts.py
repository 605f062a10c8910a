"""What ``ranklake catalog`` has besides showing: ``sizes``, ``refresh`` and ``export``."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ranklake.commands.context import with_context
from ranklake.commands.options import contracts_option, json_option, lake_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.lake.catalog.refresh import refresh as refresh_catalog
from ranklake.lake.catalog.sizes import Sizes, column_sizes, live_files, newest, table_size
from ranklake.lake.contracts import contract
from ranklake.lake.contracts.odcs import document
from ranklake.lake.storage.store import cannot_write
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.words import size_text

_TABLES: Final = (
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


@click.command()
@click.argument("table", required=False)
@lake_option
@contracts_option
@click.option("--files", type=click.IntRange(min=1), help="Look only at this many of the newest files; default: all.")
@json_option
@with_context
def sizes(context: Context, table: str | None, files: int | None, *, as_json: bool) -> None:
    """Show how much of a table's files each column takes; without TABLE, how much each table takes."""
    lake = context.open_lake()
    if table is None:
        held = [table_size(name, *live_files(lake, name)) for name in context.contracts()]
        held = sorted((one for one in held if one.rows), key=lambda one: -one.stored_bytes)
        if as_json:
            show_json(held)
            return
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
        click.echo("\n".join(table_lines(_TABLES, rows, gap="")))
        return
    of = contract(table, context.overlay)
    _, live = live_files(lake, table)
    found = None if live is None or not live.num_rows else column_sizes(lake, of, newest(live, files))
    if as_json:
        show_json(None if found is None else _facts(found))
    else:
        click.echo("\n".join(_costs(found)) if found else f"{table} holds nothing yet")


def _facts(found: Sizes) -> dict[str, Any]:
    return asdict(found) | {
        "rest_bytes": found.rest_bytes,
        "values": found.values,
        "row_bytes": found.stored_bytes / found.rows,
        "value_bytes": found.stored_bytes / found.values if found.values else None,
    }


def _costs(found: Sizes) -> Iterator[str]:
    each = f", {found.stored_bytes / found.values:.2f} a value" if found.values else ""
    yield (
        f"{found.table}: {found.rows:,} rows in {found.files:,} files, {size_text(found.stored_bytes)}; "
        f"{found.stored_bytes / found.rows:.2f} bytes a row{each}"
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


@click.command()
@lake_option
@contracts_option
@json_option
@with_context
def refresh(context: Context, *, as_json: bool) -> None:
    """Bring catalog_tables, catalog_columns and catalog_metrics up to date."""
    done = refresh_catalog(context.open_lake(), context.overlay)
    if as_json:
        show_json(done)
    else:
        click.echo(f"{done.tables:,} tables, {done.columns:,} columns, {done.metrics:,} metrics")


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--format", "form", default="odcs", show_default=True, help="odcs: Open Data Contract Standard 3.1.")
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write a file per contract, <table>.odcs.yaml; default: print them.",
)
@contracts_option
@with_context
def export(context: Context, tables: tuple[str, ...], form: str, output: Path | None) -> None:
    """Export contracts in a standard format; by default all of them."""
    if form != "odcs":
        raise click.UsageError(f"no format is called {form!r}; {did_you_mean(form, ['odcs'])}")
    chosen = [contract(name, context.overlay) for name in tables] or list(context.contracts().values())
    documents = {one.table: yaml.safe_dump(document(one), sort_keys=False, width=120) for one in chosen}
    if output is None:
        click.echo("---\n".join(documents.values()), nl=False)
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            fresh = output / f"{name}.odcs.yaml.tmp"
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(output / f"{name}.odcs.yaml")
    except OSError as error:
        raise cannot_write(str(output), error) from error
    click.echo(f"wrote {len(documents)} contracts to {output}")
