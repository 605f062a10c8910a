"""``ranklake backup``, ``restore``, ``drill`` and ``repair``: copies of the lake elsewhere, and recovery."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, optional_lake
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.store.lake import Lake
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.backup import BackupResult
from ranklake.retention.backup.history import for_each_place, recorded_backup, recorded_drill
from ranklake.retention.backup.place import Backup, backups_of, unlock
from ranklake.retention.backup.restore import choose
from ranklake.retention.backup.restore import repair as repair_table
from ranklake.retention.backup.restore import restore as restore_backup
from ranklake.retention.proposals.identities import account_by
from ranklake.segments.storage_options import uri_fault
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text


def local_or_uri(uri: str) -> str:
    """Return a URI unchanged, and a folder as an absolute path, so that it means the same in every process.

    Raises `RanklakeError` if it is neither.
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
@click.option("--to", "target", required=True, metavar="LAKE", help="Empty place for the lake.")
@click.option("--backup", "number", type=click.IntRange(min=1), metavar="NUMBER", help="Backup; default: the newest.")
@click.option("--at", metavar="TIME", callback=_moment, help="Use the last backup before this time (ISO 8601, UTC).")
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

    An existing lake is never overwritten. A backup with data of a person who was erased since is refused, and so is one
    with data that retention removed more than [backup] keep_days ago. With --table the result is a separate, readable
    lake. Its audit log records who restored what. If it is interrupted, run it again: it resumes.
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
    """Return the configured lake; None if it is lost, or if none is configured."""
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

    Compares every byte with its digest, every table with the backup, and verifies the audit log and the counts of rows.
    RPO is the age of the backup, RTO the time until the lake was verified; both are stored beside the backups, and in
    the lake's table backups if it exists. Exits 1 if anything differs.
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


_COLUMNS = (*numbers(("backup",)), TextColumn("  made (UTC)"), *numbers(("tables", "rows", "files", "size")))


@click.command()
@click.argument("uri", metavar="[URI]", required=False)
@click.option(
    "--keep",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="Keep COUNT backups, this one included; delete older ones.",
)
@click.option("--list", "is_list", is_flag=True, help="Make no backup: list existing ones.")
@optional_lake("Lake to back up; default: the configured one.")
@json_option
@with_context
def backup(context: Context, uri: str | None, keep: int | None, *, is_list: bool, as_json: bool) -> int:
    """Back up the lake to URI, by default each of [backup] to. Only new files are copied.

    All tables are copied as of one moment. Earlier backups are deleted if they hold data of a person who was erased
    since, or data that retention removed more than [backup] keep_days ago. Exits 1 if a file of the lake is damaged. If
    it is interrupted, run it again.
    """
    places = [local_or_uri(uri)] if uri else list(context.lake_config.backup.to)
    if not places:
        raise click.UsageError("no place for backups: give a URI, or write to under [backup] in ranklake.toml")
    if is_list:
        _list(context, places, as_json=as_json)
        return 0
    lake = context.open_lake()
    results, failed = for_each_place(places, lambda place: recorded_backup(lake, place, keep or 0))
    if not results:
        _refuse_failed(places, failed)
    if as_json:
        show_json([{"uri": redact_uri(place), **_plain(result)} for place, result in results.items()])
    else:
        for place, result in results.items():
            _show(place, result)
    _refuse_failed(places, failed)
    return 1 if any(result.backup.damaged for result in results.values()) else 0


def _list(context: Context, places: list[str], *, as_json: bool) -> None:
    def look(uri: str) -> list[Backup]:
        return backups_of(unlock(context.place(uri), context.lake_config.backup.key))

    backups, failed = for_each_place(places, look)
    if not backups:
        _refuse_failed(places, failed)
    if as_json:
        show_json([{"uri": redact_uri(uri), **_facts(item)} for uri, items in backups.items() for item in items])
    else:
        for uri, items in backups.items():
            tell(f"{redact_uri(uri)}: {counted(len(items), 'backup')}")
            if items:
                tell(*table_lines(_COLUMNS, map(_cells, items)))
    _refuse_failed(places, failed)


