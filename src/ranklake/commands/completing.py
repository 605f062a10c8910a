"""What the shell's completion offers for arguments: names of runs, tables, metrics and roles.

Completion runs a whole process at each Tab, so what is heavy is imported where it is needed alone. Where nothing can be
offered, nothing is said: a message would land in the middle of a line that somebody types.
"""

from collections.abc import Callable, Iterable
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.shell_completion import CompletionItem

from ranklake.errors import RanklakeError

if TYPE_CHECKING:
    from ranklake.context import Context

_Complete = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def _completing(names: Callable[[click.Context], Iterable[str]]) -> _Complete:
    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        del parameter
        try:
            return [CompletionItem(one) for one in names(ctx) if one.startswith(incomplete)]
        except (RanklakeError, click.ClickException, ImportError, OSError):
            return []

    return update_wrapper(complete, names)


def _context(ctx: click.Context) -> "Context":
    from ranklake.commands.configured import base_config, command_line_options
    from ranklake.context import Context

    return Context.of(base_config(ctx), command_line_options(ctx))


@_completing
def complete_runs(ctx: click.Context) -> Iterable[str]:
    """Offer names of runs, as the role of ``--role`` sees them."""
    from ranklake.commands.context import role_of
    from ranklake.shell.names import run_names

    context = _context(ctx)
    lake = context.open_lake()
    return run_names(lake, role_of(context, lake, ctx.params.get("role")))


@_completing
def complete_tables(ctx: click.Context) -> Iterable[str]:
    """Offer names of tables: no lake is asked."""
    from ranklake.lake.contracts import table_names

    del ctx
    return table_names()


@_completing
def complete_tables_and_metrics(ctx: click.Context) -> Iterable[str]:
    """Offer names of tables and metrics: no lake is asked."""
    from ranklake.lake.contracts import load_metrics, table_names

    del ctx
    return [*table_names(), *load_metrics()]


@_completing
def complete_plotted(ctx: click.Context) -> Iterable[str]:
    """Offer what a run can be plotted by: no lake is asked."""
    from ranklake.insight.runs.curves import OF_STEPS
    from ranklake.lake.contracts import load_metrics

    del ctx
    return [*OF_STEPS, *load_metrics()]


@_completing
def complete_roles(ctx: click.Context) -> Iterable[str]:
    """Offer names of roles, from the file that is configured."""
    from ranklake.lake.contracts import load_contracts
    from ranklake.lake.query.role_file import load_roles

    file = _context(ctx).config.sql.roles
    return load_roles(Path(file), load_contracts()) if file else []
