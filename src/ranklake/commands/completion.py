"""``ranklake completion``, and completions of names of runs, tables, metrics and roles."""

from collections.abc import Callable, Iterable
from functools import update_wrapper
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from click.shell_completion import CompletionItem, get_completion_class

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
    """Complete names of runs that the role of ``--role`` sees."""
    from ranklake.commands.context import role_of
    from ranklake.shell.names import run_names

    context = _context(ctx)
    lake = context.open_lake()
    return run_names(lake, role_of(context, lake, ctx.params.get("role")))


@_completing
def complete_tables(ctx: click.Context) -> Iterable[str]:
    """Complete names of tables, without a lake."""
    from ranklake.lake.contracts import table_names

    del ctx
    return table_names()


@_completing
def complete_tables_and_metrics(ctx: click.Context) -> Iterable[str]:
    """Complete names of tables and metrics, without a lake."""
    from ranklake.lake.contracts import load_metrics, table_names

    del ctx
    return [*table_names(), *load_metrics()]


@_completing
def complete_plotted(ctx: click.Context) -> Iterable[str]:
    """Complete metrics that can be plotted, without a lake."""
    from ranklake.insight.runs.curves import OF_STEPS
    from ranklake.lake.contracts import load_metrics

    del ctx
    return [*OF_STEPS, *load_metrics()]


@_completing
def complete_roles(ctx: click.Context) -> Iterable[str]:
    """Complete names of roles in the configured file."""
    from ranklake.lake.contracts import load_contracts
    from ranklake.lake.query.role_file import load_roles

    file = _context(ctx).config.sql.roles
    return load_roles(Path(file), load_contracts()) if file else []


_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(epilog='Example, in ~/.bashrc: eval "$(ranklake completion bash)"')
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script that lets SHELL complete commands, options, and names of tables, runs and roles."""
    kind = get_completion_class(shell)
    if kind is None:
        raise RanklakeError(f"no completion for {shell}", hint=f"use one of {', '.join(_SHELLS)}")
    click.echo(kind(ctx.find_root().command, {}, "ranklake", "_RANKLAKE_COMPLETE").source())  # noqa: TID251 - a document, as it is
