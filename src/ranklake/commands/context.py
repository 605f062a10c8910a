"""How a command gets its context. Separate from `options`, which the base installation's commands use, too."""

from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

import click

from ranklake.commands.configured import base_config, command_line_options
from ranklake.context import Context
from ranklake.lake.query.roles import Role
from ranklake.lake.query.usage import LoggedQuery, consumer_named, note
from ranklake.lake.store.lake import Lake
from ranklake.views.tell import tell


def with_context(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the `Context` of this invocation as the first argument: configuration, and the options that override it."""

    @click.pass_context
    def run(ctx: click.Context, /, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(Context.of(base_config(ctx), command_line_options(ctx)), *args, **options)

    return update_wrapper(run, command)


def role_of(context: Context, lake: Lake, name: str | None) -> Role | None:
    """Return a role by its name, as `Context.role` does; None for no name."""
    return None if name is None else context.role(lake, name, partial(tell, err=True))


def noted_role_of(context: Context, lake: Lake, name: str | None) -> Role | None:
    """Return a role as `role_of` does, and record its use in the query log, for reviews of grants."""
    result = role_of(context, lake, name)
    query = context.config.query
    if (
        result is not None
        and query.log
        and (reason := note(lake.store, LoggedQuery(consumer_named(query.consumer), result.name, {}, {})))
    ):
        tell(f"the query log could not be written ({reason}); log = false under [query] switches it off", err=True)
    return result
