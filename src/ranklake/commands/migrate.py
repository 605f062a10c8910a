"""``ranklake migrate``."""

import difflib
import getpass
import sys
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ranklake.commands.approvals import SigningOptions, mode_facts, signing_options, tell_mode
from ranklake.commands.configured import base_config, command_line_options
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, contracts_option, dask_option, json_option, lake_option, overriding
from ranklake.context import Context
from ranklake.lake.migrations import applying
from ranklake.lake.migrations import draft as drafting
from ranklake.lake.migrations.dependents import dependents
from ranklake.lake.migrations.due import due
from ranklake.lake.migrations.proof import verify as prove
from ranklake.lake.rollups.anew import FromInputs
from ranklake.printable import counted, printable_lines
from ranklake.retention.proposals import lifecycle
from ranklake.retention.proposals.identities import APPROVE
from ranklake.retention.proposals.migrations import MIGRATIONS
from ranklake.views.json_output import show_json
from ranklake.views.tell import progress_bar, tell

if TYPE_CHECKING:
    from ranklake.lake.migrations.queries.files import FileOutcome


@click.command()
@click.argument("paths", nargs=-1, required=True, metavar="PATH...", type=click.Path(path_type=Path))
@click.option(
    "--dialect", metavar="NAME", help="SQL dialect of sqlglot; default: tries postgres (DataFusion), duckdb, trino."
)
@click.option(
    "--lake", "uri", metavar="URI", help="Also follow this lake's own tables, and report its renamed metrics."
)
@click.option("--write", "is_writing", is_flag=True, help="Write the files; by default only the diff is printed.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.pass_context
def queries(
    ctx: click.Context,
    /,
    paths: tuple[Path, ...],
    dialect: str | None,
    uri: str | None,
    *,
    is_writing: bool,
    as_json: bool,
) -> int:
    """Update queries in files to the newest columns: prints a diff, and the queries that a person has to change.

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
    tables, dialects = load_tables(metrics, overlay), dialects_of(dialect)
    files = [file if isinstance(file, FileOutcome) else outcome(file, tables, dialects) for file in walk(paths)]
    if is_writing:
        for file in files:
            if file.is_changed:
                write(file)
    if as_json:
        shown = [{**file.plain(), "diff": "".join(_diff(file))} for file in files if _is_shown(file)]
        show_json({"files": len(files), "written": is_writing, "told": shown})
    else:
        _show_queries(files, is_writing=is_writing)
    return 0 if all(file.is_done for file in files) else 1


def _show_queries(files: "list[FileOutcome]", *, is_writing: bool) -> None:
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
    """Split lines as `patch` and editors do: not at form feeds or U+2028."""
    lines = text.split("\n")
    return [f"{line}\n" for line in lines[:-1]] + ([lines[-1]] if lines[-1] else [])


_by = click.option("--by", metavar="NAME", help="Who does it, for the audit log; default: your login name.")
_alone = click.option(
    "--single-operator", is_flag=True, help="Let one person approve and apply; recorded in the audit log."
)


@click.group(cls=Group)
def migrate() -> None:
    """Migrate stored tables to this release's contracts, and back."""


migrate.add_command(queries)


@migrate.command()
@click.argument("table", required=False)
@lake_option
@contracts_option
@json_option
@with_context
def plan(context: Context, table: str | None, *, as_json: bool) -> int:
    """Show due migrations: steps, rows, bytes, time, and users of the columns. Changes nothing."""
    lake = context.open_lake()
    results = [(one, list(dependents(lake, one.migration))) for one in due(lake, table)]
    if as_json:
        facts = mode_facts(lake)
        show_json(
            [{**one.plain(), "dependents": [other.plain() for other in others], **facts} for one, others in results]
        )
        return 0
    if not results:
        tell("nothing is due: every table has the contract of this release")
    for item, others in results:
        migration = item.migration
        size = (
            "metadata only" if not item.files else f"{item.rows:,} rows in {item.files:,} files, {item.bytes:,} bytes"
        )
        added = "added columns " if migration.is_of_added else ""
        versions = f"{added}{migration.from_version} -> {migration.to_version}"
        tell(f"{migration.label}: {migration.table} {versions}, {size}, {item.cpu_s:.1f} CPU-s")
        for step in migration.steps:
            tell(f"  {step.text}")
        if item.is_computed:
            tell("  dates are computed from their inputs; where these are gone, rows are written anew")
        for name, after in item.sealed.items():
            what_then = "goes with its values" if after is None else f"stays under them as {after}"
            tell(f"  {migration.table}.{name} is stored under keys of people, and {what_then}")
        for other in others:
            often = f", {other.queries:,} queries lately" if other.queries else ""
            tell(f"  {other.kind} {other.name} (owner: {other.owner}) {other.fate}: it uses {other.column}{often}")
        if item.proposal:
            tell(f"  values go: approve with ranklake migrate approve {item.proposal} --by NAME")
    if any(one.proposal for one, _ in results):
        tell_mode(lake)
    return 0


@migrate.command()
@click.argument("proposal")
@_by
@_alone
@click.option("--reason", help="Reason, for the audit log.")
@lake_option
@contracts_option
@signing_options
@json_option
@with_context
def approve(
    context: Context,
    proposal: str,
    by: str | None,
    reason: str | None,
    *,
    single_operator: bool,
    signature_options: SigningOptions,
    as_json: bool,
) -> int:
    """Approve a migration that drops values. Another person applies it."""
    lake = context.open_lake()
    if signature_options.text_only:
        signature_options.print_statement(lake, MIGRATIONS, proposal, APPROVE, by, reason)
        return 0
    who = signature_options.who(lake, f"ranklake migrate approve {proposal}", by)
    result, fresh = lifecycle.approve(
        lake, MIGRATIONS, proposal, who, reason, single_operator=single_operator, signing=signature_options.signing
    )
    lacking = "" if result.approved else lifecycle.standing(lake, MIGRATIONS, result).lacking
    if as_json:
        facts = {"proposal": result.name, "migration": result.label, "state": result.state, "fresh": fresh}
        show_json({**facts, "lacking": lacking or None, **mode_facts(lake)})
        return 0
    tell(f"{result.label} is {result.state}" + ("" if fresh else " already") + (f"; {lacking}" if lacking else ""))
    tell_mode(lake)
    return 0


@migrate.command()
@click.argument("table", required=False)
@_by
@_alone
@lake_option
@contracts_option
@dask_option
@click.option("--key", metavar="PATH", help="SSH key that signs, where approvals are signed; default: [approvals] key.")
@json_option
@with_context
def apply(
    context: Context, table: str | None, by: str | None, key: str | None, *, single_operator: bool, as_json: bool
) -> int:
    """Apply due migrations, with one commit per table and migration. If it is killed, the next call resumes."""
    lake = context.open_lake()
    signature_options = SigningOptions(key, None, text_only=False)
    takes_a_name = bool(key) or any(one.proposal for one in due(lake, table))
    who = signature_options.who(lake, "ranklake migrate apply", by) if takes_a_name else by or getpass.getuser()
    with context.workers() as workers, progress_bar("migrate") as progress:
        result = applying.apply(
            lake,
            workers,
            who,
            table,
            single_operator=single_operator,
            signing=signature_options.signing,
            progress=progress,
            computing=FromInputs(),
        )
    _show(result, as_json=as_json, verb="applied")
    return 0


@migrate.command()
@click.argument("table")
@_by
@lake_option
@contracts_option
@dask_option
@json_option
@with_context
def undo(context: Context, table: str, by: str | None, *, as_json: bool) -> int:
    """Undo the last migration of a table. Then use the previous release."""
    lake = context.open_lake()
    with context.workers() as workers, progress_bar("migrate") as progress:
        result = applying.undo(lake, workers, by or getpass.getuser(), lake.contract(table).table, progress=progress)
    _show([result], as_json=as_json, verb="undone")
    return 0


def _show(done: list[applying.MigrationResult], *, as_json: bool, verb: str) -> None:
    if as_json:
        show_json([asdict(one) for one in done])
        return
    for item in done:
        rows = f"{item.rows:,} rows written, plan {item.plan}"
        version = f"has version {item.version}" + (" of added columns" if item.is_of_added else "")
        tell(f"{item.label} {verb}: {item.table} {version}, {rows}")
    if not done:
        tell("nothing is due: every table has the contract of this release")


@migrate.command()
@click.argument("table")
@lake_option
@contracts_option
@json_option
@with_context
def verify(context: Context, table: str, *, as_json: bool) -> int:
    """Compare the result of a table's last migration with its former files, while they are kept.

    Exits 1 if the result differs from the migration's steps.
    """
    lake = context.open_lake()
    result = prove(lake, lake.contract(table).table, FromInputs())
    if as_json:
        show_json({**asdict(result), "untouched": sorted(result.untouched)})
        return 1 if result.faults else 0
    tell(
        f"{result.migration}, plan {result.plan}: {result.rows:,} rows in {result.files:,} files compared, "
        f"{len(result.untouched)} columns are as they were, {result.gone:,} files cannot be compared any more"
        + (f", {result.computed:,} dates come out of their inputs as they stand" if result.computed else "")
    )
    for name, ends in sorted(result.ranges.items()):
        change = " became ".join(f"{low:g} to {high:g}" for low, high in (ends["before"], ends["after"]))
        tell(f"  {name}: {change}")
    for fault in result.faults:
        tell(fault, err=True)
    return 1 if result.faults else 0


def _is_own(context: Context, table: str) -> bool:
    """Whether a table, or added columns of it, belong to an operator, whose contracts have their own migrations."""
    return (result := context.contracts().get(table)) is not None and result.operators is not None


@migrate.command()
@click.argument("table")
@click.argument("name")
@click.option("--folder", type=click.Path(path_type=Path, file_okay=False), help="Where; default the packaged ones.")
@overriding("--lake", place="lake.uri", metavar="URI", help="Of a table of your own: the lake that has it.")
@contracts_option
@with_context
def new(context: Context, table: str, name: str, folder: Path | None) -> None:
    """Draft the migration to the newest contract version of TABLE, from the difference of both contracts.

    For your own tables or added columns, it is written into your folder of contracts, and starts from the lake's
    version.
    """
    if folder is None and _is_own(context, table):
        path = drafting.draft_own(context.open_lake(), table, name)
        tell(f"wrote {path}; read it, correct it, then: ranklake migrate plan {table}")
        return
    path = drafting.draft(table, name, folder)
    tell(f"wrote {path}; read it, correct it, then: python -m ranklake.lake.migrations")
