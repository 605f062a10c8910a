"""``ranklake completion``."""

from typing import Final

import click
from click.shell_completion import get_completion_class

from ranklake.errors import RanklakeError

_SHELLS: Final = ("bash", "zsh", "fish")


@click.command(epilog='Example, in ~/.bashrc: eval "$(ranklake completion bash)"')
@click.argument("shell", type=click.Choice(_SHELLS))
@click.pass_context
def completion(ctx: click.Context, shell: str) -> None:
    """Print a script with which SHELL completes commands, options, and names of tables, runs and roles."""
    kind = get_completion_class(shell)
    if kind is None:
        raise RanklakeError(f"no completion for {shell}", hint=f"use one of {', '.join(_SHELLS)}")
    click.echo(kind(ctx.find_root().command, {}, "ranklake", "_RANKLAKE_COMPLETE").source())  # noqa: TID251 - a document, as it is
