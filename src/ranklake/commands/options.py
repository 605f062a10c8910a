"""Options that several commands share, and how they find their lake and spool."""

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ranklake.config import Config, ConfigError, load_config

Command = TypeVar("Command", bound=Callable[..., Any])


def configuration(ctx: click.Context) -> Config:
    """Return the configuration of this invocation, read once."""
    found = ctx.find_object(Config)
    if found is None:
        found = load_config()
        ctx.find_root().obj = found
    return found


def _lake(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    uri = value or configuration(ctx).lake.uri
    if not uri:
        raise ConfigError(
            "no lake is named", mend="pass --lake URI, set RANKLAKE_LAKE, or write uri under [lake] in ranklake.toml"
        )
    return uri


def _spool(ctx: click.Context, _: click.Parameter, value: str | None) -> str:
    uri = value or configuration(ctx).spool.uri
    if not uri:
        raise ConfigError(
            "no spool is named",
            mend="pass --spool URI, set RANKLAKE_SPOOL, or write uri under [spool] in ranklake.toml",
        )
    return uri


def lake_option(command: Command) -> Command:
    """Pass ``lake``: the URI from ``--lake``, ``RANKLAKE_LAKE`` or the configuration."""
    return click.option("--lake", metavar="URI", callback=_lake, help="Folder or object-store URI of the lake.")(
        command
    )


def spool_option(command: Command) -> Command:
    """Pass ``spool``: the URI from ``--spool``, ``RANKLAKE_SPOOL`` or the configuration."""
    return click.option("--spool", metavar="URI", callback=_spool, help="Folder or object-store URI of the spool.")(
        command
    )


def json_option(command: Command) -> Command:
    """Pass ``as_json``: print JSON for machines instead of text for people."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
