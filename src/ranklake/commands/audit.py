"""``ranklake audit``."""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict
from datetime import date
from typing import Any, Final, TextIO

import click

from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import Command, Group, json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.audit.proof import Proof, first_row_of, prove, verify_lines
from ranklake.lake.audit.trail import TABLE, record, trail_table
from ranklake.lake.audit.trail import resume as resume_trail
from ranklake.lake.query.sql import query
from ranklake.lake.store.lake import Lake
from ranklake.lake.store.lake_config import SIGNED, UNSIGNED
from ranklake.lake.store.tables import Tables
from ranklake.lake.tables.tables import delta_table
from ranklake.printable import counted
from ranklake.retention.proposals.approvals import UNSIGNED_NOTE
from ranklake.retention.proposals.examination import AnchorStatus, ExaminationResult, examine, verify_anchors
from ranklake.retention.proposals.examination import anchor as sign_head
from ranklake.retention.proposals.identities import doer, unsigned_note
from ranklake.retention.proposals.kept import restorations
from ranklake.views.audit_lines import FORMS, iso
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


def _date_or_row(_context: click.Context, _option: click.Parameter, text: str | None) -> str | None:
    """Return the text of ``--since`` if it is a date or a row."""
    if text is not None and text.isdecimal():
        if len(text) > _ROW_DIGITS:
            raise click.BadParameter(f"no trail has a row {text[:_ROW_DIGITS]}…")
    elif text is not None:
        try:
            date.fromisoformat(text)
        except ValueError as error:
            raise click.BadParameter(f"{text!r} is neither a date such as 2026-12-31 nor a row") from error
    return text


def _since_option(text: str) -> Callable[[Command], Command]:
    return click.option("--since", metavar="DATE|ROW", callback=_date_or_row, help=text)


_ROW_DIGITS: Final = 18
"""Larger than any trail, and small enough for 64 bits."""
EXPORT: Final = "audit.export"
UNSEEN: Final = "-"
"""Shown for a value that a role does not see."""


@click.group(cls=Group)
def audit() -> None:
    """Read and verify the audit log."""


@audit.command()
@_since_option("Verify only rows from then on, by the head record (of the witness, if there is one) before them.")
@lake_option
@json_option
@with_context
def verify(context: Context, since: str | None, *, as_json: bool) -> int:
    """Verify that no row of the audit log was altered, removed, inserted, or cut off at the end.

    Compares the end with the head records in the lake and, if [audit] witness is configured, with those there. Verifies
    the signatures of all approvals, by the keys of [approvals] allowed_signers, and that each was sufficient and in
    time. Also reports rows that an applied plan removed and another program restored without approval. Exits 1 and
    names the first broken row, each invalid approval, and such rows.
    """
    lake = context.open_lake()
    proof = prove(lake, _first_row(lake.tables, since))
    approvals = None if proof.since else examine(lake)
    anchors = None if proof.since else verify_anchors(lake)
    back = None if proof.since else _restored_lines(lake.tables)
    if as_json:
        facts = {"rows": proof.rows, "whole": proof.whole, "first_broken": proof.broken, "why": proof.why or None}
        more: dict[str, Any] = {"since": proof.since, "approvals": None if approvals is None else asdict(approvals)}
        more |= {"anchors": None if anchors is None else anchors.plain()}
        more |= {"restored": None if back is None else list(back)}
        show_json({**facts, "lost": proof.lost, "vouched_for": proof.witnessed, **more})
    elif approvals is None:
        for line in proof_lines(proof):
            tell(line, err=not proof.whole)
        tell(f"rows before row {proof.since}, approvals and tables were not verified: leave --since out")
    else:
        for line in proof_lines(proof):
            tell(line, err=not proof.whole)
        if proof.whole:
            tell(_count_text(approvals))
        tell(*approvals.faults, *approvals.notes, err=True)
        if anchors is not None and anchors.count:
            _tell_anchors(anchors)
        tell(*(back or ()), err=True)
    faults = [*(approvals.faults if approvals else ()), *(anchors.faults if anchors else ()), *(back or ())]
    return 0 if proof.whole and not faults else 1


