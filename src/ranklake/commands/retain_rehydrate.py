"""``ranklake retain rehydrate``: restore archived rows for some days, with another person's approval."""

import getpass
from datetime import UTC, datetime

import click

from ranklake.commands.approvals import SigningOptions, approval_command, mode_facts, signing_options, tell_mode
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, day_of, json_option, lake_option
from ranklake.context import Context
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.archive.register import Archive, examine
from ranklake.retention.archive.register import archives as known_archives
from ranklake.retention.archive.rehydrated import rehydrated_archives
from ranklake.retention.archive.rehydration import (
    REHYDRATIONS,
    Rehydration,
    WaitingFiles,
    end,
    needs_approval,
    propose,
    register,
    select_archives,
    write_down,
)
from ranklake.retention.archive.rehydration import approve as approve_rehydration
from ranklake.retention.archive.rehydration import rehydrate as bring_back
from ranklake.retention.proposals.identities import PROPOSE
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_COLUMNS = (
    *map(TextColumn, ("archive", "table", "partition")),
    *numbers(("rows", "bytes", "files")),
    *map(TextColumn, ("  class", "archived", "where")),
)


@click.group(cls=Group)
def archives() -> None:
    """List and verify archived ranges."""


@archives.command("list")
@click.option("--table", metavar="TABLE", help="Of this table; default: of all.")
@lake_option
@json_option
@with_context
def list_archives(context: Context, table: str | None, *, as_json: bool) -> None:
    """List archived ranges: rows that were moved out of the lake and can be restored."""
    result = known_archives(context.open_lake().tables, table)
    if as_json:
        show_json([one.plain() for one in result])
        return
    if not result:
        tell("nothing is archived")
        return
    tell(*table_lines(_COLUMNS, [_line(one) for one in result]))
    size = size_text(sum(one.bytes for one in result))
    tell(f"{counted(len(result), 'archive')}, {counted(sum(one.rows for one in result), 'row')}, {size}")


@archives.command()
@click.option("--table", metavar="TABLE", help="Of this table; default: of all.")
@lake_option
@json_option
@with_context
def verify(context: Context, table: str | None, *, as_json: bool) -> int:
    """Read every archived file again and compare its digest; exit 1 if one is damaged.

    Files in cold storage are not requested: only their sizes are compared, and they count as not read.
    """
    lake = context.open_lake()
    result = list(examine(lake.store, known_archives(lake.tables, table)))
    faults = [reason for one in result for reason in one.faults]
    if as_json:
        show_json({"is_sound": not faults, "archives": [one.plain() for one in result]})
        return 1 if faults else 0
    for reason in faults:
        tell(reason)
    unread = sum(one.unread for one in result)
    summary = f"{counted(len(result), 'archive')}: {counted(sum(one.files for one in result), 'file')} sound"
    cold = f", {counted(unread, 'file')} in cold storage not read" if unread else ""
    tell(f"{summary}{cold}, {len(faults)} damaged")
    return 1 if faults else 0


def _line(archive: Archive) -> tuple[str, ...]:
    when = "" if archive.archived is None else f"{archive.archived:%Y-%m-%d}"
    counts = (f"{archive.rows:,}", f"{archive.bytes:,}", f"{archive.files:,}")
    where = (f"  {archive.storage_class or '-'}", when, redact_uri(archive.uri))
    return (archive.archive, archive.table, str(archive.partition_date), *counts, *where)


@click.group(cls=Group)
def rehydrate() -> None:
    """Restore archived rows until a day: one person proposes it, another approves it.

    They are stored beside the tables, and queried with 'ranklake sql --rehydrated'.
    """


