"""``ranklake compare``: runs side by side."""

import click

from ranklake.commands.completing import complete_runs
from ranklake.commands.context import role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.lake.runs.asking import asking
from ranklake.lake.runs.compare import compare as compared
from ranklake.lake.runs.find import named
from ranklake.terminal import width
from ranklake.views.comparison import comparison_lines
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…", shell_complete=complete_runs)
@role_option
@json_option
@lake_option
@with_context
def compare(context: Context, runs: tuple[str, ...], role: str | None, *, as_json: bool) -> None:
    """Compare runs: how they did, where their steps' time went, and in which settings and surroundings they differ.

    A run may be named by the beginning of its name. Of three or more, mean and deviation are shown, too.
    """
    lake = context.open_lake()
    ask = asking(lake, role_of(context, lake, role))
    names = tuple(dict.fromkeys(named(ask, run) for run in runs))
    if len(names) == 1:
        raise RanklakeError("one run has nothing to be compared with", where=names[0], mend="name another run")
    found = compared(ask, names)
    if as_json:
        show_json(found)
    else:
        tell(*comparison_lines(found, width()))
