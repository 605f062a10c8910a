"""``ranklake quality why``: what the rows that fail a check have in common."""

from collections import Counter
from datetime import datetime

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.quality.why.explain import explain, judged
from ranklake.views.json_output import show_json
from ranklake.views.quality import explanation_lines
from ranklake.views.tell import tell
from ranklake.views.words import counted


@click.command()
@click.argument("tables", metavar="[TABLE]...", nargs=-1)
@click.option("--date", "day", metavar="DATE", type=click.DateTime(["%Y-%m-%d"]), help="Failures on this partition.")
@click.option("--check", "check_id", metavar="ID", help="Failures of this check.")
@click.option(
    "--limit", type=click.IntRange(1), default=10, show_default=True, help="Failures to explain, worst first."
)
@lake_option
@json_option
@with_context
def why(
    context: Context, tables: tuple[str, ...], day: datetime | None, check_id: str | None, limit: int, *, as_json: bool
) -> None:
    """Show which host, rank, run, version or hour the rows have in common that fail a check.

    Reads the rows of the failures that the last checks found; nothing is written. Each value is shown with the rows
    that have it and fail, and how the rest does. Classified values are not shown.
    """
    chosen = None if day is None else day.date()
    found = explain(context.open_lake(), tables or None, day=chosen, check_id=check_id, limit=limit)
    if as_json:
        failures = [one.plain() for one in found]
        show_json(failures)
        if not failures:  # an empty list alone would read as if all were well
            tell(_none(judged(context.open_lake(), tables or None, day=chosen, check_id=check_id)), err=True)
        return
    told = 0
    for one in found:
        told += 1
        tell(*explanation_lines(one))
    if not told:
        tell(_none(judged(context.open_lake(), tables or None, day=chosen, check_id=check_id)))
    elif told == limit:
        tell(f"the worst {counted(limit, 'failure')}; more with --limit")


def _none(states: Counter[str]) -> str:
    """Return what it means that there is no failure, given how many results there are by state."""
    if not states:
        return "nothing was checked here yet: run 'ranklake check'"
    unknown = f"; {counted(states['errored'], 'check')} could not be computed" if states["errored"] else ""
    return f"no check failed here{unknown}"
