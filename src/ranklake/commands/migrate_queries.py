"""``ranklake migrate queries``."""

import difflib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ranklake.commands.context import base_config, command_line_options
from ranklake.context import Context
from ranklake.printable import counted, printable_lines
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell

if TYPE_CHECKING:
    from ranklake.lake.migrations.queries.files import FileOutcome


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option("--from", "begin", type=click.IntRange(1), help="Version that they are written for; default the first.")
@click.option("--to", "end", type=click.IntRange(1), help="Version to bring them to; default the newest.")
@click.option("--migration", metavar="NUMBER", help="Follow this migration alone; default all.")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Migrations; default the packaged.")
@click.option("--dialect", metavar="NAME", help="Of sqlglot; default postgres (DataFusion), duckdb, trino in turn.")
@click.option(
    "--lake", "uri", metavar="URI", help="Follow own tables of this lake, too, and tell of its renamed metrics."
)
@click.option("--write", "is_writing", is_flag=True, help="Write the files; default is to print the diff alone.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def queries(  # noqa: PLR0913 - a command's options
    ctx: click.Context,
    /,
    paths: tuple[Path, ...],
    begin: int | None,
    end: int | None,
    migration: str | None,
    folder: Path | None,
    dialect: str | None,
    uri: str | None,
    *,
    is_writing: bool,
    as_json: bool,
) -> int:
    """Bring queries in files to the newest columns: prints what would change as a diff, and what it cannot do.

    PATH is a file or a folder: .sql, dashboards of Grafana (.json), notebooks (.ipynb), Python (.py).

    Exits 1 if something is left for a person.
    """
    from ranklake.lake.migrations.queries.files import FileOutcome, outcome, walk, write  # sqlglot is 0.3 s to import
    from ranklake.lake.migrations.queries.statements import dialects_of
    from ranklake.lake.migrations.queries.tables import load_tables
    from ranklake.lake.rollups.life.register import metric_successors

    metrics = overlay = None
    if uri is not None:
        lake = Context.of(base_config(ctx), {**command_line_options(ctx), "lake.uri": uri}).open_lake()
        metrics, overlay = metric_successors(lake), lake.catalog.overlay
    tables, dialects = load_tables(begin, end, migration, folder, metrics, overlay), dialects_of(dialect)
    files = [file if isinstance(file, FileOutcome) else outcome(file, tables, dialects) for file in walk(paths)]
    if is_writing:
        for file in files:
            if file.is_changed:
                write(file)
    if as_json:
        shown = [{**file.plain(), "diff": "".join(_diff(file))} for file in files if _is_shown(file)]
        show_json({"files": len(files), "written": is_writing, "told": shown})
    else:
        _show(files, is_writing=is_writing)
    return 0 if all(file.is_done for file in files) else 1


def _show(files: "list[FileOutcome]", *, is_writing: bool) -> None:
    for file in files if not is_writing else ():
        text = "".join(_diff(file))
        click.echo(printable_lines(text) if sys.stdout.isatty() else text, nl=False)  # noqa: TID251 - a document, as it is
    for file in files:
        if file.passed_over:
            tell(f"{file.path}: passed over: {file.passed_over}", err=True)
        for finding in file.findings:
            note = "note: " if finding.is_note else ""
            tell(f"{file.path}:{file.line_of(finding)}: {note}{finding.message}", err=True)
    changed = sum(file.is_changed for file in files)
    left = sum(not file.is_done for file in files)
    summary = f"{counted(len(files), 'file')}: {changed} {'written' if is_writing else 'to change'}"
    more = "; to write: --write" if changed and not is_writing else ""
    tell(f"{summary}, {left} with something left to do{more}")


def _is_shown(file: "FileOutcome") -> bool:
    return file.is_changed or bool(file.findings or file.passed_over)


def _diff(file: "FileOutcome") -> Iterator[str]:
    """Yield the lines of a unified diff, as `patch` takes it."""
    before, after = (_lines(text) for text in (file.before, file.after))
    name = file.path.as_posix().lstrip("/")
    for line in difflib.unified_diff(before, after, f"a/{name}", f"b/{name}"):
        yield line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n"


def _lines(text: str) -> list[str]:
    """Return lines as `patch` and editors tell them: a form feed or U+2028 within one ends none."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])
