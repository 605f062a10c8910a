"""``ranklake share`` and ``ranklake sharing``: masked copies of tables for roles, and the server that serves them."""

import ipaddress
import math
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click
import uvicorn

from ranklake.commands.context import with_context
from ranklake.commands.grants import FutureTime
from ranklake.commands.options import Command, Group, dask_option, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.audit import clock
from ranklake.lake.audit.trail import record
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.grants.grant import NAME
from ranklake.retention.grants.use import NotGrantedError, current_grant
from ranklake.retention.proposals.identities import doer, unsigned_note
from ranklake.retention.shares.place import ShareError
from ranklake.retention.shares.refresh import RefreshResult
from ranklake.retention.shares.register import Share, shares
from ranklake.retention.shares.server.app import Refusal, sharing_app
from ranklake.retention.shares.server.links import PROFILE, Links, seal_token, sharing_keys, view_purpose
from ranklake.retention.shares.sharing import DropResult, KeepResult, end, keep
from ranklake.retention.shares.sharing import share as share_with
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import progress_bar, tell

ENDPOINT: Final = "http://127.0.0.1:8411/delta-sharing"
"""Default address of the server."""

LINK_ACTION = "share.link"


def handed_out(ends: str) -> Callable[[Command], Command]:
    """Declare ``--to``, ``--until``, ``--endpoint`` and ``--by``; `ends` are examples for the help."""
    options = (
        click.option(
            "--to", metavar="NAME", required=True, callback=_name, help="Recipient; recorded in the audit log."
        ),
        click.option(
            "--until",
            type=FutureTime(),
            metavar="TIME",
            required=True,
            callback=_to_come,
            help=f"Its end: {ends} (UTC).",
        ),
        click.option(
            "--endpoint", metavar="URL", callback=_address, help=f"Address of the server; default: {ENDPOINT}."
        ),
        click.option("--by", metavar="NAME", help="Who makes it; default: the account that runs this."),
    )

    def declare(command: Command) -> Command:
        for option in reversed(options):
            command = option(command)
        return command

    return declare


def _name(_context: click.Context, _option: click.Parameter, to: str) -> str:
    """Return the recipient, as the audit log names people."""
    name = " ".join(to.split())
    if not NAME.fullmatch(name):
        raise RanklakeError("nobody gets it", where="--to", hint="name an account, a person or a team, without #")
    return name


def _address(_context: click.Context, _option: click.Parameter, url: str | None) -> str:
    if not url:
        return ENDPOINT
    try:
        parts = urlsplit(url)
        is_one = parts.scheme in {"http", "https"} and bool(parts.hostname) and not (parts.query or parts.fragment)
    except ValueError:
        is_one = False
    if not is_one:
        raise RanklakeError(f"{url!r} is no address of a server", where="--endpoint", hint=f"write one like {ENDPOINT}")
    return url.rstrip("/")


def _to_come(_context: click.Context, _option: click.Parameter, until: datetime) -> datetime:
    if until <= clock.now():
        raise RanklakeError(f"{until:%Y-%m-%d %H:%M} UTC is past", where="--until", hint="name a time to come")
    return until


def links_of(context: Context, lake: Lake) -> Links:
    """Return the links to artifacts of a lake, under the configured roles and places."""
    return Links(lake, lambda: context.roles(lake.catalog), context.config.artifacts.allow)


