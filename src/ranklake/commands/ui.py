"""``ranklake ui``."""

from functools import partial

import click
import uvicorn

from ranklake.capture.sealing.keys import SealingKeys
from ranklake.capture.spool.locations import planned_root
from ranklake.commands.completion import complete_roles
from ranklake.commands.context import noted_role_of, role_of, with_context
from ranklake.commands.options import lake_option
from ranklake.commands.share import is_loopback, refusal_of
from ranklake.commands.spool_rows import send_rows
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.query.usage import LoggedQuery, note
from ranklake.lake.store.lake import Lake
from ranklake.retention.shares.server.links import sharing_keys, view_purpose
from ranklake.ui.annotate import Annotator
from ranklake.ui.app import ui_app
from ranklake.ui.ask import Asker
from ranklake.ui.guard import FormTokens, host_name
from ranklake.ui.live import LiveRuns
from ranklake.ui.pages import Pages
from ranklake.ui.proxy_login import ProxyViewers
from ranklake.ui.saved import SavedPages
from ranklake.ui.viewers import Everybody, NamedRoles, TokenViewers, Viewers, remembered
from ranklake.views.tell import tell

PORT = 8412
_MOST_AT_ONCE = 2_000
"""Most connections and requests; each viewer who follows a run holds one."""
_LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})


@click.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=PORT, show_default=True, type=click.IntRange(1, 65535), help="Port to listen at.")
@click.option(
    "--role",
    shell_complete=complete_roles,
    help="Show what this role, of the file that [sql] roles in ranklake.toml names, sees.",
)
@click.option(
    "--name",
    "names",
    multiple=True,
    metavar="HOST",
    help="Host name of the server for others, who then need an address of 'ranklake sharing view', or a proxy.",
)
@click.option(
    "--write",
    is_flag=True,
    help="Let viewers write names, tags and notes of runs, and saved views; default: read-only.",
)
@click.option("--tls-cert", metavar="PEM", help="Certificate; others than this machine are served by TLS alone.")
@click.option("--tls-key", metavar="PEM", help="Its key.")
@lake_option
@with_context
def ui(
    context: Context,
    *,
    host: str,
    port: int,
    role: str | None,
    names: tuple[str, ...],
    write: bool,
    tls_cert: str | None,
    tls_key: str | None,
) -> None:
    """Serve the pages of the report from the current lake, to a browser on this machine, until Ctrl-C.

    Pages are made on demand, and cached until a table changes. Writes nothing without --write. With --host or --name it
    serves other machines: viewers need an address of 'ranklake sharing view', or a proxy of [ui] in ranklake.toml, and
    see what their role sees.
    """
    tls = {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key} if tls_cert and tls_key else {}
    if not is_loopback(host) and not tls:
        hint = "give --tls-cert and --tls-key, or leave --host out and put a proxy with TLS before it (--name)"
        raise RanklakeError("pages and tokens would pass in clear where others can listen", where="--host", hint=hint)
    if (tls_cert or tls_key) and not tls:
        raise click.UsageError("--tls-cert and --tls-key go together")
    proxied = context.config.ui
    is_shared = bool(names) or not is_loopback(host) or bool(proxied.user_header)
    if is_shared and role is not None:
        raise click.UsageError("whoever looks has a role of their own: leave --role out")
    lake = context.open_lake()
    viewers: Viewers
    if is_shared:
        viewers = _named_viewers(context, lake)
    else:
        noted_role_of(context, lake, role)
        viewers = Everybody(remembered(lambda: role_of(context, context.open_lake(), role)))
    capture = context.config.capture
    live = LiveRuns(planned_root(context.config.spool.local), SealingKeys(capture.encryption_key, capture.signing_key))
    hosts = frozenset(map(host_name, (host, *names))) | (_LOOPBACK if is_loopback(host) else frozenset())
    if write:
        context.config.uri_of("spool")  # or report what is missing
    tokens = FormTokens()
    annotator = Annotator(partial(send_rows, context), tokens) if write else None
    saved = SavedPages(context, tokens)
    app = ui_app(Pages(context), viewers, hosts, live, Asker(context, tokens), saved, annotator)
    shown = f"[{host}]" if ":" in host else host
    tell(f"serving at {'https' if tls else 'http'}://{shown}:{port}/", err=True)
    uvicorn.run(
        app,
        host=host,
        port=port,
        access_log=False,
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=1,  # pages with live updates keep their connections open
        limit_concurrency=_MOST_AT_ONCE,
        proxy_headers=False,  # addresses and schemes in request headers are not trusted
        **tls,  # type: ignore[arg-type]
    )


def _named_viewers(context: Context, lake: Lake) -> Viewers:
    """Return how viewers are identified: by the header of a proxy, by a token, or either."""
    config = context.config
    roles = NamedRoles(refusal_of(context, lake), partial(_role, context), partial(_note, context, lake))
    purpose = view_purpose(lake.store.marker())
    if not config.ui.user_header:
        return TokenViewers(sharing_keys(config.shares.key), roles, purpose)
    tokens = TokenViewers(sharing_keys(config.shares.key), roles, purpose) if config.shares.key else None
    return ProxyViewers(config.ui.user_header, config.ui.proxies, config.ui.roles_of_users, roles, tokens)


def _role(context: Context, name: str) -> Role:
    """Return the current definition of a role. Raises `RoleError`."""
    roles = context.roles(context.open_lake().catalog)
    if name not in roles:
        raise RoleError(f"unknown role {name!r}")
    return roles[name]


def _note(context: Context, lake: Lake, role: str, who: str) -> None:
    """Record the use of a role in the query log, if it is kept."""
    if context.config.query.log and (reason := note(lake.store, LoggedQuery(who, role, {}, {}))):
        tell(f"the query log could not be written ({reason})", err=True)
