"""``ranklake status``."""

import json
from dataclasses import asdict

import click

from ranklake.commands.options import configuration, json_option, lake_option
from ranklake.lake.contracts.load import contract
from ranklake.lake.invariant import TableBalance, balance
from ranklake.lake.plan import DamagedPlanError, last_finished, read_plan
from ranklake.lake.read import read
from ranklake.lake.spool import Spool
from ranklake.lake.store import Lake

_COLUMNS = ("recorded", "stored", "quarantined", "gaps", "in_flight", "retired")


@click.command()
@lake_option
@click.option(
    "--spool",
    metavar="URI",
    help="URI or folder of the spool; without one, nothing is in flight.",
)
@json_option
@click.pass_context
def status(ctx: click.Context, lake: str, spool: str | None, *, as_json: bool) -> int:
    """Prove that every recorded row is stored, quarantined, counted as a gap, or in flight.

    Exits 1 if the books of a table do not add up.
    """
    config = configuration(ctx)
    target = Lake.open(lake, config.storage)
    uri = spool or config.spool.uri
    number, hint = _unfinished(target)
    known = read(target, contract("segments"), ["uri_name", "unreadable"])
    balances = balance(target, Spool(uri, config.storage).listing(known) if uri else ())
    wrong = [item for item in balances if not item.adds_up]
    if as_json:
        rows = [{**asdict(item), "adds_up": item.adds_up} for item in balances]
        click.echo(json.dumps({"adds_up": not wrong, "tables": rows, "unfinished_plan": number}))
    else:
        _print(balances)
        if hint:
            click.echo(hint, err=True)
    return 1 if wrong else 0


def _unfinished(lake: Lake) -> tuple[int | None, str]:
    """Return the number of the plan that is not finished, if there is one, and what to say of it."""
    number = last_finished(lake) + 1
    try:
        plan = read_plan(lake, number)
    except DamagedPlanError as error:
        return number, str(error)
    if plan is None:
        return None, ""
    return number, f"plan {number} ({plan.kind}) is not finished: somebody is at it, or 'ranklake ingest' finishes it"


def _print(balances: list[TableBalance]) -> None:
    if not balances:
        click.echo("the lake is empty, and so is the spool")
        return
    click.echo(f"{'table':<16}" + "".join(f"{name.replace('_', ' '):>14}" for name in _COLUMNS) + "  adds up")
    for item in balances:
        cells = "".join(f"{getattr(item, name):>14,}" for name in _COLUMNS)
        click.echo(f"{item.table:<16}{cells}  {'yes' if item.adds_up else 'NO'}")
    for item in balances:
        for fault in item.faults:
            click.echo(f"{item.table}: {fault}", err=True)