@rehydrate.command()
@click.argument("table", metavar="TABLE")
@click.option("--from", "first", required=True, metavar="DATE", help="First date to restore.")
@click.option("--to", "last", required=True, metavar="DATE", help="Last date to restore.")
@click.option("--until", required=True, metavar="DATE", help="First day without the rows.")
@click.option("--reason", metavar="TEXT", help="Reason; recorded in the audit log.")
@click.option("--by", metavar="NAME", help="Who proposes, and so may not approve; kept in the audit log.")
@signing_options
@lake_option
@json_option
@with_context
def plan(  # noqa: PLR0913 - one parameter an option
    context: Context,
    table: str,
    first: str,
    last: str,
    until: str,
    reason: str | None,
    by: str | None,
    *,
    signature_options: SigningOptions,
    as_json: bool,
) -> None:
    """Propose to restore archived rows of TABLE."""
    lake = context.open_lake()
    selected = select_archives(lake.tables, table, day_of(first, "--from"), day_of(last, "--to"))
    result = write_down(lake, selected, day_of(until, "--until"), by or getpass.getuser(), reason)
    if signature_options.text_only:
        signature_options.print_statement(lake, REHYDRATIONS, result.name, PROPOSE, by)
        return
    propose(lake, result, signature_options.who(lake, "ranklake retain rehydrate plan", by), signature_options.signing)
    asks = needs_approval(selected, context.policies(lake))
    if as_json:
        show_json(
            {**result.plain(), "needs_approval": asks, "rows": sum(one.rows for one in selected), **mode_facts(lake)}
        )
        return
    waits = asks and result.approved is None
    to_approve = lake.config.approvals.by_somebody(REHYDRATIONS.to_approve(result.name))
    then = to_approve if waits else REHYDRATIONS.to_apply(result.name)
    rows = counted(sum(one.rows for one in selected), "row")
    tell(f"{result.name}: {rows} of {counted(len(selected), 'archive')}; then: {then}")
    tell_mode(lake)


rehydrate.add_command(
    approval_command(
        REHYDRATIONS,
        approve_rehydration,
        "Approve that archived rows come back. Its author may not.",
        metavar="REHYDRATION",
        then=lambda rehydration, _named: f"bring them back with 'ranklake retain rehydrate apply {rehydration.name}'",
        plain=Rehydration.plain,
    )
)


@rehydrate.command()
@click.argument("name", metavar="REHYDRATION")
@click.option("--by", metavar="NAME", help="Who restores them; default: the account that runs this.")
@click.option(
    "--wait-s",
    default=0,
    show_default=True,
    type=click.IntRange(0, 7 * 86_400),
    help="How long to wait for files in cold storage, in seconds; all are requested at once.",
)
@lake_option
@json_option
@with_context
def apply(context: Context, name: str, by: str | None, wait_s: int, *, as_json: bool) -> int:
    """Restore the rows of an approved REHYDRATION, with today's names, types and units.

    Files in cold storage are requested first; exits 1 while some are not available: run it again later.
    """
    lake = context.open_lake()
    result = bring_back(lake, name, by or getpass.getuser(), context.policies(lake), wait_s=wait_s)
    if isinstance(result, WaitingFiles):
        if as_json:
            show_json({"rehydration": name, "is_back": False, "files_asked_for": result.files})
        else:
            tell(f"{name}: {counted(result.files, 'file')} asked for from cold storage; run it again in some hours")
        return 1
    if as_json:
        show_json({"rehydration": name, "is_back": True, "rows": result.rows, "until": result.until.isoformat()})
    else:
        tell(f'{name}: {counted(result.rows, "row")} back until {result.until}: ranklake sql --rehydrated "SELECT …"')
    return 0


@rehydrate.command("end")
@click.argument("name", metavar="REHYDRATION")
@click.option("--by", metavar="NAME", help="Who ends it; default: the account that runs this.")
@lake_option
@with_context
def end_(context: Context, name: str, by: str | None) -> None:
    """Remove restored rows before their day. The archive keeps them."""
    gone = end(context.open_lake(), name, by or getpass.getuser())
    tell(f"{name}: {counted(gone, 'file')} deleted" if gone else f"{name}: nothing of it is back")


@rehydrate.command("list")
@lake_option
@json_option
@with_context
def list_rehydrated(context: Context, *, as_json: bool) -> None:
    """List proposed and restored archived rows."""
    lake = context.open_lake()
    results, back = register(lake).values(), {one.name: one for one in rehydrated_archives(lake.store)}
    today = datetime.now(UTC).date()
    if as_json:
        rows = {name: one.rows for name, one in back.items() if today < one.until}
        show_json([{**one.plain(), "rows_back": rows.get(one.name), **mode_facts(lake)} for one in results])
        return
    for item in results:
        here = back.get(item.name)
        is_back = here is not None and today < here.until
        state = f"{counted(here.rows, 'row')} back" if here is not None and is_back else "not back"
        tell(f"{item.name}  {item.state:<8}  until {item.until}  {counted(len(item.archives), 'archive')}, {state}")
    if not results:
        tell("nothing was proposed to come back")
    tell_mode(lake)