def _refuse_failed(places: Sequence[str], failed: Mapping[str, Exception]) -> None:
    """Raise the error of the only place; if there are several, an error with a line per failed place."""
    if not failed:
        return
    for error in failed.values():
        if len(places) == 1 or not isinstance(error, RanklakeError | OSError):
            raise error
    first, *others = (_named(redact_uri(uri), error) for uri, error in failed.items())
    first.others = tuple(others)
    raise first


def _named(place: str, error: Exception) -> RanklakeError:
    text = str(error)
    return RanklakeError(text) if text.startswith(place) else RanklakeError(text, where=place)


def _show(uri: str, result: BackupResult) -> None:
    made = result.backup
    tell(
        f"backup {made.number}: {counted(len(made.tables), 'table')}, {counted(made.rows, 'row')} "
        f"as of {made.created:%Y-%m-%d %H:%M:%S} UTC, in {redact_uri(uri)}",
        f"copied {counted(result.objects, 'file')}, {size_text(result.copied_bytes)}, "
        f"of {counted(len(made.files), 'file')}, {size_text(made.size_bytes)}; "
        f"manifest {size_text(result.manifest_bytes)}",
    )
    if result.expired:
        names = ", ".join(map(str, result.expired))
        tell(f"deleted {counted(len(result.expired), 'backup')} ({names}): {size_text(result.freed_bytes)}")
    for path in made.damaged:
        tell(f"{path}: damaged, not backed up; find out more with 'ranklake status'")


def _facts(item: Backup) -> dict[str, Any]:
    head = {"backup": item.number, "created": item.created.isoformat(), "ranklake": item.ranklake}
    return {**head, "tables": len(item.tables), "rows": item.rows, "files": len(item.files), "bytes": item.size_bytes}


def _plain(result: BackupResult) -> dict[str, Any]:
    copied = {"copied_files": result.objects, "copied_bytes": result.copied_bytes}
    more = {"manifest_bytes": result.manifest_bytes, "deleted": list(result.expired), "freed_bytes": result.freed_bytes}
    return {**_facts(result.backup), **copied, **more, "damaged": list(result.backup.damaged)}


def _cells(item: Backup) -> tuple[str, ...]:
    facts = _facts(item)
    counts = (f"{facts[name]:,}" for name in ("tables", "rows", "files"))
    return (str(item.number), f"  {item.created:%Y-%m-%d %H:%M:%S}", *counts, size_text(item.size_bytes))


@click.command()
@click.argument("table", metavar="TABLE")
@click.argument("uri", metavar="URI")
@click.option("--by", metavar="NAME", help="Who repairs it; default: the account that runs this.")
@optional_lake("Lake to repair; default: the configured one.")
@json_option
@with_context
def repair(context: Context, table: str, uri: str, by: str | None, *, as_json: bool) -> int:
    """Restore lost log entries and data files of TABLE from the newest backup at URI.

    Nothing is overwritten. First stop everything that writes to the lake. Refused if data was removed from the lake
    since that backup, or if the table has a new log: then restore the whole lake. Exits 1 if files are still missing,
    or damaged; damaged ones are listed, and have to be moved away first. If it is interrupted, run it again: it
    resumes.
    """
    lake = context.open_lake()
    place = unlock(context.place(local_or_uri(uri)), lake.config.backup.key)
    result = repair_table(place, lake, table, by or account_by(lake.config.approvals))
    if as_json:
        show_json(asdict(result))
        return 1 if result.missing or result.damaged else 0
    tell(
        f"{table}: {counted(result.log_entries, 'log entry', 'log entries')} and "
        f"{counted(result.data_files, 'data file')} came back, {size_text(result.size_bytes)}; it is at version "
        f"{result.version}, with {counted(result.rows, 'row')}",
        *(f"{path}: no backup has it; rebuild its date with 'ranklake replay'" for path in result.missing),
        *(f"{path}: {reason}; move it away, and run this again" for path, reason in result.damaged.items()),
        "next: 'ranklake status' tells whether rows came after that backup; 'ranklake replay' brings those back",
    )
    return 1 if result.missing or result.damaged else 0
