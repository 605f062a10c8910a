"""``ranklake up``."""

import os
from pathlib import Path

import click

from ranklake.commands.configured import configured, given
from ranklake.commands.options import dask_option, every_option, lake_option, spool_option
from ranklake.flows.serving.environment import adopt, check_host, database_url, url_of
from ranklake.flows.serving.home import Home
from ranklake.flows.settings import flow_settings
from ranklake.terminal import say_nothing
from ranklake.views.tell import tell

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
    help="Folder for Prefect's database and what else it keeps; for this user alone.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option(
    "--database",
    metavar="REFERENCE",
    default="",
    help="PostgreSQL in place of SQLite: env:NAME or file:/path of an address such as postgresql+asyncpg://…",
)
@every_option
@click.pass_context
def up(ctx: click.Context, home: Path, host: str, port: int, database: str, every_s: int) -> None:
    """Serve all deployments here: a local Prefect server with its UI, and a worker that runs what is due.

    Goes on until Ctrl-C or SIGTERM, and exits 0; runs in flight are cancelled, and the next ones go on from there. A
    server or worker that dies is started again. One process a home.
    """
    found = configured(ctx)
    address = database_url(database)
    check_host(host, os.environ)
    url = url_of(host, port)
    held = Home.take(home.expanduser(), url)
    try:
        settings = flow_settings(found, given(ctx), "" if found.file else str(held.empty_config()))
        lake = settings.lake or found.lake.uri
        adopt(held.folder, url)
        from ranklake.flows.serving.up import Plan, serve

        serve(Plan(held.folder, host, port, address, settings, lake, every_s), _say)
    finally:
        held.release()


def _say(line: str) -> None:
    """Tell a line. What is served goes on where nobody can be told: the reader left, as `tee` does, or a disk is full.

    Ctrl-C reaches both ends of a pipe, and whoever reads may be gone first.
    """
    try:
        tell(line)
    except BrokenPipeError:
        say_nothing()
    except OSError:
        return
