"""``ranklake backup``: a copy of the lake in another place, without what was removed from the lake."""

from typing import Any

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.commands.restore import local_or_uri
from ranklake.context import Context
from ranklake.printable import counted
from ranklake.redaction.redact import redact_uri
from ranklake.retention.backup.backup import BackupResult
from ranklake.retention.backup.backup import backup as back_up
from ranklake.retention.backup.place import Backup, lake_of, numbers_of, read_backup
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import size_text

_COLUMNS = (*numbers(("backup",)), TextColumn("  made (UTC)"), *numbers(("tables", "rows", "files", "size")))


@click.command()
@click.argument("uri", metavar="URI")
@click.option("--keep", type=click.IntRange(min=1), metavar="COUNT", help="Delete older backups but COUNT - 1.")
@click.option("--list", "is_list", is_flag=True, help="Back up nothing: list the backups that are there.")
@lake_option
@json_option
@with_context
def backup(context: Context, uri: str, keep: int | None, *, is_list: bool, as_json: bool) -> int:
    """Back the lake up to URI, a folder or prefix of its own: only what is not there yet is copied.

    All tables are copied as of one moment. Earlier backups that hold what was removed from the lake since, such as the
    rows of a person who was erased, are deleted. Exits 1 if a file of the lake is damaged. Cut off, run it again.
    """
    uri = local_or_uri(uri)
    if is_list:
        place = context.place(uri)
        lake_of(place)
        backups = [read_backup(place, number) for number in numbers_of(place)]
        if as_json:
            show_json([_facts(item) for item in backups])
        else:
            tell(*(table_lines(_COLUMNS, map(_cells, backups)) if backups else ["no backups"]))
        return 0
    result = back_up(context.open_lake(), uri, keep or 0)
    made = result.backup
    if as_json:
        show_json(_plain(result))
        return 1 if made.damaged else 0
    tell(
        f"backup {made.number}: {counted(len(made.tables), 'table')}, "
        f"{counted(sum(state.rows for state in made.tables.values()), 'row')} "
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
    return 1 if made.damaged else 0


def _facts(item: Backup) -> dict[str, Any]:
    rows = sum(state.rows for state in item.tables.values())
    head = {"backup": item.number, "created": item.created.isoformat(), "ranklake": item.ranklake}
    return {**head, "tables": len(item.tables), "rows": rows, "files": len(item.files), "bytes": item.size_bytes}


def _plain(result: BackupResult) -> dict[str, Any]:
    copied = {"copied_files": result.objects, "copied_bytes": result.copied_bytes}
    more = {"manifest_bytes": result.manifest_bytes, "deleted": list(result.expired), "freed_bytes": result.freed_bytes}
    return {**_facts(result.backup), **copied, **more, "damaged": list(result.backup.damaged)}


def _cells(item: Backup) -> tuple[str, ...]:
    facts = _facts(item)
    counts = (f"{facts[name]:,}" for name in ("tables", "rows", "files"))
    return (str(item.number), f"  {item.created:%Y-%m-%d %H:%M:%S}", *counts, size_text(item.size_bytes))
