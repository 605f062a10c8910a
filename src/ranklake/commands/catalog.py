"""``ranklake catalog``: tables, columns and metrics by name, on a terminal or as JSON, and what hangs on them."""

import click

from ranklake.catalog_facts import TableEntry, listing, named
from ranklake.commands.catalog_parts import changes, export, refresh, sizes, use
from ranklake.commands.completing import complete_tables_and_metrics
from ranklake.commands.context import with_context
from ranklake.commands.options import contracts_option, json_option, overriding
from ranklake.context import Context
from ranklake.views.catalog import entry_lines, listing_lines
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


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
    """Show what a table or metric is, and how fresh and large; without a name, list them."""
    if name is None:
        every = listing(context, needs_lake=lake is not None)
        if as_json:
            show_json({"tables": [one.brief() for one in every.tables], "metrics": every.metrics})
        else:
            tell(*listing_lines(every))
        return
    found = named(context, name, needs_lake=lake is not None)
    if as_json:
        show_json(found.whole() if isinstance(found, TableEntry) else found)
    else:
        tell(*entry_lines(found))


for _part in (sizes, refresh, changes, use, export):
    catalog.add_command(_part)
