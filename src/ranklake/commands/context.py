"""How a command gets its context. Apart from the options, which commands of the light installation use, too."""

from collections.abc import Callable
from functools import update_wrapper
from typing import Any

import click

from ranklake.commands.options import configured, given
from ranklake.context import Context


def with_context(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the `Context` of this invocation as the first argument: configuration, and the options that override it."""

    @click.pass_context
    def run(ctx: click.Context, /, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(Context.of(configured(ctx), given(ctx)), *args, **options)

    return update_wrapper(run, command)
