"""``ranklake rollup``."""

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option, prices_option
from ranklake.context import Context
from ranklake.lake.rollups.runner import RollupResult, run_rollups
from ranklake.views.json_output import show_json
from ranklake.views.progress import progress_bar
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell, tell_damaged

_COLUMNS = (TextColumn("rollup", 14), *numbers(("partitions", "rows"), 12), *numbers(("version", "seconds"), 10))


@click.command()
@click.argument("names", metavar="[NAME]…", nargs=-1)
@click.option("--full", is_flag=True, help="Recompute everything; the result is the same.")
@prices_option
@lake_option
@json_option
@with_context
def rollup(context: Context, names: tuple[str, ...], *, full: bool, as_json: bool) -> int:
    """Recompute the rollups whose inputs changed: all, or those named and what they read.

    What needs a partition that a check holds back stays as it is, and due.

    Exits 1 if data files among the inputs are damaged. What needs them is not computed and stays due.
    """
    lake = context.open_lake()
    with context.workers() as workers, progress_bar("rollup") as progress:
        results = run_rollups(lake, names or None, workers=workers, progress=progress, full=full)
    if as_json:
        show_json(results)
    else:
        _print(results)
    kept_back = sorted({place for result in results for place in result.kept_back})
    for table, day in kept_back:
        tell(f"{table} {day} is held back by a check: what needs it stays as it is; see 'ranklake quality held'")
    damaged = dict.fromkeys(one for result in results for one in result.damaged)
    tell_damaged(damaged)
    return 1 if damaged else 0


def _print(results: list[RollupResult]) -> None:
    written = [result for result in results if result.partitions]
    if not written:
        changed = "" if any(result.damaged for result in results) else "nothing changed; "
        tell(f"{changed}nothing was committed")
        return
    rows = [
        (
            result.name,
            f"{len(result.partitions):,}",
            f"{result.rows:,}",
            "" if result.version is None else f"{result.version:,}",
            f"{result.seconds:.2f}",
        )
        for result in results
    ]
    tell(*table_lines(_COLUMNS, rows, gap=""))
