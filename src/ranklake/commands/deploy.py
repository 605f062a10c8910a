"""``ranklake deploy``."""

import asyncio
import os
from dataclasses import asdict
from pathlib import Path, PurePosixPath
from typing import Final
from urllib.parse import urlsplit

import click

from ranklake.commands.configured import base_config, command_line_options
from ranklake.commands.options import dask_option, every_option, json_option, lake_option, spool_option
from ranklake.config import ConfigError
from ranklake.flows.deployments import deployments
from ranklake.flows.serving.environment import adopt, check_host, database_url, url_of
from ranklake.flows.serving.home import Home
from ranklake.flows.settings import FlowSettings, flow_settings
from ranklake.terminal import say_nothing
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell

_BANNED: Final = "/%&<>"
"""Characters that Prefect refuses in names."""


def _checked_name(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a name that Prefect would refuse later with a traceback."""
    if parameter.required and not value.strip():
        raise click.BadParameter("a name is needed", ctx, parameter)
    if any(one in value for one in _BANNED):
        raise click.BadParameter(f"{value!r} has one of {' '.join(_BANNED)}", ctx, parameter)
    return value


def _checked_path(ctx: click.Context, parameter: click.Parameter, value: str) -> str:
    """Refuse a relative path, which would depend on the flow's working folder."""
    if value and not PurePosixPath(value).is_absolute():
        raise click.BadParameter(f"{value!r} is relative; flows run in a folder of their own", ctx, parameter)
    return value


@click.command()
@lake_option
@spool_option
@dask_option
@click.option(
    "--pool",
    required=True,
    callback=_checked_name,
    metavar="NAME",
    help="Work pool: of type process, docker or kubernetes.",
)
@click.option(
    "--name",
    default="",
    callback=_checked_name,
    metavar="NAME",
    help="Put before each deployment's name, to serve several lakes from one server: NAME-pipeline, …",
)
@click.option(
    "--config",
    default="",
    callback=_checked_path,
    metavar="PATH",
    help="Path of ranklake.toml where the flows run; default: that of the file here.",
)
@click.option("--image", default="", metavar="IMAGE", help="Image with ranklake, for docker and kubernetes.")
@every_option
@click.option("--dry-run", is_flag=True, help="Show what would be done; change nothing.")
@json_option
@click.pass_context
def deploy(
    ctx: click.Context,
    pool: str,
    name: str,
    config: str,
    image: str,
    every_s: int,
    *,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Register all deployments on the Prefect server of PREFECT_API_URL, for the workers of a pool.

    Run it again after an upgrade to update them. Deployments of others, and for other lakes, are not changed; their
    names are refused.
    """
    _check_server(os.environ.get("PREFECT_API_URL", ""))
    result = base_config(ctx)
    local = flow_settings(result, command_line_options(ctx))
    settings = FlowSettings(local.lake, local.spool, dask_address=local.dask_address, config=config or local.config)
    from ranklake.flows.deploy import Target, deploy_all

    target = Target(pool, image, local.lake or result.lake.uri)
    results = asyncio.run(deploy_all(deployments(every_s, name), settings, target, dry_run=dry_run))
    if as_json:
        show_json({"dry_run": dry_run, "pool": pool, "deployments": [asdict(one) for one in results]})
        return
    prefix = "would be " if dry_run else ""
    rows = [[one.name, one.schedule, prefix + one.action] for one in results]
    tell(*table_lines([TextColumn("deployment"), TextColumn("runs"), TextColumn("")], rows))


def _check_server(url: str) -> None:
    """Raise `ConfigError` for an invalid address. Prefect reads it at import, without a useful error."""
    try:
        parts = urlsplit(url)
        usable = not url or (parts.scheme in {"http", "https"} and bool(parts.hostname) and parts.port != 0)
    except ValueError:
        usable = False
    if not usable:
        hint = "set it to one such as http://prefect:4200/api"
        raise ConfigError("is not an HTTP address", where="PREFECT_API_URL", hint=hint)


_PORT = 4200


@click.command()
@lake_option
@spool_option
@dask_option
@click.option(
    "--home",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("~/.ranklake"),
    show_default=True,
    help="Folder for Prefect's database and files; only this user can read it.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option(
    "--database",
    metavar="REFERENCE",
    default="",
    help="PostgreSQL in place of SQLite: env:NAME or file:/path of an address such as postgresql+asyncpg://…",
)
@click.option(
    "--metrics-host",
    default="127.0.0.1",
    show_default=True,
    help="Address to serve /metrics and /healthz at: they name no run and no person.",
)
@click.option(
    "--metrics-port",
    type=click.IntRange(0, 65535),
    help="Port to serve them at; 0 for none.  [default: the one after --port]",
)
@every_option
@click.pass_context
def up(
    ctx: click.Context,
    home: Path,
    host: str,
    port: int,
    database: str,
    metrics_host: str,
    metrics_port: int | None,
    every_s: int,
) -> None:
    """Serve all deployments here: a local Prefect server with its UI, and a worker that runs due flows.

    Runs until Ctrl-C or SIGTERM, and exits 0. Active runs are cancelled, and the next ones resume their work. A server
    or worker that dies is restarted. Each home folder can have one such process.
    """
    result = base_config(ctx)
    address = database_url(database)
    check_host(host, os.environ)
    url = url_of(host, port)
    home_lock = Home.take(home.expanduser(), url)
    try:
        settings = flow_settings(
            result, command_line_options(ctx), "" if result.file else str(home_lock.empty_config())
        )
        lake = settings.lake or result.lake.uri
        adopt(home_lock.folder, url)
        from ranklake.flows.serving.up import MetricsPlace, Plan, serve

        is_explicit = metrics_port is not None
        metrics = MetricsPlace(
            metrics_host, (port + 1) % 65536 if metrics_port is None else metrics_port, is_explicit, result.health
        )
        serve(Plan(home_lock.folder, host, port, address, settings, lake, every_s, metrics), _say)
    finally:
        home_lock.release()


def _say(line: str) -> None:
    """Print a line. Serving continues if it cannot be written, because its reader ended or a disk is full.

    Ctrl-C reaches both ends of a pipe, and the reader may end first.
    """
    try:
        tell(line)
    except BrokenPipeError:
        say_nothing()
    except OSError:
        return