def _restored_lines(tables: Tables) -> tuple[str, ...]:
    """Return the rows that were restored without approval, or why they are unknown."""
    try:
        return restorations(tables)
    except RanklakeError as error:
        return (f"whether rows came back that a plan took is not known: {error}",)


def _tell_anchors(status: AnchorStatus) -> None:
    if not status.verified:
        tell(f"anchors: {status.count:,}; no signature was verified")
        return
    last = f", the last of {status.last.rows:,} rows, signed {status.last.at}" if status.last else ""
    tell(f"anchors: {status.count - len(status.faults):,} of {status.count:,} hold{last}")
    tell(*(f"anchor {fault}" for fault in status.faults), err=True)


@audit.command()
@click.option("--by", metavar="NAME", help="Who signs; default: the key's owner.")
@click.option("--key", metavar="PATH", default="", help="SSH key that signs; default: [approvals] key.")
@lake_option
@with_context
def anchor(context: Context, by: str | None, key: str) -> None:
    """Sign the head of the audit log with an SSH key, and write the signature to the witness.

    Somebody who can write to the lake and the witness can forge a trail, but cannot sign it. `ranklake audit verify`
    compares the audit log with all signed heads.
    """
    result = sign_head(context.open_lake(), by, key)
    tell(f"the audit log of {result.rows:,} rows is anchored")


def _first_row(tables: Tables, since: str | None) -> int:
    """Return the row number for ``--since``; 0 for none."""
    if since is None:
        return 0
    return int(since) if since.isdecimal() else first_row_of(tables, date.fromisoformat(since))


def _count_text(examined: ExaminationResult) -> str:
    steps = f"{examined.signed:,} signed and {examined.unsigned:,} unsigned steps"
    if not examined.signed and examined.mode == UNSIGNED:
        return f"{UNSIGNED_NOTE}; {counted(examined.unsigned, 'step')}"
    if not examined.verified:
        return f"approvals: {steps}; no signature was verified"
    return f"approvals: {steps}, {'which hold' if not examined.faults else f'{len(examined.faults)} faults'}"


def proof_lines(proof: Proof) -> list[str]:
    """Return a trail's state as lines."""
    if not proof.whole:
        return [f"the audit log is broken: {proof.why}"]
    lost = [f"rows {first} to {last} of the audit log are lost, and a row says so" for first, last in proof.lost]
    return [
        f"the audit log is whole: {counted(proof.rows, 'row')}" if proof.rows else "the audit log is empty",
        *lost,
    ]


@audit.command()
@lake_option
@click.option("--by", metavar="NAME", required=True, help="Who continues the audit log; recorded in it.")
@click.option("--reason", metavar="TEXT", required=True, help="What was found; recorded in the audit log.")
@with_context
def resume(context: Context, by: str, reason: str) -> None:
    """Continue the audit log after rows that were cut off and cannot be restored.

    The loss stays visible: the next row says how many rows are missing, and every proof repeats it.
    """
    number = resume_trail(context.open_lake(), by, reason)
    tell(f"the audit log goes on at row {number}, which says what is lost")


@audit.command()
@click.option("--format", "form", type=click.Choice(sorted(FORMS)), default="json", show_default=True)
@click.option("--action", metavar="TEXT", help="Only actions that begin so, such as retention.")
@_since_option("Only rows from then on.")
@role_option
@lake_option
@with_context
def export(context: Context, form: str, action: str | None, since: str | None, role: str | None) -> None:
    """Print rows for another system, one per line: as JSON, or as CEF for a SIEM.

    Lines contain actors and reasons, which are personal data. With --role, rows are as the role sees them. The export
    itself is recorded in the audit log.
    """
    lake = context.open_lake()
    rows = _rows(context, lake, since, action, role)
    try:
        _note_export(lake, rows, form, role)
    except RanklakeError as error:  # a broken trail can be exported, too; and some users may read but not write
        tell(f"the audit log does not say that it was exported: {error}", err=True)
    for row in rows:
        click.echo(FORMS[form](row))  # noqa: TID251 - a document, as it is


