"""``ranklake doctor``."""

import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import click

from ranklake.commands.configured import command_line_options
from ranklake.commands.options import Number, json_option, overriding
from ranklake.config import ConfigError, ConfigFile, merge_environment, read_config
from ranklake.doctor.examination import LIMIT_S, Finding, Patient, examine
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, table_lines
from ranklake.views.tell import tell


@click.command()
@overriding("--lake", place="lake.uri", metavar="URI", help="URI or folder of the lake.")
@overriding("--spool", place="spool.uri", metavar="URI", help="URI or folder of the spool.")
@overriding("--dask", place="dask.address", metavar="ADDRESS", help="Dask scheduler, such as tls://host:8786.")
@click.option("--limit-s", default=LIMIT_S, show_default=True, type=Number(0.1, 600), help="Time limit of each probe.")
@click.option(
    "--overdue-hours",
    type=Number(0, 100 * 366 * 24, min_open=True),
    help="How long a stage may lag before it is overdue; default: [health] overdue_s, an hour.",
)
@click.option(
    "--home",
    default=Path("~/.ranklake"),
    show_default=True,
    type=click.Path(path_type=Path),
    help="Folder of 'ranklake up', whose server is asked where PREFECT_API_URL is not set.",
)
@json_option
@click.pass_context
def doctor(ctx: click.Context, *, limit_s: float, overdue_hours: float | None, home: Path, as_json: bool) -> int:
    """Check everything that ranklake depends on, and print how to fix faults.

    Changes nothing, and works without lake, spool and configuration file, which it then reports as not configured.
    Exits 1 if there is a warning or a failure, else 0. Skipped and unknown checks are listed at the end, and do not
    count.
    """
    result = examine(replace(_patient(ctx, overdue_hours), home=home), limit_s)
    counts = Counter(one.state for one in result)
    is_sound = not any(one.is_wrong for one in result)
    if as_json:
        show_json({"sound": is_sound, "counts": counts, "not_checked": _skipped_checks(result), "findings": result})
    else:
        _print(result)
        tell(_summary(result))
    return 0 if is_sound else 1


def _skipped_checks(findings: Sequence[Finding]) -> list[str]:
    """Return the checks without a result: not configured or unknown."""
    known = {one.check for one in findings if one.state != "skipped"}
    return list(dict.fromkeys(one.check for one in findings if one.check not in known))


def _summary(findings: Sequence[Finding]) -> str:
    wrong, skipped = sum(one.is_wrong for one in findings), _skipped_checks(findings)
    made = len({one.check for one in findings}) - len(skipped)
    result = f"{counted(wrong, 'finding')}, and what to do in each line" if wrong else "nothing wrong"
    if not wrong and "lake" in skipped:
        result = "nothing wrong on this machine; no lake was looked at"
    without = f"; not checked, and why in each line: {', '.join(skipped)}" if skipped else ""
    return f"{counted(made, 'check')}: {result}{without}"


def _patient(ctx: click.Context, overdue_h: float | None) -> Patient:
    try:
        read = read_config()
    except ConfigError as error:
        read = ConfigFile(problems=(error,))
    return Patient(merge_environment(read, os.environ).overridden(command_line_options(ctx)), read, overdue_h)


def _print(findings: Sequence[Finding]) -> None:
    rows = [
        (one.check, one.state, printable(f"{one.what}; {one.remedy}" if one.remedy else one.what)) for one in findings
    ]
    tell(*table_lines([TextColumn("check"), TextColumn("state"), TextColumn("what")], rows))
