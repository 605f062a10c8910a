"""``ranklake show``: what is known of a run."""

from dataclasses import fields

import click

from ranklake.commands.completing import complete_runs
from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import json_option, lake_option, role_option
from ranklake.context import Context
from ranklake.insight.runs.asking import asking
from ranklake.insight.runs.facts import gather
from ranklake.insight.runs.find import named
from ranklake.insight.runs.slowdown import slowdown_cause
from ranklake.terminal import width
from ranklake.views.json_output import show_json
from ranklake.views.run import run_lines
from ranklake.views.run_causes import path_facts, path_line
from ranklake.views.tell import tell

MOST_SHOWN_SPANS = 200_000
"""Of a run whose steps are simulated for a line: that takes a second; of more, ``ranklake what-if`` does."""


@click.command()
@click.argument("run", shell_complete=complete_runs)
@role_option
@json_option
@lake_option
@with_context
def show(context: Context, run: str, role: str | None, *, as_json: bool) -> None:
    """Show what is known of RUN: ranks, loss, MFU, goodput, stragglers, code, data, artifacts, media, gaps.

    RUN may be the beginning of a name, if no other run's name begins so. --json has the SQL of every number.
    """
    lake = context.open_lake()
    seen_as = noted_role_of(context, lake, role)
    ask = asking(lake, seen_as)
    facts = gather(ask, named(ask, run))
    cause = slowdown_cause(lake, ask, facts.run, seen_as, MOST_SHOWN_SPANS)
    if as_json:
        show_json({**{one.name: getattr(facts, one.name) for one in fields(facts)}, "critical_path": path_facts(cause)})
    else:
        tell(*run_lines(facts, width(), path=path_line(cause)))