@audit.command("verify-export")
@click.argument("source", metavar="FILE", type=click.File(encoding="utf-8", errors="surrogateescape"))
@json_option
def verify_export(source: TextIO, *, as_json: bool) -> int:
    """Prove that no row of an export was altered, by the export alone: FILE, or - for standard input.

    Reads the JSON output of 'ranklake audit export'. An export cannot show that rows are missing at its end: compare
    the digest of its last row with a head record or a signed head. Exits 1 and names the first altered row.
    """
    result = verify_lines(source)
    if as_json:
        show_json(asdict(result))
    elif result.broken is not None:
        tell(f"row {result.broken} of the export is altered, repeated, or does not follow the one before", err=True)
    elif not result.rows:
        tell("the export has no rows")
    else:
        lacks = f"; {counted(result.missing, 'row')} before or between them are not in the export" * bool(
            result.missing
        )
        tell(f"rows {result.first} to {result.last} are as they were written: {counted(result.rows, 'row')}{lacks}")
        tell(f"digest of the last: {result.head}")
    return 0 if result.broken is None else 1


def _note_export(lake: Lake, rows: list[dict[str, Any]], form: str, role: str | None) -> None:
    numbers = [row["seq"] for row in rows if row["seq"] is not None]
    seen = {"first": min(numbers, default=None), "last": max(numbers, default=None)}
    details = {"rows": len(rows), **seen, "format": form, "role": role, **unsigned_note(lake)}
    record(lake, doer(lake, None), EXPORT, TABLE, None, details)


def _rows(
    context: Context, lake: Lake, since: str | None, action: str | None, role: str | None
) -> list[dict[str, Any]]:
    """Return rows of the audit log with all columns; for a role, as it sees them, with NULL for hidden values."""
    seen_by = noted_role_of(context, lake, role)
    if seen_by is None:
        rows = trail_table(lake.tables, delta_table(lake.store, TABLE), _first_row(lake.tables, since)).to_pylist()
        return [row for row in rows if action is None or row["action"].startswith(action)]
    values: dict[str, Any] = {}
    asked = []
    if since is not None:
        is_row = since.isdecimal()
        values["since"] = int(since) if is_row else date.fromisoformat(since)
        asked.append(f"{'seq' if is_row else 'date'} >= $since")
    if action is not None:
        values["action"] = action
        asked.append("starts_with(action, $action)")
    where = f" WHERE {' AND '.join(asked)}" if asked else ""
    asking = f"SELECT * FROM {TABLE}{where}"  # noqa: S608 - our own words; values are parameters
    result = query(lake, asking, values, role=seen_by).to_pylist()
    rows = [{**dict.fromkeys(lake.contract(TABLE).names), **row} for row in result]
    return sorted(rows, key=lambda row: (row["seq"] is None, row["seq"] or 0))


@audit.command()
@click.option("--action", metavar="TEXT", help="Only actions that begin so, such as retention.")
@_since_option("Only rows from then on.")
@role_option
@lake_option
@json_option
@with_context
def show(context: Context, action: str | None, since: str | None, role: str | None, *, as_json: bool) -> None:
    """Show who did what to governed data, and why; `list` is an alias."""
    lake = context.open_lake()
    rows = _rows(context, lake, since, action, role)
    if as_json:
        show_json([{**row, "ts": iso(row["ts"]), "date": iso(row["date"])} for row in rows])
        return
    if not rows:
        tell("the audit log is empty")
    is_signed = lake.config.approvals.mode == SIGNED
    for row in rows:
        who = f"{_cell_text(row['actor'])}{' (not signed)' if is_signed and _is_unproven(row) else ''}"
        at = UNSEEN if row["ts"] is None else f"{row['ts']:%Y-%m-%d %H:%M:%S}"
        reason = [" ".join(row["reason"].split())] if row["reason"] else []
        cells = [
            f"{_cell_text(row['seq']):>5}",
            at,
            who,
            _cell_text(row["action"]),
            _cell_text(row["subject"]),
            *reason,
        ]
        tell("  ".join(cells))  # names come from others: none may forge a line


def _cell_text(value: object) -> str:
    return UNSEEN if value is None else str(value)


def _is_unproven(row: Mapping[str, Any]) -> bool:
    """Whether a row's actor is marked as unsigned."""
    try:
        details = json.loads(row["details"] or "{}")
    except ValueError:
        return False
    return isinstance(details, dict) and details.get("mode") == UNSIGNED


audit.add_command(show, "list")
