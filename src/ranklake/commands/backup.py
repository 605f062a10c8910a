"""``ranklake backup``: a copy of the lake in another place, without what was removed from the lake."""

from collections.abc import Mapping, Sequence
from typing import Any

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, optional_lake
from ranklake.commands.restore import local_or_uri
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.backup import BackupResult
from ranklake.retention.backup.history import at_each, recorded_backup
from ranklake.retention.backup.place import Backup, backups_of, unlock
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_COLUMNS = (*numbers(("backup",)), TextColumn("  made (UTC)"), *numbers(("tables", "rows", "files", "size")))


@click.command()
@click.argument("uri", metavar="[URI]", required=False)
@click.option("--keep", type=click.IntRange(min=1), metavar="COUNT", help="Delete older backups but COUNT - 1.")
@click.option("--list", "is_list", is_flag=True, help="Back up nothing: list the backups that are there.")
@optional_lake("Lake to back up; default: the configured one.")
@json_option
@with_context
def backup(context: Context, uri: str | None, keep: int | None, *, is_list: bool, as_json: bool) -> int:
    """Back the lake up to URI, by default each of [backup] to: only what is not there yet is copied.

    All tables are copied as of one moment. Earlier backups are deleted that hold a person who was erased from the lake
    since, or what retention removed more than [backup] keep_days ago. Exits 1 if a file of the lake is damaged. Cut
    off, run it again.
    """
    places = [local_or_uri(uri)] if uri else list(context.lake_config.backup.to)
    if not places:
        raise click.UsageError("no place for backups: give a URI, or write to under [backup] in ranklake.toml")
    if is_list:
        _list(context, places, as_json=as_json)
        return 0
    lake = context.open_lake()
    results, failed = at_each(places, lambda place: recorded_backup(lake, place, keep or 0))
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

    backups, failed = at_each(places, look)
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
    """Raise what failed at the only place; of several, a line for each that failed, with its name."""
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
