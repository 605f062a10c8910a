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


def _named(ctx: click.Context, parameter: click.Parameter, value: str | None) -> str:
    """Return the URI for ``--lake`` or ``--spool`` (the parameter's name says which)."""
    noun = str(parameter.name)
    uri = value or str(getattr(configuration(ctx), noun).uri)
    if not uri:
        mend = f"pass --{noun} URI, set RANKLAKE_{noun.upper()}, or write uri under [{noun}] in ranklake.toml"
        raise ConfigError(f"no {noun} is named", mend=mend)
    return uri


def lake_option(command: Command) -> Command:
    """Pass ``lake``: the URI from ``--lake``, ``RANKLAKE_LAKE`` or the configuration."""
    return click.option("--lake", metavar="URI", callback=_named, help="URI or folder of the lake.")(command)


def spool_option(command: Command) -> Command:
    """Pass ``spool``: the URI from ``--spool``, ``RANKLAKE_SPOOL`` or the configuration."""
    return click.option("--spool", metavar="URI", callback=_named, help="URI or folder of the spool.")(command)


def dask_option(command: Command) -> Command:
    """Pass ``dask``: the scheduler's address, or None for the configured cluster or a local one."""
    text = "Dask scheduler, such as tls://host:8786; default: a local cluster."
    return click.option("--dask", metavar="ADDRESS", help=text)(command)


def cluster(config: Config, dask: str | None) -> tuple[str, int, str, dict[str, str]]:
    """Return the cluster that is named (``dask``) or configured, as `lake.plans.dask_workers.on_demand` takes it."""
    return dask or config.dask.address, config.dask.workers, config.dask.memory_limit, config.dask.tls


def json_option(command: Command) -> Command:
    """Pass ``as_json``: print JSON for machines instead of text for people."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)
