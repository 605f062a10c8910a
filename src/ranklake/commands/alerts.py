"""``ranklake alerts``: rules of who is told of what, and their tests."""

from dataclasses import asdict
from pathlib import Path

import click

from ranklake.commands.options import Group, json_option
from ranklake.pipeline.alerts.cases import run_cases
from ranklake.pipeline.alerts.file import load_alerts, packaged_alerts
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.group(cls=Group)
def alerts() -> None:
    """Check rules of who is told of incidents, objectives, failed checks and rows of SQL. Nothing is sent yet."""


@alerts.command("test")
@click.option("--rules", metavar="FILE", type=click.Path(path_type=Path), help="File; default: the packaged rules.")
@json_option
def test(rules: Path | None, *, as_json: bool) -> int:
    """Run the tests that stand in a file of alerts: signals as data, and what is sent to whom; exit 1 if one fails.

    Opens no lake and sends nothing.
    """
    file = packaged_alerts() if rules is None else load_alerts(rules)
    results = run_cases(file)
    failed = [result for result in results if not result.passed]
    if as_json:
        show_json([{**asdict(result), "passed": result.passed} for result in results])
    else:
        lines = (printable(result.line) for result in failed)
        tell(*lines, f"{counted(len(file.tests), 'test')}, {counted(len(results), 'round')}, {len(failed):,} failed")
    return 1 if failed else 0
