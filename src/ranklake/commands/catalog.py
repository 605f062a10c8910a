"""``ranklake catalog``: tables, columns and metrics by name, their sizes, changes and uses."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import click
import yaml

from ranklake.catalog_facts import MetricEntry, TableEntry, find_entry, listing
from ranklake.commands.completion import complete_tables_and_metrics
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, contracts_option, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.catalog.refresh import refresh as refresh_catalog
from ranklake.insight.catalog.sizes import column_sizes, live_files, newest, table_size
from ranklake.lake.contracts import contract
from ranklake.lake.contracts.odcs import document
from ranklake.lake.query.usage import logged_uses
from ranklake.lake.rollups.life.register import changes as changed
from ranklake.lake.store.reachability import cannot_write
from ranklake.printable import printable
from ranklake.views.catalog import column_size_lines, entry_lines, listing_lines, size_lines
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("table", required=False)
@lake_option
@contracts_option
@click.option("--files", type=click.IntRange(min=1), help="Look only at this many of the newest files; default: all.")
@json_option
@with_context
def sizes(context: Context, table: str | None, files: int | None, *, as_json: bool) -> None:
    """Show the size of each column in a table's files; without TABLE, the size of each table."""
    lake = context.open_lake()
    if table is None:
        held = [table_size(name, *live_files(lake.tables, name)) for name in lake.contracts()]
        held = sorted((one for one in held if one.rows), key=lambda size: -size.stored_bytes)
        if as_json:
            show_json(held)
            return
        tell(*size_lines(held))
        return
    of = lake.contract(table)
    _, live = live_files(lake.tables, table)
    result = None if live is None or not live.num_rows else column_sizes(lake.store, of, newest(live, files))
    if as_json:
        show_json(None if result is None else result.facts())
    else:
        tell(*(column_size_lines(result) if result else [f"{table} holds nothing yet"]))


@click.command()
@lake_option
@contracts_option
@json_option
@with_context
def refresh(context: Context, *, as_json: bool) -> None:
    """Update catalog_tables, catalog_columns and catalog_metrics."""
    result = refresh_catalog(context.open_lake())
    if as_json:
        show_json(result)
    else:
        tell(f"{result.tables:,} tables, {result.columns:,} columns, {result.metrics:,} metrics")


@click.command()
@click.option(
    "--since",
    metavar="DATE|TIME",
    type=click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"]),
    help="Leave out earlier ones; UTC.",
)
@lake_option
@contracts_option
@json_option
@with_context
def changes(context: Context, since: datetime | None, *, as_json: bool) -> None:
    """Show changes of tables and metrics: migrations, names, units, retirements and replacements."""
    moment = None if since is None else since.replace(tzinfo=UTC)
    results = changed(context.open_lake(), moment)
    if as_json:
        show_json([one.plain() for one in results])
        return
    if not results:
        tell("nothing changed")
    for item in results:
        tell(printable(f"{item.at:%Y-%m-%d %H:%M}  {item.kind} {item.name}: {item.text}"))


@click.command()
@click.argument("name", metavar="[TABLE[.COLUMN]]", default="")
@click.option(
    "--since",
    metavar="DATE",
    type=click.DateTime(["%Y-%m-%d"]),
    help="Leave out earlier queries; UTC, default: the last 90 days.",
)
@lake_option
@contracts_option
@json_option
@with_context
def use(context: Context, name: str, since: datetime | None, *, as_json: bool) -> None:
    """Show who used which columns, how often and when last, by the log of queries; former names first."""
    begin = (since or datetime.now(UTC) - timedelta(days=90)).date()
    table, _, column = name.partition(".")
    results = logged_uses(context.open_lake().store, begin, table, column)
    if as_json:
        show_json([one.plain() for one in results])
        return
    if not results:
        tell(f"no query is noted since {begin}")
    for item in results:
        used_name = f"{item.table}.{item.column}" if item.column else f"{item.table}, rows"
        former = f" (now {item.now})" if item.now else ""
        queries = f"{item.queries:,} {'query' if item.queries == 1 else 'queries'}"
        tell(printable(f"{used_name}{former}: {item.consumer}, {queries}, last {item.last:%Y-%m-%d %H:%M}"))


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--format", "form", default="odcs", show_default=True, help="odcs: Open Data Contract Standard 3.1.")
@click.option(
    "--output",
    metavar="DIR",
    type=click.Path(path_type=Path, file_okay=False),
    help="Write one file per contract, <table>.odcs.yaml; default: print them.",
)
@contracts_option
@with_context
def export(context: Context, tables: tuple[str, ...], form: str, output: Path | None) -> None:
    """Export contracts in a standard format; by default all of them."""
    if form != "odcs":
        raise click.UsageError(f"unknown format {form!r}; {did_you_mean(form, ['odcs'])}")
    chosen = [contract(name, context.overlay) for name in tables] or list(context.contracts().values())
    documents = {one.table: yaml.safe_dump(document(one), sort_keys=False, width=120) for one in chosen}
    if output is None:
        click.echo("---\n".join(documents.values()), nl=False)  # noqa: TID251 - a document, as it is
        return
    try:
        output.mkdir(parents=True, exist_ok=True)
        for name, text in documents.items():
            fresh = output / f"{name}.odcs.yaml.tmp"
            fresh.write_text(text, encoding="utf-8")
            fresh.replace(output / f"{name}.odcs.yaml")
    except OSError as error:
        raise cannot_write(str(output), error) from error
    tell(f"wrote {len(documents)} contracts to {output}")


class _ShowByDefault(Group):
    """Treats an unknown command as the name of a table or metric, as in ``ranklake catalog steps``."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        if not args or (args[0] not in self.commands and args[0] not in {"-h", "--help"}):
            args = ["show", *args]
        return super().parse_args(ctx, args)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        del ctx
        return ["[TABLE|METRIC] | COMMAND [ARGS]..."]


@click.group(cls=_ShowByDefault)
def catalog() -> None:
    """Describe a table or metric; without a name, list all."""


@catalog.command()
@click.argument("name", metavar="[TABLE|METRIC]", required=False, shell_complete=complete_tables_and_metrics)
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
    """Describe a table or metric, its freshness and size; without a name, list all."""
    if name is None:
        every = listing(context, needs_lake=lake is not None)
        if as_json:
            show_json({"tables": [one.brief() for one in every.tables], "metrics": every.metrics})
        else:
            tell(*listing_lines(every))
        return
    result = find_entry(context, name, needs_lake=lake is not None)
    if as_json:
        show_json(result.whole() if isinstance(result, TableEntry | MetricEntry) else result)
    else:
        tell(*entry_lines(result))


for _part in (sizes, refresh, changes, use, export):
    catalog.add_command(_part)
