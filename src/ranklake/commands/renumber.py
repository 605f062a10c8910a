"""``ranklake renumber``."""

import getpass

import click

from ranklake.commands.context import with_context
from ranklake.commands.options import json_option, lake_option
from ranklake.context import Context
from ranklake.retention.renumber import renumber as give_numbers
from ranklake.retention.repeated_steps import COUNTED_ANEW
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.command()
@click.argument("run")
@lake_option
@click.option("--by", metavar="NAME", help="Who does it; default: the account that runs this.")
@json_option
@with_context
def renumber(context: Context, run: str, by: str | None, *, as_json: bool) -> int:
    """Split a RUN that was recorded again under one name into attempts, so that no step is stored twice.

    Rows of later starts get the attempt numbers after the highest one, in all tables; ranks of one start stay
    together. Derived tables follow with the next 'ranklake rollup'. The audit trail records it. If the command is
    killed, the next one that changes the lake finishes it.

    Exits 1 if a step is still stored twice because one process numbered its steps again: attempts cannot separate
    such steps.
    """
    done = give_numbers(context.open_lake(), run, by or getpass.getuser())
    attempts = sorted(set(done.attempts.values()))
    if as_json:
        show_json({"run": run, "plan": done.plan, "rows": done.rows, "attempts": attempts, "within": done.within})
    else:
        shown = ", ".join(map(str, attempts))
        tell(f"plan {done.plan}: {done.rows:,} rows of run {run} are attempt {shown} now")
        if done.within:
            tell(f"{done.within:,} steps are still there twice, each in one life: {COUNTED_ANEW}")
    return 1 if done.within else 0
