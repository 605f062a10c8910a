"""How a command gets its context. Apart from the options, which commands of the light installation use, too."""

from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from ranklake.commands.configured import base_config, command_line_options
from ranklake.context import Context
from ranklake.lake.query.role_file import load_role
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.usage import LoggedQuery, consumer_named, note
from ranklake.lake.store.lake import Lake
from ranklake.retention.grants.use import current_grant
from ranklake.retention.proposals.identities import account
from ranklake.views.tell import tell


def with_context(command: Callable[..., Any]) -> Callable[..., Any]:
    """Pass the `Context` of this invocation as the first argument: configuration, and the options that override it."""

    @click.pass_context
    def run(ctx: click.Context, /, *args: Any, **options: Any) -> Any:  # noqa: ANN401 - the command's own
        return command(Context.of(base_config(ctx), command_line_options(ctx)), *args, **options)

    return update_wrapper(run, command)


def role_of(context: Context, lake: Lake, name: str | None) -> Role | None:
    """Return a role by its name, from the configured file; None for no name.

    Raises `RoleError`, and `ranklake.retention.grants.use.NotGrantedError` where roles need grants and none holds.
    """
    if name is None:
        return None
    file = context.config.sql.roles
    if not file:
        hint = "name their file by roles under [sql] in ranklake.toml"
        raise RoleError(f"no roles are defined, so none is called {name!r}", where="--role", hint=hint)
    result = load_role(Path(file), name, lake.contracts())
    if context.config.sql.grants:
        grant = current_grant(lake, name, account(lake))
        if grant.awaits_review():
            tell(f"role {name} is used without approval, under {grant.name}, which waits for a review", err=True)
    return result


def noted_role_of(context: Context, lake: Lake, name: str | None) -> Role | None:
    """Return the same, and note in the query log that it is used: reviews of grants go by that."""
    result = role_of(context, lake, name)
    query = context.config.query
    if (
        result is not None
        and query.log
        and (why := note(lake.store, LoggedQuery(consumer_named(query.consumer), result.name, {}, {})))
    ):
        tell(f"the query log could not be written ({why}); log = false under [query] switches it off", err=True)
    return result
