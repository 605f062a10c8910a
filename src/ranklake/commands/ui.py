"""``ranklake ui``."""

import click
import uvicorn

from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.locations import planned_root
from ranklake.commands.completing import complete_roles
from ranklake.commands.context import noted_role_of, role_of, with_context
from ranklake.commands.options import lake_option
from ranklake.commands.sharing import is_loopback
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.ui.app import host_name, ui_app
from ranklake.ui.live import LiveRuns
from ranklake.ui.pages import Pages
from ranklake.ui.viewers import Everybody, remembered
from ranklake.views.tell import tell

PORT = 8412
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option(
    "--role",
    shell_complete=complete_roles,
    help="Show what this role, of the file that [sql] roles in ranklake.toml names, sees.",
)
@lake_option
@with_context
def ui(context: Context, host: str, port: int, role: str | None) -> None:
    """Serve the pages of the report from the lake as it is now, to a browser on this machine, until Ctrl-C.

    Pages are made when somebody looks, and kept while no table changes. Nothing is written.
    """
    if not is_loopback(host):
        hint = "leave --host out; 'ranklake report' writes pages for a bucket"
        raise RanklakeError("whoever reaches that address could read the lake", where="--host", hint=hint)
    lake = context.open_lake()
    noted_role_of(context, lake, role)
    viewers = Everybody(remembered(lambda: role_of(context, context.open_lake(), role)))
    capture = context.config.capture
    live = LiveRuns(planned_root(context.config.spool.local), SealingKeys(capture.encryption_key, capture.signing_key))
    app = ui_app(Pages(context), viewers, _LOOPBACK | {host_name(host)}, live)
    shown = f"[{host}]" if ":" in host else host
    tell(f"serving at http://{shown}:{port}/", err=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=1,  # pages that listen do so for ever
    )
