"""``ranklake alerts``: alert rules and receivers, their tests, and the alerts that fire."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

import click
import yaml

from ranklake.commands.context import noted_role_of, with_context
from ranklake.commands.options import Group, json_option, lake_option, optional_spool, role_option
from ranklake.context import Context
from ranklake.errors import did_you_mean
from ranklake.insight.overview.alerts import firing, history
from ranklake.insight.runs.asking import asking
from ranklake.pipeline.alerts.delivery import send_test
from ranklake.pipeline.alerts.file import AlertFile, AlertFileError, SqlFault, load_alerts, no_fault, packaged_text
from ranklake.pipeline.alerts.rule_import import import_rules
from ranklake.pipeline.alerts.rule_queries import syntax_fault
from ranklake.pipeline.alerts.stage import AlertsFailedError, alerts_round, configured_rules, raise_if_lost
from ranklake.pipeline.alerts.state import AlertState, Notification, Signal, evaluate, sent
from ranklake.pipeline.headlines import headline
from ranklake.printable import counted, printable
from ranklake.views.json_output import show_json
from ranklake.views.table import TextColumn, numbers, table_lines
from ranklake.views.tell import tell


@click.group(cls=Group)
def alerts() -> None:
    """Check alert rules and receivers; list alerts that fire or fired."""


_RULES = click.option(
    "--rules",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="File; default: [alerts] file, else the packaged one.",
)


@alerts.command("new")
@click.argument("file", type=click.Path(path_type=Path))
def new(file: Path) -> None:
    """Write the packaged rules into a new FILE, for you to edit."""
    if file.exists():
        raise click.UsageError(f"{file} is there already; name a new file")
    file.write_text(packaged_text())
    tell(f"{file}: name it by file under [alerts] in ranklake.toml, in place of notify")


@alerts.command("test")
@_RULES
@json_option
@with_context
def test(context: Context, rules: Path | None, *, as_json: bool) -> int:
    """Run the tests in a file of alerts: given signals, expected messages and receivers. Exits 1 if one fails.

    Parses the rules' SQL. Opens no lake and sends nothing.
    """
    file = _file(context, rules, syntax_fault)
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
@with_context
def send(context: Context, receiver: str, rules: Path | None, *, as_json: bool) -> int:
    """Send a test message to a RECEIVER of the file of alerts; exit 1 if it is lost. Opens no lake."""
    file = _file(context, rules)
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


@alerts.command("round")
@click.option("--heartbeat/--no-heartbeat", default=True, show_default=True, help="Whether to send the heartbeat.")
@json_option
@lake_option
@optional_spool("URI or folder of the spool; without one, nothing is known of what waits there.")
@with_context
def round_once(context: Context, *, heartbeat: bool, as_json: bool) -> int:
    """Evaluate the rules once and send due messages, as the pipeline does. Exits 1 if a message was lost."""
    result = alerts_round(context, has_heartbeat=heartbeat)
    if as_json:
        show_json(result)
    else:
        tell(", ".join(headline("alerts", result)))
    try:
        raise_if_lost(result)
    except AlertsFailedError as error:
        tell(printable(str(error)), err=True)
        return 1
    return 0


@alerts.command("import")
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--owner", required=True, help="Owner of rules without a label team or owner.")
@json_option
def import_(file: Path, owner: str, *, as_json: bool) -> None:
    """Translate alerts of a Prometheus rule FILE into rules to paste; others are comments with the reason.

    Alerts on metrics of dcgm-exporter translate, one device at a time. Changes nothing.
    """
    imported = import_rules(file, owner)
    if as_json:
        left_out = [asdict(each) for each in imported.left_out]
        show_json({"rules": imported.rules, "left_out": left_out, "alerts": imported.alerts})
    else:
        count = f"# {counted(len(imported.rules), 'rule')} of {counted(imported.alerts, 'alert')}"
        tell(*map(printable, imported.yaml_text().splitlines()), count)


def _file(context: Context, rules: Path | None, sql_fault: SqlFault = no_fault) -> AlertFile:
    return configured_rules(context, sql_fault) if rules is None else load_alerts(rules, sql_fault=sql_fault)


_LENGTH: Final = re.compile(r"([1-9][0-9]{0,3})([mhd])")
_UNITS_S: Final = {"m": 60, "h": 3600, "d": 86_400}
_COLUMNS: Final = (
    *map(TextColumn, ("severity", "rule", "fired", "over", "run", "told", "not told, why", "message")),
    *numbers(("messages", "not taken")),
)


@alerts.command("list")
@click.option("--history", "all_of_them", is_flag=True, help="Also those that were resolved in the last 31 days.")
@click.option("--firing", "only_firing", is_flag=True, help="Only those that fire, as without options.")
@role_option
@json_option
@lake_option
@with_context
def list_alerts(context: Context, *, all_of_them: bool, only_firing: bool, role: str | None, as_json: bool) -> None:
    """List firing alerts, the worst first: since when, and who was notified."""
    if all_of_them and only_firing:
        raise click.UsageError("--history and --firing are two lists: leave one out")
    lake = context.open_lake()
    ask = asking(lake, noted_role_of(context, lake, role))
    rows = (history(ask) if all_of_them else firing(ask)).seen().rows
    if as_json:
        show_json([dict(row) for row in rows])
    elif rows:
        tell(*table_lines(_COLUMNS, map(_cells, rows)))
    else:
        tell("no alert fired in the last 31 days" if all_of_them else "no alert fires")


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    over = row.get("resolved_ts")
    texts = (
        row["severity"], row["rule"], f"{row['fired_ts']:%Y-%m-%d %H:%M}", f"{over:%Y-%m-%d %H:%M}" if over else "-",
        row["run"] or "-", row["receivers"] or "-", row["muted"] or "-", row["message"] or row["subject"],
        f"{row['messages']:,}", f"{row['failures']:,}",
    )  # fmt: skip
    return tuple(map(printable, texts))


@alerts.command("silence")
@click.argument("labels", metavar="LABEL=PATTERN[,…]")
@click.option("--for", "length", required=True, metavar="TIME", help="How long, such as 30m, 4h or 2d.")
@click.option("--reason", required=True, help="Why they are silenced.")
@click.option("--owner", required=True, help="Who answers for it.")
def silence(labels: str, length: str, reason: str, owner: str) -> None:
    """Print a silence to paste into the file of alerts, below silences; nothing is changed.

    Example: ranklake alerts silence 'rule=gpus-wasted,run=bench-*' --for 4h --reason "A benchmark." --owner storage
    """
    where = dict(_label(part) for part in labels.split(","))
    until = datetime.now(UTC).replace(microsecond=0) + timedelta(seconds=_seconds(length))
    entry = {"where": where, "reason": reason, "owner": owner, "until": until}
    tell(*yaml.safe_dump([entry], sort_keys=False, allow_unicode=True).splitlines())


def _label(text: str) -> tuple[str, str]:
    name, equals, pattern = text.strip().partition("=")
    if not (name and equals and pattern):
        raise click.UsageError(f"{text!r} is not LABEL=PATTERN, such as 'run=bench-*'")
    return name, pattern


def _seconds(text: str) -> int:
    match = _LENGTH.fullmatch(text)
    if match is None:
        raise click.UsageError(f"--for {text!r} is not a length of time such as 30m, 4h or 2d")
    return int(match[1]) * _UNITS_S[match[2]]


@dataclass(frozen=True, slots=True)
class CaseResult:
    """Expected and sent messages of a test's round, in any order."""

    name: str
    at_s: int
    expected: tuple[str, ...]
    sent: tuple[str, ...]

    @property
    def passed(self) -> bool:
        """Whether they are the same."""
        return sorted(self.expected) == sorted(self.sent)

    @property
    def line(self) -> str:
        """Both, in one line."""
        expected, actual = (", ".join(each) or "nothing" for each in (self.expected, self.sent))
        return f"{self.name}, at {self.at_s} s: expected {expected}, and it sends {actual}"


def run_cases(file: AlertFile) -> list[CaseResult]:
    """Run all tests; nothing is sent."""
    result: list[CaseResult] = []
    for case in file.tests:
        state = AlertState()
        for moment in case.rounds:
            now = case.start + timedelta(seconds=moment.at_s)
            signals = [Signal(**vars(signal)) for signal in moment.signals]
            evaluation = evaluate(file, state, signals, now, moment.unknown)
            state = evaluation.state
            texts: list[str] = []
            for notification in evaluation.notifications:
                if notification.receiver not in moment.lost:
                    state = sent(state, notification, now)
                    texts += lines(notification)
            result.append(CaseResult(case.name, moment.at_s, moment.expect, tuple(texts)))
    return result


def lines(notification: Notification) -> Iterator[str]:
    """Yield a notification's lines, as tests write them: ``receiver: firing rule/subject``, or repeated, resolved."""
    for alert in notification.firing:
        verb = "firing" if alert.key in notification.new else "still firing"
        yield f"{notification.receiver}: {verb} {alert.key}"
    for alert in notification.resolved:
        yield f"{notification.receiver}: resolved {alert.key}"
