"""``ranklake audit``."""

from dataclasses import asdict

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.lake.audit.proof import Proof, prove
from ranklake.lake.audit.trail import resume as go_on
from ranklake.lake.audit.trail import trail
from ranklake.lake.governance.examination import Examined, examine
from ranklake.lake.governance.modes import UNSIGNED_NOTE
from ranklake.lake.trust.approvals import UNSIGNED
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.group()
def audit() -> None:
    """Read and verify the audit trail."""


@audit.command()
@lake_option
@json_option
@with_context
def verify(context: Context, *, as_json: bool) -> int:
    """Prove that no row of the trail was altered, removed, inserted or cut off its end.

    Compares the end with the head records in the lake and, if [audit] witness is configured, with those there. Verifies
    the signatures of all approvals, by the keys of [approvals] allowed_signers, and that each was enough and in time.
    Exits 1 and names the first broken row, and each approval that does not hold.
    """
    lake = context.open_lake()
    proof, approvals = prove(lake), examine(lake)
    if as_json:
        facts = {"rows": proof.rows, "whole": proof.whole, "first_broken": proof.broken, "why": proof.why or None}
        show_json({**facts, "lost": proof.lost, "vouched_for": proof.witnessed, "approvals": asdict(approvals)})
    else:
        for line in told(proof):
            click.echo(line, err=not proof.whole)
        if proof.whole:
            click.echo(_counted(approvals))
        tell(*approvals.faults, *approvals.notes, err=True)
    return 0 if proof.whole and not approvals.faults else 1


def _counted(found: Examined) -> str:
    steps = f"{found.signed:,} signed and {found.unsigned:,} unsigned steps"
    if not found.signed and found.mode == UNSIGNED:
        return f"{UNSIGNED_NOTE}; {found.unsigned:,} steps"
    if not found.verified:
        return f"approvals: {steps}; no signature was verified"
    return f"approvals: {steps}, {'which hold' if not found.faults else f'{len(found.faults)} faults'}"


def told(proof: Proof) -> list[str]:
    """Return what is known of a trail, in lines."""
    if not proof.whole:
        return [f"the audit trail is broken: {proof.why}"]
    lost = [f"rows {first} to {last} of the audit trail are lost, and a row says so" for first, last in proof.lost]
    return [f"the audit trail is whole: {proof.rows:,} rows" if proof.rows else "the audit trail is empty", *lost]


@audit.command()
@lake_option
@click.option("--by", metavar="NAME", required=True, help="Who continues the trail; recorded in it.")
@click.option("--reason", metavar="TEXT", required=True, help="What was found; recorded in the trail.")
@with_context
def resume(context: Context, by: str, reason: str) -> None:
    """Continue the trail after rows that were cut off and cannot be restored.

    The loss stays visible: the next row says how many rows are missing, and every proof repeats it.
    """
    number = go_on(context.open_lake(), by, reason)
    click.echo(f"the audit trail goes on at row {number}, which says what is lost")


@audit.command("list")
@lake_option
@json_option
@with_context
def list_(context: Context, *, as_json: bool) -> None:
    """List who did what to governed data, and why."""
    rows = trail(context.open_lake())
    if as_json:
        plain = [{**row, "ts": row["ts"].isoformat(), "date": row["date"].isoformat()} for row in rows]
        show_json(plain)
        return
    if not rows:
        click.echo("the audit trail is empty")
    for row in rows:
        reason = f"  {' '.join(row['reason'].split())}" if row["reason"] else ""
        click.echo(
            f"{row['seq']:>5}  {row['ts']:%Y-%m-%d %H:%M:%S}  {row['actor']}  {row['action']}  {row['subject']}{reason}"
        )