@click.command()
@click.argument("role", metavar="ROLE")
@click.argument("artifact", metavar="NAME")
@click.option("--run", default="", help="Run that made it; default: the last run with an artifact of this name.")
@handed_out("8h, 7d, a time")
@lake_option
@json_option
@with_context
def link(  # noqa: PLR0913 - one parameter an option
    context: Context,
    role: str,
    artifact: str,
    run: str,
    to: str,
    until: datetime,
    endpoint: str,
    by: str | None,
    *,
    as_json: bool,
) -> None:
    """Print addresses, one per file, for reading an artifact that a role sees, valid until a time.

    Its bytes are verified first. If the role sees artifacts.uri and the store can sign addresses, they lead to the
    store; else to 'ranklake sharing serve'.
    """
    lake = context.open_lake()
    if context.config.sql.grants:
        current_grant(lake, role, to)
    keys = partial(sharing_keys, context.config.shares.key)
    row, result = links_of(context, lake).make(keys, role, artifact, run, to, until, endpoint)
    facts = {name: row[name] for name in ("run", "attempt", "name", "kind", "sha256")}
    details = {"role": role, "until": until.isoformat(), **facts, "files": len(result), "by": result[0].by}
    record(lake, doer(lake, by), LINK_ACTION, to, None, {**details, **unsigned_note(lake)})
    if as_json:
        show_json({**facts, "until": until.isoformat(), "links": [one.plain() for one in result]})
        return
    tell(f"{row['name']} of run {row['run']}, {row['bytes'] or 0:,} bytes at {redact_uri(row['uri'])}", err=True)
    for item in result:
        tell(item.url)


ACTION = "share.profile"
_PORT = 8411
_ASKED_S = 30.0
"""How long the state of a grant is cached."""


@click.group(cls=Group)
def sharing() -> None:
    """Serve shares by the Delta Sharing protocol, and make profiles and links for their readers."""


sharing.add_command(link)


@sharing.command()
@click.argument("role", metavar="ROLE")
@handed_out("30d, 8h, a date, a time")
@lake_option
@with_context
def profile(context: Context, role: str, to: str, until: datetime, endpoint: str, by: str | None) -> None:
    """Print a profile for reading a role's share until a time. Keep it in a file that only the recipient can read."""
    lake = context.open_lake()
    known = {one.role for one in shares(lake.store)}
    if role not in known:
        hint = did_you_mean(role, known) or f"share it first: ranklake share {role} --to URI"
        raise RanklakeError(f"{role} is not shared", where="ROLE", hint=hint)
    if context.config.sql.grants:
        current_grant(lake, role, to)
    keys = sharing_keys(context.config.shares.key)
    facts = {"role": role, "to": to, "until": until.isoformat()}
    details = {"role": role, "until": facts["until"], **unsigned_note(lake)}
    record(lake, doer(lake, by), ACTION, to, None, details)
    body = {
        "shareCredentialsVersion": 1,
        "endpoint": endpoint,
        "bearerToken": seal_token(keys, PROFILE, facts),
        "expirationTime": until.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
    }
    show_json(body)


VIEW_ACTION = "ui.view"
UI_ADDRESS = "http://127.0.0.1:8412"


@sharing.command()
@click.argument("role", metavar="ROLE")
@handed_out("30d, 8h, a date, a time")
@lake_option
@with_context
def view(context: Context, role: str, to: str, until: datetime, endpoint: str, by: str | None) -> None:
    """Print an address for viewing the pages of 'ranklake ui' as a role, valid until a time.

    Everybody who has the address sees what the role sees, so give it to one person only.
    """
    lake = context.open_lake()
    if role not in (known := context.roles(lake.catalog)):
        raise RoleError(f"unknown role {role!r}", where="ROLE", hint=did_you_mean(role, known))
    known[role].refuse_ended(datetime.now(UTC).date())
    if context.config.sql.grants:
        current_grant(lake, role, to)
    token = seal_token(
        sharing_keys(context.config.shares.key),
        view_purpose(lake.store.marker()),
        {"role": role, "to": to, "until": until.isoformat()},
    )
    record(
        lake, doer(lake, by), VIEW_ACTION, to, None, {"role": role, "until": until.isoformat(), **unsigned_note(lake)}
    )
    tell(f"{UI_ADDRESS if endpoint == ENDPOINT else endpoint}/login?token={token}")


