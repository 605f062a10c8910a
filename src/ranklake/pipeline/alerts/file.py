"""The file of alerts: rules, routes, receivers, silences and tests. Every fault is reported with its line."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import time
from fnmatch import fnmatchcase
from importlib.resources import files
from pathlib import Path
from typing import Annotated, Final, Literal
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime, Field

from ranklake.errors import RanklakeError, did_you_mean
from ranklake.lake.rollups.detectors.registry import DETECTORS
from ranklake.operator_files import KeyPath, OperatorFile, raise_all
from ranklake.retention.policies.file import Patterns, Text, Texts
from ranklake.segments.references import is_reference

OWN_RULE: Final = "alerts-incomplete"
"""Name of the rule that is added to a file without a rule of source ``rules``."""
HEARTBEAT: Final = "heartbeat"
"""Name of the heartbeat's receiver in results of deliveries."""
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Severity = Literal["info", "warning", "error", "critical"]
Seconds = Annotated[int, Field(ge=0, le=30 * 86_400)]
Labels = Mapping[str, str]
"""Labels of a signal, such as ``run`` or ``team``; an unknown label is absent, and matches nothing."""


class AlertFileError(RanklakeError):
    """A file of alerts that cannot be used. Nothing was sent."""


def matches(where: Mapping[str, Patterns], labels: Labels) -> bool:
    """Whether each key is a label, and one of its texts matches the value.

    >>> matches({"run": ["llm-*", "vit"]}, {"run": "llm-7"}), matches({"team": "*"}, {"run": "llm-7"})
    (True, False)
    """
    return all(
        key in labels and any(fnmatchcase(labels[key], text) for text in _texts(texts)) for key, texts in where.items()
    )


def _texts(patterns: Patterns) -> tuple[str, ...]:
    return (patterns,) if isinstance(patterns, str) else patterns


@dataclass(frozen=True, kw_only=True)
class Inhibition:
    """Rules whose alerts suppress this rule's alerts, if the labels named by `equal` have the same values."""

    rules: Texts
    equal: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule: matching signals of a source, or rows of a query, are alerts."""

    source: Literal["incidents", "slo", "checks", "pipeline", "rules", "sql"]
    owner: Text
    summary: Text
    sql: Annotated[Text | None, Field(description="A SELECT: a row is a signal, its column 'subject' the name.")] = None
    where: dict[str, Patterns] = field(default_factory=dict)
    severity: Annotated[Severity | None, Field(description="Otherwise the signal's.")] = None
    for_s: Annotated[Seconds, Field(description="How long a signal must last.")] = 0
    runbook: Text | None = None
    inhibited_by: Inhibition | None = None

    def __post_init__(self) -> None:
        if (self.source == "sql") != (self.sql is not None):
            raise ValueError("sql is for rules with source: sql, and they need it")


@dataclass(frozen=True, kw_only=True)
class Quiet:
    """Hours in which nothing is sent, by the clock of a time zone; over midnight if they end before they begin."""

    start: time
    end: time
    timezone: Text = "UTC"
    except_severities: Annotated[tuple[Severity, ...], Field(description="Severities that are sent nevertheless.")] = (
        "critical",
    )

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"timezone {self.timezone!r} is unknown: write one such as Europe/Berlin") from None
        if self.start.tzinfo or self.end.tzinfo or self.start == self.end:
            raise ValueError("start and end must differ, and have no offset, such as '22:00' and '07:00'")


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """Further receivers of an alert that has been firing for `after_s`."""

    after_s: Seconds
    receivers: Texts


@dataclass(frozen=True, kw_only=True)
class Route:
    """Receivers of alerts. An alert takes the first route that matches."""

    receivers: Texts
    where: dict[str, Patterns] = field(default_factory=dict)
    kind: Literal["page", "ticket"] = "ticket"
    group_by: Annotated[tuple[Text, ...], Field(description="Labels; alerts that share them go out as one.")] = ("run",)
    repeat_s: Annotated[int, Field(ge=60)] = 4 * 3600
    quiet: Quiet | None = None
    escalate: Escalation | None = None


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """Receiver of alerts: a reference to its URL, which is a secret, and fallbacks for failed deliveries."""

    url: Text
    kind: Literal["apprise", "alertmanager", "pagerduty"] = "apprise"
    fallback: Annotated[tuple[Text, ...], Field(description="Receivers of alerts that could not be delivered.")] = ()

    def __post_init__(self) -> None:
        _check_reference(self.url)


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """Message of each round, whose absence shows that alerting is down: a POST, or an alert that always fires."""

    url: Text
    kind: Literal["http", "alertmanager"] = "http"

    def __post_init__(self) -> None:
        _check_reference(self.url)


def _check_reference(url: str) -> None:
    if not is_reference(url):
        raise ValueError("url must say where the URL is, by env:NAME or file:/path, since it is a secret")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Alerts that are not sent, until when, and why."""

    where: Annotated[dict[str, Patterns], Field(min_length=1)]
    reason: Text
    owner: Text
    until: AwareDatetime


