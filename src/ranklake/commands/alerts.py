"""``ranklake alerts``: rules of who is told of what, and their tests."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

import click

from ranklake.commands.options import Group, json_option
from ranklake.errors import did_you_mean
from ranklake.pipeline.alerts.cases import run_cases
from ranklake.pipeline.alerts.delivery import send_test
from ranklake.pipeline.alerts.file import AlertFile, AlertFileError, load_alerts, packaged_alerts
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.tell import tell


@click.group(cls=Group)
def alerts() -> None:
    """Check rules of who is told of incidents, objectives, failed checks and rows of SQL, and their receivers."""


_RULES = click.option(
    "--rules", metavar="FILE", type=click.Path(path_type=Path), help="File; default: the packaged rules."
)


@alerts.command("test")
@_RULES
@json_option
def test(rules: Path | None, *, as_json: bool) -> int:
    """Run the tests that stand in a file of alerts: signals as data, and what is sent to whom; exit 1 if one fails.

    Opens no lake and sends nothing.
    """
    file = _file(rules)
    results = run_cases(file)
    failed = [result for result in results if not result.passed]
    if as_json:
        show_json([{**asdict(result), "passed": result.passed} for result in results])
    else:
        lines = (printable(result.line) for result in failed)
        tell(*lines, f"{counted(len(file.tests), 'test')}, {counted(len(results), 'round')}, {len(failed):,} failed")
    return 1 if failed else 0


@alerts.command("send")
@click.argument("receiver")
@_RULES
@json_option
def send(receiver: str, rules: Path | None, *, as_json: bool) -> int:
    """Send a test message to a RECEIVER of the file of alerts; exit 1 if it is lost. Opens no lake."""
    file = _file(rules)
    if receiver not in file.receivers:
        hint = did_you_mean(receiver, file.receivers)
        raise AlertFileError(f"there is no receiver {receiver!r}", where=str(rules or ""), hint=hint)
    result = send_test(file, receiver, datetime.now(UTC))
    if as_json:
        show_json([asdict(result)])
    else:
        outcome = "delivered" if result.is_delivered else f"lost: {result.error}"
        tell(printable(f"{receiver}: {outcome} ({counted(result.attempts, 'attempt')}, {result.duration_s:.1f} s)"))
    return 0 if result.is_delivered else 1


def _file(rules: Path | None) -> AlertFile:
    return packaged_alerts() if rules is None else load_alerts(rules)
