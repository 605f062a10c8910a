"""``ranklake rollup``."""

import json
from dataclasses import asdict

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, prices_option
from ranklake.commands.progress import progress_bar
from ranklake.commands.tell import tell_damaged
from ranklake.context import Context
from ranklake.lake.rollups.runner import RollupResult, run_rollups


@click.command()
@click.argument("names", metavar="[NAME]…", nargs=-1)
@click.option("--full", is_flag=True, help="Compute everything anew; the result is the same.")
@prices_option
@lake_option
@json_option
@with_context
def rollup(context: Context, names: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Recompute the rollups whose inputs changed: all, or those named and what they read.

    Exits 1 if data files among the inputs are damaged: nothing is computed from those, and it stays due.
    """
    lake = context.open_lake()
    with progress_bar("rollup") as progress:
        results = run_rollups(lake, names or None, progress=progress, full=full)
    if as_json:
        click.echo(json.dumps([asdict(result) for result in results]))
    else:
        _print(results)
    damaged = dict.fromkeys(one for result in results for one in result.damaged)
    tell_damaged(damaged)
    return 1 if damaged else 0


def _print(results: list[RollupResult]) -> None:
    written = [result for result in results if result.partitions]
    if not written:
        changed = "" if any(result.damaged for result in results) else "nothing changed; "
        click.echo(f"{changed}nothing was committed")
        return
    click.echo(f"{'rollup':<14}{'partitions':>12}{'rows':>12}{'version':>10}{'seconds':>10}")
    for result in results:
        version = "" if result.version is None else f"{result.version:,}"
        click.echo(
            f"{result.name:<14}{len(result.partitions):>12,}{result.rows:>12,}{version:>10}{result.seconds:>10.2f}"
        )
