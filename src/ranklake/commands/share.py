"""``ranklake share``."""

from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import dask_option, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.query.roles import Role, RoleError
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.store import Store
from ranklake.printable import counted
from ranklake.retention.proposals.identities import doer
from ranklake.retention.shares.place import ShareError
from ranklake.retention.shares.refresh import RefreshResult
from ranklake.retention.shares.register import Share, shares
from ranklake.retention.shares.sharing import DropResult, KeepResult, end, keep
from ranklake.retention.shares.sharing import share as share_with
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell

_COLUMNS = tuple(map(TextColumn, ("role", "place", "since")))
_EXAMPLE = "Example: ranklake share data-scientist --to s3://telemetry-shares"


@click.command(epilog=_EXAMPLE)
@click.argument("role", metavar="[ROLE]", required=False)
@overriding("--to", place="shares.to", metavar="URI", help="Where: a folder or URI, below which ROLE has a prefix.")
@overriding(
    "--roles",
    place="sql.roles",
    metavar="FILE",
    type=click.Path(path_type=Path, dir_okay=False),
    help="File of roles; default: [sql] roles in ranklake.toml.",
)
@click.option("--all", "every", is_flag=True, help="Bring all shares up to date, and drop those whose role is gone.")
@click.option("--drop", "dropping", is_flag=True, help="Delete the copies of ROLE: there, or wherever they are.")
@click.option("--reason", metavar="TEXT", help="Why they go; kept in the audit trail.")
@click.option("--by", metavar="NAME", help="Who does it, for the audit trail; default: the account that runs this.")
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

    Whoever may read that prefix sees what `ranklake sql --role` shows, in any engine, and needs no right in the lake.
    Each call brings the copies up to date at the cost of what changed. Without ROLE, list shares.
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
            done = keep(lake, roles, actor, workers, wanted, refusal=context.share_refusal(lake), progress=progress)
        else:
            result, places = _role(roles, role), _places(lake.store, context, role)
            if why := context.share_refusal(lake)(role):
                hint = f"ranklake grant {role} --to NAME --until 30d --reason TEXT, and have it approved"
                raise ShareError(why, where=role, hint=hint)
            done = KeepResult(tuple(share_with(lake, result, to, actor, workers, progress) for to in places), ())
    if as_json:
        show_json(done.plain() if role is None else [one.plain() for one in done.refreshed])
        return
    for item in done.dropped:
        _show_dropped(item)
    for refreshed in done.refreshed:
        _show(refreshed)


def _role(roles: dict[str, Role], name: str) -> Role:
    if name not in roles:
        raise RoleError(f"unknown role {name!r}", where="ROLE", hint=did_you_mean(name, roles))
    return roles[name]


def _places(store: Store, context: Context, role: str) -> list[str]:
    """Return the place that is named, or else those where the role is shared."""
    if context.config.shares.to:
        return [context.config.shares.to]
    known = [one.uri.removesuffix(f"/{role}") for one in shares(store) if one.role == role]
    if not known:
        hint = "pass --to URI, or write to under [shares] in ranklake.toml"
        raise ShareError(f"nobody says where to share {role}", where="--to", hint=hint)
    return known


def _shares_to_drop(store: Store, context: Context, role: str | None) -> list[Share]:
    """Return the shares of a role that are to go."""
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
