"""``ranklake restore`` and ``ranklake drill``: a lake from its backup, and the proof beforehand that it would come."""

from datetime import UTC, datetime
from pathlib import Path

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.history import recorded_drill
from ranklake.retention.backup.place import unlock
from ranklake.retention.backup.restore import choose
from ranklake.retention.backup.restore import restore as restore_backup
from ranklake.retention.proposals.identities import account_by
from ranklake.segments.storage_options import uri_fault
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell
from ranklake.views.words import size_text


def local_or_uri(uri: str) -> str:
    """Return a URI as it is, and a folder with its whole path, so that it means the same elsewhere.

    Raises `RanklakeError` for what is neither.
    """
    fault, hint = uri_fault(uri)
    if fault:
        raise RanklakeError(fault, where=redact_uri(uri), hint=hint)
    return uri if "://" in uri else str(Path(uri.removeprefix("file:")).absolute())


def _moment(_ctx: click.Context, _parameter: click.Parameter, text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise click.BadParameter(f"{text!r} is no time; write 2026-03-01T14:30, which is UTC") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


@click.command()
@click.argument("uri", metavar="URI")
@click.option("--to", "target", required=True, metavar="LAKE", help="Empty place where the lake is to be.")
@click.option("--backup", "number", type=click.IntRange(min=1), metavar="NUMBER", help="Backup; default: the newest.")
@click.option("--at", metavar="TIME", callback=_moment, help="The last backup that was made by then (ISO 8601, UTC).")
@click.option("--table", "tables", multiple=True, metavar="TABLE", help="Only this table. May be given often.")
@click.option("--by", metavar="NAME", help="Who restores it; default: the account that runs this.")
@json_option
@with_context
def restore(
    context: Context,
    uri: str,
    target: str,
    number: int | None,
    at: datetime | None,
    tables: tuple[str, ...],
    by: str | None,
    *,
    as_json: bool,
) -> None:
    """Restore the lake from its backups at URI, into an empty place.

    A lake that is there is never written over. A backup that would bring back a person who was erased since is refused,
    and so is one that would bring back what retention removed before the last [backup] keep_days. With --table the
    result is a lake of its own, to be read, and no part of the other. Its audit log gets a row of who restored what.
    Cut off, run it again: it goes on.
    """
    if number is not None and at is not None:
        raise click.UsageError("--backup names a backup, and --at a time: give one of them")
    config = context.lake_config
    place = unlock(context.place(local_or_uri(uri)), config.backup.key)
    chosen = choose(place, number, at, config.backup.keep_days)
    actor = by or account_by(config.approvals)
    result = restore_backup(place, chosen, context.place(local_or_uri(target)), tables, actor)
    if as_json:
        made = {"backup": chosen.number, "created": chosen.created.isoformat(), "lake": redact_uri(result.uri)}
        made["undone"] = list(result.undone)
        show_json({**made, "files": result.files, "bytes": result.written_bytes})
        return
    tell(
        f"restored backup {chosen.number}, as of {chosen.created:%Y-%m-%d %H:%M:%S} UTC, "
        f"into {redact_uri(result.uri)}: {counted(result.files, 'file')}, {size_text(result.written_bytes)}"
    )
    if result.undone:
        tell(f"what retention removed since is back ({', '.join(result.undone)}); next: 'ranklake retain plan'")
    if not tables:
        tell(
            "next: 'ranklake ingest' brings in what the spool still has, and 'ranklake status' proves that all is there"
        )


def _lake(context: Context) -> Lake | None:
    """Return the configured lake; None where it is lost, or none is configured."""
    try:
        return context.open_lake()
    except RanklakeError:
        return None


@click.command()
@click.argument("uri", metavar="URI")
@json_option
@with_context
def drill(context: Context, uri: str, *, as_json: bool) -> int:
    """Restore the newest backup at URI into a scratch folder, verify it, and measure how long that takes.

    Compares every byte with its digest, every table with the backup, and verifies the audit log and the counts of
    rows. RPO is the age of the backup, RTO the time until the lake was verified; both are kept beside the backups,
    and in the lake's table backups where that is there.
    Exits 1 if anything differs.
    """
    config = context.lake_config
    place = unlock(context.place(local_or_uri(uri)), config.backup.key)
    result = recorded_drill(_lake(context), place, config)
    if as_json:
        show_json(result.plain())
        return 1 if result.faults else 0
    for fault in result.faults:
        tell(fault)
    state = f"{len(result.faults)} faults" if result.faults else "sound"
    tell(
        f"backup {result.backup}: {state}; {counted(result.tables, 'table')}, {counted(result.rows, 'row')}, "
        f"{counted(result.files, 'file')}, {size_text(result.size_bytes)}",
        f"RPO {result.rpo_s:,.0f} s, RTO {result.rto_s:,.1f} s",
    )
    return 1 if result.faults else 0
