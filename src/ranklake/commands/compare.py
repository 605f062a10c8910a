"""``ranklake compare``: runs side by side."""

import click

from ranklake.commands.completing import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.errors import RanklakeError
from ranklake.insight.runs.compare import compare as compared
from ranklake.insight.runs.curves import compared_metrics
from ranklake.insight.runs.find import find_run
from ranklake.insight.runs.repeats import repeat_groups
from ranklake.insight.runs.report import run_questions
from ranklake.terminal import width
from ranklake.views.comparison import comparison_lines
from ranklake.views.html.compare_pages import section
from ranklake.views.html.site import publish
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("runs", nargs=-1, required=True, metavar="RUN RUN…", shell_complete=complete_runs)
@click.option("--page", "as_page", is_flag=True, help="Write a page of the report, with curves on the same axes.")
@click.option(
    "--out",
    metavar="URI",
    default="",
    help="With --page: folder or URI of the site.  [default: [report] out, or report]",
)
@role_option
@json_option
@lake_option
@with_context
def compare(
    context: Context, runs: tuple[str, ...], role: str | None, *, as_page: bool, out: str, as_json: bool
) -> None:
    """Compare runs: how they did, where their steps' time went, and in which settings and surroundings they differ.

    A run may be named by the beginning of its name. Of three or more, mean and deviation are shown, too. The page has
    curves, and says whether groups of repeats differ by more than chance; it replaces the comparison before.
    """
    lake = context.open_lake()
    questions = run_questions(lake, noted_role_of(context, lake, role))
    ask = questions.ask
    names = tuple(dict.fromkeys(find_run(ask, run) for run in runs))
    if len(names) == 1:
        raise RanklakeError("one run has nothing to be compared with", where=names[0], hint="name another run")
    result = compared(ask, names, questions.ended)
    if as_page:
        curves = compared_metrics(ask, names, questions.units, questions.scalars)
        page = section(result, curves, repeat_groups(ask, result))
        done = publish(context.place(out or context.config.report.out or "report"), page)
        if as_json:
            show_json({"headline": page.headline, "published": done})
        else:
            tell(f"{page.headline}: {done.out}/{done.first}")
    elif as_json:
        show_json(result)
    else:
        tell(*comparison_lines(result, width()))