@dataclass(frozen=True, kw_only=True)
class CaseSignal:
    """A signal of a test; of a rule with SQL, `source` is the rule's name."""

    source: Text
    subject: Text
    severity: Severity = "error"
    message: str = ""
    labels: dict[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """An evaluation in a test: its signals, and the expected messages as ``receiver: firing rule/subject``."""

    at_s: Annotated[int, Field(ge=0)]
    signals: tuple[CaseSignal, ...] = ()
    unknown: Annotated[tuple[Text, ...], Field(description="Rules that could not be evaluated.")] = ()
    lost: Annotated[tuple[Text, ...], Field(description="Receivers that do not answer.")] = ()
    expect: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test: successive rounds."""

    name: Text
    start: AwareDatetime
    rounds: Annotated[tuple[Round, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class AlertFile:
    """The content of a file of alerts."""

    version: Literal[1]
    rules: Annotated[dict[Name, Rule], Field(min_length=1)]
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    receivers: dict[Name, Receiver]
    heartbeat: Heartbeat | None = None
    silences: tuple[Silence, ...] = ()
    tests: tuple[Case, ...] = ()

    def inhibitors(self, name: str) -> frozenset[str]:
        """Names of the rules that suppress a rule directly."""
        inhibition = self.rules[name].inhibited_by
        texts = inhibition.rules if inhibition else ()
        return frozenset(other for other in self.rules if any(fnmatchcase(other, text) for text in texts))


SqlFault = Callable[[str], str]
"""Returns the syntax error in a rule's SQL; empty if there is none."""


def no_fault(_: str) -> str:
    """Check nothing: a round reports rules that it cannot evaluate, and evaluates the others."""
    return ""


def load_alerts(path: Path, text: str | None = None, *, sql_fault: SqlFault = no_fault) -> AlertFile:
    """Read a file of alerts. Raises `AlertFileError` for the first fault, with all others as its ``others``.

    Parameters
    ----------
    sql_fault
        Checks the syntax of rules' SQL.
    """
    file = OperatorFile(path, text, error=AlertFileError, noun="file of alerts")
    result = file.load(AlertFile)
    raise_all((*_rule_faults(file, result, sql_fault), *_route_faults(file, result), *_test_faults(file, result)))
    return result


def packaged_text() -> str:
    """Return the text of ranklake's own rules."""
    return (files(__package__) / "default.yaml").read_text()


def packaged_alerts(url: str = "", heartbeat: str = "") -> AlertFile:
    """Return ranklake's own rules.

    Parameters
    ----------
    url, heartbeat
        References to the URLs of the receiver and of the heartbeat. If empty, the receiver's is the file's own, and
        there is no heartbeat.
    """
    result = load_alerts(Path("default.yaml"), packaged_text())
    result = replace(result, heartbeat=Heartbeat(url=heartbeat)) if heartbeat else result
    return replace(result, receivers={name: Receiver(url=url) for name in result.receivers}) if url else result


def _rule_faults(file: OperatorFile, alerts: AlertFile, sql_fault: SqlFault) -> Iterator[RanklakeError]:
    detectors = [detector.name for detector in DETECTORS]
    for name, rule in alerts.rules.items():
        if name == OWN_RULE:
            yield file.error(("rules", name), f"the name {name!r} is taken by a rule of ranklake", "take another")
        if rule.sql and (fault := sql_fault(rule.sql)):
            yield file.error(("rules", name, "sql"), f"the SQL of rule {name!r} cannot be parsed: {fault}")
        kinds = _texts(rule.where.get("kind", ())) if rule.source == "incidents" else ()
        yield from _unknown(file, ("rules", name, "where", "kind"), "detector", kinds, detectors)
        rules = rule.inhibited_by.rules if rule.inhibited_by else ()
        yield from _unknown(file, ("rules", name, "inhibited_by", "rules"), "rule", rules, alerts.rules)
        if name in _all_inhibitors(alerts, name):
            text = f"the rule {name!r} suppresses itself, directly or through other rules, so that nobody gets it"
            yield file.error(("rules", name, "inhibited_by"), text, "remove the inhibited_by of one of these rules")


def _route_faults(file: OperatorFile, alerts: AlertFile) -> Iterator[RanklakeError]:
    last = len(alerts.routes) - 1
    for place, route in enumerate(alerts.routes):
        at: KeyPath = ("routes", place)
        receivers = (*route.receivers, *(route.escalate.receivers if route.escalate else ()))
        yield from _unknown(file, (*at, "receivers"), "receiver", receivers, alerts.receivers)
        if not route.where and place < last:
            yield file.error(at, "this route takes all alerts, and others follow", "put it last")
    for name, receiver in alerts.receivers.items():
        if name == HEARTBEAT:
            yield file.error(("receivers", name), f"the name {name!r} is taken by the heartbeat", "take another")
        others = alerts.receivers.keys() - {name}
        yield from _unknown(file, ("receivers", name, "fallback"), "receiver", receiver.fallback, others)
    if alerts.routes[-1].where:
        yield file.error(("routes", last, "where"), "some alerts have no route", "add one without where")


def _test_faults(file: OperatorFile, alerts: AlertFile) -> Iterator[RanklakeError]:
    sources = {
        "incidents",
        "slo",
        "checks",
        "pipeline",
        "rules",
        *(name for name, rule in alerts.rules.items() if rule.sql),
    }
    for place, case in enumerate(alerts.tests):
        for number, round_ in enumerate(case.rounds):
            at: KeyPath = ("tests", place, "rounds", number)
            yield from _unknown(file, (*at, "signals"), "source", [signal.source for signal in round_.signals], sources)
            yield from _unknown(file, (*at, "unknown"), "rule", round_.unknown, alerts.rules)
            yield from _unknown(file, (*at, "lost"), "receiver", round_.lost, alerts.receivers)


def _unknown(
    file: OperatorFile, at: KeyPath, noun: str, texts: Iterable[str], names: Collection[str]
) -> Iterator[RanklakeError]:
    """Yield a fault for each text that no name matches."""
    for text in texts:
        if not any(fnmatchcase(name, text) for name in names):
            yield file.error(at, f"there is no {noun} {text!r}", did_you_mean(text, names))


def _all_inhibitors(alerts: AlertFile, name: str) -> set[str]:
    """Return all rules that suppress a rule, directly or through others."""
    result: set[str] = set()
    rest = [name]
    while rest:
        added = alerts.inhibitors(rest.pop()) - result
        result |= added
        rest += added
    return result