@sharing.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at.")
@click.option("--port", default=_PORT, show_default=True, type=click.IntRange(0, 65535), help="Port to listen at.")
@click.option("--tls-cert", metavar="PEM", help="Certificate; other machines are served over TLS only.")
@click.option("--tls-key", metavar="PEM", help="Its key.")
@lake_option
@with_context
def serve(context: Context, host: str, port: int, tls_cert: str | None, tls_key: str | None) -> None:
    """Serve all shares of the lake to holders of profiles, until Ctrl-C."""
    if not is_loopback(host) and not (tls_cert and tls_key):
        message = "tokens would pass in clear where others can listen"
        raise RanklakeError(message, where="--host", hint="give --tls-cert and --tls-key, or leave --host out")
    if bool(tls_cert) != bool(tls_key):
        raise click.UsageError("--tls-cert and --tls-key go together")
    lake = context.open_lake()
    links = links_of(context, lake) if context.config.sql.roles else None
    app = sharing_app(lake.store, sharing_keys(context.config.shares.key), refusal_of(context, lake), links)
    tell(f"serving at {'https' if tls_cert else 'http'}://{host}:{port}/delta-sharing", err=True)
    tls = {"ssl_certfile": tls_cert, "ssl_keyfile": tls_key} if tls_cert else {}
    uvicorn.run(app, host=host, port=port, access_log=False, log_level="warning", **tls)  # type: ignore[arg-type]


def is_loopback(host: str) -> bool:
    """Whether an address or name is a loopback address of this machine."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def refusal_of(context: Context, lake: Lake) -> Refusal:
    """Return a function that returns why a role's share may not be read: it has ended, or it needs a grant."""
    known: dict[tuple[str, str], tuple[float, str]] = {}

    def refusal(role: str, who: str) -> str:
        at, reason = known.get((role, who), (-math.inf, ""))
        if time.monotonic() - at >= _ASKED_S:
            reason = _why_not(context, lake, role, who)
            known[role, who] = (time.monotonic(), reason)
        return reason

    return refusal


def _why_not(context: Context, lake: Lake, role: str, who: str) -> str:
    try:
        if context.config.sql.roles:
            roles = context.roles(lake.catalog)
            if role not in roles:
                return "the role is gone"
            roles[role].refuse_ended(datetime.now(UTC).date())
        if context.config.sql.grants:
            current_grant(lake, role, who)
    except (NotGrantedError, RoleError) as error:
        return error.what
    return ""


_COLUMNS = tuple(map(TextColumn, ("role", "place", "since")))
_EXAMPLE = "Example: ranklake share data-scientist --to s3://telemetry-shares"


@click.command(epilog=_EXAMPLE)
@click.argument("role", metavar="[ROLE]", required=False)
@overriding("--to", place="shares.to", metavar="URI", help="Folder or URI, below which ROLE has a prefix.")
@overriding(
    "--roles",
    place="sql.roles",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of roles; default: [sql] roles in ranklake.toml.",
)
@click.option("--all", "every", is_flag=True, help="Update all shares, and delete those of removed roles.")
@click.option("--drop", "dropping", is_flag=True, help="Delete the copies of ROLE: at --to, or everywhere.")
@click.option("--reason", metavar="TEXT", help="Reason for the deletion; recorded in the audit log.")
@click.option("--by", metavar="NAME", help="Who does it, for the audit log; default: the account that runs this.")
@lake_option
@dask_option
@json_option
@with_context
def share(
    context: Context,
    role: str | None,
    reason: str | None,
    by: str | None,
    *,
    every: bool,
    dropping: bool,
    as_json: bool,
) -> None:
    """Keep masked, filtered copies of what a role sees, as Delta tables under a prefix of its own.

    Everybody who can read that prefix sees the results of `ranklake sql --role`, in any engine, without access to the
    lake. Each call updates the copies, reading only what changed. Without ROLE, list shares.
    """
    lake = context.open_lake()
    if role is None and not every:
        _list(lake.store, as_json=as_json)
        return
    if role is not None and every:
        raise click.UsageError("name a ROLE, or --all")
    actor = doer(lake, by)
    if dropping:
        _drop(lake, _shares_to_drop(lake.store, context, role), actor, reason or "dropped by hand", as_json=as_json)
        return
    roles = context.roles(lake.catalog)
    with context.workers() as workers, progress_bar("sharing") as progress:
        if role is None:
            wanted = context.config.wanted_shares()
            results = keep(lake, roles, actor, workers, wanted, refusal=context.share_refusal(lake), progress=progress)
        else:
            result, places = _role(roles, role), _places(lake.store, context, role)
            if why := context.share_refusal(lake)(role):
                hint = f"ranklake grant {role} --to NAME --until 30d --reason TEXT, and have it approved"
                raise ShareError(why, where=role, hint=hint)
            results = KeepResult(tuple(share_with(lake, result, to, actor, workers, progress) for to in places), ())
    if as_json:
        show_json(results.plain() if role is None else [one.plain() for one in results.refreshed])
        return
    for item in results.dropped:
        _show_dropped(item)
    for refreshed in results.refreshed:
        _show(refreshed)


