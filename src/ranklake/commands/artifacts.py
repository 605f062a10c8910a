"""``ranklake artifacts``."""

import os
from dataclasses import asdict
from pathlib import Path

import click

from ranklake.allowed import AllowedPlaces, allowed_places
from ranklake.artifact_copies import (
    MOST_BYTES,
    TransferResult,
    alias_rows,
    artifacts_of,
    copy,
    fetch,
    find_artifact,
    is_copied,
    run_with_artifacts,
    uses_of,
)
from ranklake.capture.annotate import ARTIFACTS
from ranklake.capture.common.gaps import RefusedError
from ranklake.commands.completion import complete_runs
from ranklake.commands.context import with_context
from ranklake.commands.options import Group, json_option, lake_option, spool_option
from ranklake.commands.spool_rows import send_rows
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.asking import asking
from ranklake.lake.audit.trail import record
from ranklake.printable import counted
from ranklake.retention.proposals.identities import account
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell
from ranklake.views.words import moment_text

_COLUMNS = (
    *map(TextColumn, ("artifact", "kind", "aliases")),
    *numbers(("step", "bytes")),
    *map(TextColumn, ("made", "copied")),
)
_USES = (*map(TextColumn, ("when", "run", "what")), *numbers(("rank",)), TextColumn("name"))
_REFERENCE = "RUN/NAME[:ALIAS]"


@click.group(cls=Group)
def artifacts() -> None:
    """List, alias, copy and fetch artifacts of runs, and show their uses.

    An artifact is named RUN/NAME:ALIAS. NAME is its name, or its kind, such as checkpoint. ALIAS is a tag from the
    script or from a person, or latest, the default, for the newest.
    """


@artifacts.command("list")
@click.argument("run", shell_complete=complete_runs)
@lake_option
@json_option
@with_context
def list_(context: Context, run: str, *, as_json: bool) -> None:
    """List the artifacts that RUN made, newest first."""
    lake = context.open_lake()
    ask = asking(lake)
    rows = [{**row, "copied": is_copied(lake.store, row)} for row in artifacts_of(ask, run_with_artifacts(ask, run))]
    if as_json:
        show_json(rows)
        return
    lines = [
        (
            row["name"], row["kind"], " ".join(row["aliases"]), "" if row["step"] is None else f"{row['step']:,}",
            "" if row["bytes"] is None else f"{row['bytes']:,}", moment_text(row["ts"]), "yes" if row["copied"] else "",
        )
        for row in rows
    ]  # fmt: skip
    tell(*(table_lines(_COLUMNS, lines) if rows else ["no artifacts"]))


@artifacts.command("alias")
@click.argument("reference", metavar=_REFERENCE)
@click.argument("aliases", nargs=-1, metavar="[ALIAS]…")
@click.option("--remove", multiple=True, metavar="ALIAS", help="Take an alias from it; repeatable.")
@lake_option
@spool_option
@json_option
@with_context
def alias_(
    context: Context, reference: str, *, aliases: tuple[str, ...], remove: tuple[str, ...], as_json: bool
) -> None:
    """Give an artifact aliases, such as best; the next ingest brings them into the lake.

    Per run and kind an alias belongs to one artifact at a time: the one that got it last. Rows of the table artifacts,
    tagged and untagged, are its history: nothing is overwritten.
    """
    row = find_artifact(asking(context.open_lake()), reference)
    try:
        rows = alias_rows(row, aliases, remove)
    except RefusedError as error:
        raise RanklakeError("an alias is 1 to 512 printable characters", where="ranklake artifacts alias") from error
    if not rows:
        raise RanklakeError(
            "no alias is named", where="ranklake artifacts alias", hint="write ALIAS, or --remove ALIAS"
        )
    send_rows(context, row["run"], rows, ARTIFACTS)
    if as_json:
        show_json({"run": row["run"], "rows": rows})
        return
    it = "them" if len(rows) > 1 else "it"
    subject = f"{row['name']} of run {row['run']}"
    tell(f"{counted(len(rows), 'row')} about {subject} in the spool; 'ranklake ingest' brings {it} in")


@artifacts.command("copy")
@click.argument("reference", metavar=_REFERENCE)
@click.option("--at", metavar="URI", help="Where the bytes are now, if they moved.")
@click.option("--max-bytes", type=click.IntRange(1), default=MOST_BYTES, show_default=True, help="Refuse larger ones.")
@lake_option
@json_option
@with_context
def copy_(context: Context, reference: str, *, at: str | None, max_bytes: int, as_json: bool) -> None:
    """Copy an artifact into the lake, by content: files that are there already are not copied again.

    Each file is verified against the recorded digest. The copy is deleted once no row of the lake has its digest: after
    retention, an erasure, or the deletion of its run. If it is interrupted, run it again.
    """
    lake = context.open_lake()
    row = find_artifact(asking(lake), reference)
    result = copy(lake, row, _allowed_for(context, lake.uri, at), at=at, most_bytes=max_bytes)
    if result.written_bytes:
        details = {"run": row["run"], "name": row["name"], "sha256": row["sha256"], "bytes": result.written_bytes}
        record(lake, account(lake), "artifact.copy", row["sha256"], None, details)
    _tell_transfer(result, "copied", as_json=as_json)


@artifacts.command("fetch")
@click.argument("reference", metavar=_REFERENCE)
@click.option("--to", type=click.Path(path_type=Path), help="File or folder to make; default: its name, here.")
@lake_option
@json_option
@with_context
def fetch_(context: Context, reference: str, *, to: Path | None, as_json: bool) -> None:
    """Fetch an artifact from the lake's copy, else from where it was recorded, and verify it.

    A recorded place is opened only if [artifacts] allow in ranklake.toml permits it.
    """
    lake = context.open_lake()
    row = find_artifact(asking(lake), reference)
    target = to or Path(os.path.basename(row["name"]) or "artifact")  # noqa: PTH119 - a name, of any kind
    _tell_transfer(fetch(lake, row, target, _allowed_for(context, lake.uri, None)), "fetched", as_json=as_json)


@artifacts.command("uses")
@click.argument("reference", metavar=_REFERENCE)
@lake_option
@json_option
@with_context
def show_uses(context: Context, reference: str, *, as_json: bool) -> None:
    """Show the uses of an artifact, by its digest: loads in any run, and artifacts made from it."""
    ask = asking(context.open_lake())
    row = find_artifact(ask, reference)
    rows = uses_of(ask, row)
    if as_json:
        show_json({"artifact": row, "uses": rows})
        return
    lines = [(moment_text(use["ts"]), use["run"], use["action"], str(use["rank"]), use["name"]) for use in rows]
    tell(
        *(table_lines(_USES, lines) if rows else [f"nobody used {row['name']} of run {row['run']}, as far as is known"])
    )


def _allowed_for(context: Context, lake_uri: str, at: str | None) -> AllowedPlaces:
    typed = () if at is None else (at, os.path.abspath(at))  # noqa: PTH100 - links stay
    return allowed_places((*context.config.artifacts.allow, lake_uri, context.config.spool.uri), typed)


def _tell_transfer(done: TransferResult, verb: str, *, as_json: bool) -> None:
    if as_json:
        show_json(asdict(done))
        return
    outcome = f"{verb}, {done.written_bytes:,} bytes written" if done.written_bytes else "there already"
    tell(f"{done.row['name']} of run {done.row['run']}: {counted(done.files, 'file')} at {done.place}, {outcome}")