def _role(roles: dict[str, Role], name: str) -> Role:
    if name not in roles:
        raise RoleError(f"unknown role {name!r}", where="ROLE", hint=did_you_mean(name, roles))
    return roles[name]


def _places(store: Store, context: Context, role: str) -> list[str]:
    """Return the given place, else all places where the role is shared."""
    if context.config.shares.to:
        return [context.config.shares.to]
    known = [one.uri.removesuffix(f"/{role}") for one in shares(store) if one.role == role]
    if not known:
        hint = "pass --to URI, or write to under [shares] in ranklake.toml"
        raise ShareError(f"nobody says where to share {role}", where="--to", hint=hint)
    return known


def _shares_to_drop(store: Store, context: Context, role: str | None) -> list[Share]:
    """Return the shares of a role to delete."""
    to = context.config.shares.to
    uri = f"{context.place(to).address.rstrip('/')}/{role}" if to else ""
    mine = [one for one in shares(store) if one.role == role and uri in {"", one.uri}]
    if not mine:
        hint = did_you_mean(role or "", {one.role for one in shares(store)}) or "'ranklake share' lists what is shared"
        raise RanklakeError(f"{role} is not shared{' there' if to else ''}", where="ROLE", hint=hint)
    return mine


def _drop(lake: Lake, dropped: list[Share], by: str, why: str, *, as_json: bool) -> None:
    gone = [end(lake, one, by, why) for one in dropped]
    if as_json:
        show_json([one.plain() for one in gone])
        return
    for item in gone:
        _show_dropped(item)


def _list(store: Store, *, as_json: bool) -> None:
    known = shares(store)
    if as_json:
        show_json([{"share": one.name, "role": one.role, "uri": one.uri, "since": one.since} for one in known])
    elif not known:
        tell("nothing is shared; begin with: ranklake share ROLE --to URI")
    else:
        tell(*table_lines(_COLUMNS, [(one.role, one.uri, one.since) for one in known]))


def _show(done: RefreshResult) -> None:
    changed = [one for one in done.tables if one.is_changed]
    if not done.is_changed:
        tell(f"{done.share.role}: {counted(len(done.tables), 'table')} at {done.share.uri} up to date")
        return
    rows, files = sum(one.rows_added for one in changed), sum(one.files_removed for one in changed)
    tables = f"{len(changed)} of {counted(len(done.tables), 'table')}"
    gone = f"{counted(files, 'file')} taken out"
    tell(f"{done.share.role}: {counted(rows, 'row')} copied to {tables} at {done.share.uri}, {gone}")
    for table in done.taken_back:
        tell(f"{done.share.role}: {table} is not shared any more")


def _show_dropped(result: DropResult) -> None:
    tell(
        f"{result.share.role}: dropped from {result.share.uri} ({result.why}), {counted(result.files, 'file')} deleted"
    )
