"""The file of alerts: rules, routes, receivers, silences and tests; all that is wrong with it, each with its line."""

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
"""A rule that a file has where it has none with the source ``rules``."""
HEARTBEAT: Final = "heartbeat"
"""What results of deliveries call the heartbeat's receiver."""
Name = Annotated[str, Field(pattern="^[a-z0-9][a-z0-9_-]{0,62}$")]
Severity = Literal["info", "warning", "error", "critical"]
Seconds = Annotated[int, Field(ge=0, le=30 * 86_400)]
Labels = Mapping[str, str]
"""What is known of a signal, by name, such as ``run`` or ``team``; what is unknown is absent and matches nothing."""


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
    """Rules whose alerts keep this one's back, where the labels named by `equal` are the same."""

    rules: Texts
    equal: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Rule:
    """What is an alert: signals of a source that match, or rows of a query."""

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
    but: Annotated[tuple[Severity, ...], Field(description="Severities that are sent all the same.")] = ("critical",)

    def __post_init__(self) -> None:
        try:
            ZoneInfo(self.timezone)
        except (KeyError, ValueError, OSError):
            raise ValueError(f"timezone {self.timezone!r} is unknown: write one such as Europe/Berlin") from None
        if self.start.tzinfo or self.end.tzinfo or self.start == self.end:
            raise ValueError("start and end must differ, and have no offset, such as '22:00' and '07:00'")


@dataclass(frozen=True, kw_only=True)
class Escalation:
    """Who else gets an alert that has been firing for so long."""

    after_s: Seconds
    receivers: Texts


@dataclass(frozen=True, kw_only=True)
class Route:
    """Who gets alerts. The first route that matches an alert is its route."""

    receivers: Texts
    where: dict[str, Patterns] = field(default_factory=dict)
    kind: Literal["page", "ticket"] = "ticket"
    group_by: Annotated[tuple[Text, ...], Field(description="Labels; alerts that share them go out as one.")] = ("run",)
    repeat_s: Annotated[int, Field(ge=60)] = 4 * 3600
    quiet: Quiet | None = None
    escalate: Escalation | None = None


@dataclass(frozen=True, kw_only=True)
class Receiver:
    """Where alerts go: a reference to the URL, which is a secret, and who gets them if they are lost there."""

    url: Text
    kind: Literal["apprise", "alertmanager", "pagerduty"] = "apprise"
    fallback: Annotated[tuple[Text, ...], Field(description="Receivers of what this one did not take.")] = ()

    def __post_init__(self) -> None:
        _check_reference(self.url)


@dataclass(frozen=True, kw_only=True)
class Heartbeat:
    """What is sent each round, so that somebody notices when it is not: a POST, or an alert that always fires."""

    url: Text
    kind: Literal["http", "alertmanager"] = "http"

    def __post_init__(self) -> None:
        _check_reference(self.url)


def _check_reference(url: str) -> None:
    if not is_reference(url):
        raise ValueError("url must say where the URL is, by env:NAME or file:/path, since it is a secret")


@dataclass(frozen=True, kw_only=True)
class Silence:
    """Alerts that nobody is told of, until when, and why."""

    where: Annotated[dict[str, Patterns], Field(min_length=1)]
    reason: Text
    owner: Text
    until: AwareDatetime


@dataclass(frozen=True, kw_only=True)
class GivenSignal:
    """A signal of a test; of a rule with SQL, `source` is the rule's name."""

    source: Text
    subject: Text
    severity: Severity = "error"
    message: str = ""
    labels: dict[str, Text] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Round:
    """One evaluation of a test: what lasts at that time, and what is sent, as ``receiver: firing rule/subject``."""

    at_s: Annotated[int, Field(ge=0)]
    signals: tuple[GivenSignal, ...] = ()
    unknown: Annotated[tuple[Text, ...], Field(description="Rules that could not be evaluated.")] = ()
    lost: Annotated[tuple[Text, ...], Field(description="Receivers that do not answer.")] = ()
    expect: tuple[Text, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Case:
    """A test: rounds one after the other."""

    name: Text
    start: AwareDatetime
    rounds: Annotated[tuple[Round, ...], Field(min_length=1)]


@dataclass(frozen=True, kw_only=True)
class AlertFile:
    """All of a file."""

    version: Literal[1]
    rules: Annotated[dict[Name, Rule], Field(min_length=1)]
    routes: Annotated[tuple[Route, ...], Field(min_length=1)]
    receivers: dict[Name, Receiver]
    heartbeat: Heartbeat | None = None
    silences: tuple[Silence, ...] = ()
    tests: tuple[Case, ...] = ()

    def inhibitors(self, name: str) -> frozenset[str]:
        """Names of the rules that keep a rule back, by its patterns."""
        inhibition = self.rules[name].inhibited_by
        texts = inhibition.rules if inhibition else ()
        return frozenset(other for other in self.rules if any(fnmatchcase(other, text) for text in texts))


SqlFault = Callable[[str], str]
"""What is wrong with the syntax of a rule's SQL; empty if nothing is."""


def no_fault(_: str) -> str:
    """Leave it to rounds to find out: there a rule that cannot be evaluated is told, and stops no other."""
    return ""


def load_alerts(path: Path, text: str | None = None, *, sql_fault: SqlFault = no_fault) -> AlertFile:
    """Read a file. Raises `AlertFileError`, with all further faults as its ``others``: of its form, else of the rest.

    Parameters
    ----------
    sql_fault
        Looks at the SQL of rules.
    """
    file = OperatorFile(path, text, error=AlertFileError, noun="file of alerts")
    result = file.load(AlertFile)
    raise_all((*_rule_faults(file, result, sql_fault), *_route_faults(file, result), *_test_faults(file, result)))
    return result


def packaged_text() -> str:
    """Return the text of the rules that come with ranklake."""
    return (files(__package__) / "default.yaml").read_text()


def packaged_alerts(url: str = "", heartbeat: str = "") -> AlertFile:
    """Return the rules that come with ranklake.

    Parameters
    ----------
    url, heartbeat
        Where the URLs of their receiver and of the heartbeat are; empty: as they have it, and none.
    """
    result = load_alerts(Path("default.yaml"), packaged_text())
    result = replace(result, heartbeat=Heartbeat(url=heartbeat)) if heartbeat else result
    return replace(result, receivers={name: Receiver(url=url) for name in result.receivers}) if url else result


def _rule_faults(file: OperatorFile, each: AlertFile, sql_fault: SqlFault) -> Iterator[RanklakeError]:
    detectors = [detector.name for detector in DETECTORS]
    for name, rule in each.rules.items():
        if name == OWN_RULE:
            yield file.error(("rules", name), f"the name {name!r} is taken by a rule of ranklake", "take another")
        if rule.sql and (fault := sql_fault(rule.sql)):
            yield file.error(("rules", name, "sql"), f"the SQL of rule {name!r} cannot be parsed: {fault}")
        kinds = _texts(rule.where.get("kind", ())) if rule.source == "incidents" else ()
        yield from _unknown(file, ("rules", name, "where", "kind"), "detector", kinds, detectors)
        rules = rule.inhibited_by.rules if rule.inhibited_by else ()
        yield from _unknown(file, ("rules", name, "inhibited_by", "rules"), "rule", rules, each.rules)
        if name in _above(each, name):
            text = f"the rule {name!r} keeps itself back, directly or by way of others, so that nobody gets it"
            yield file.error(("rules", name, "inhibited_by"), text, "take one inhibited_by of them out")


def _route_faults(file: OperatorFile, each: AlertFile) -> Iterator[RanklakeError]:
    last = len(each.routes) - 1
    for place, route in enumerate(each.routes):
        at: KeyPath = ("routes", place)
        receivers = (*route.receivers, *(route.escalate.receivers if route.escalate else ()))
        yield from _unknown(file, (*at, "receivers"), "receiver", receivers, each.receivers)
        if not route.where and place < last:
            yield file.error(at, "this route takes all alerts, and others follow", "put it last")
    for name, receiver in each.receivers.items():
        if name == HEARTBEAT:
            yield file.error(("receivers", name), f"the name {name!r} is taken by the heartbeat", "take another")
        others = each.receivers.keys() - {name}
        yield from _unknown(file, ("receivers", name, "fallback"), "receiver", receiver.fallback, others)
    if each.routes[-1].where:
        yield file.error(("routes", last, "where"), "some alerts have no route", "add one without where")


def _test_faults(file: OperatorFile, each: AlertFile) -> Iterator[RanklakeError]:
    sources = {
        "incidents",
        "slo",
        "checks",
        "pipeline",
        "rules",
        *(name for name, rule in each.rules.items() if rule.sql),
    }
    for place, case in enumerate(each.tests):
        for number, moment in enumerate(case.rounds):
            at: KeyPath = ("tests", place, "rounds", number)
            yield from _unknown(file, (*at, "signals"), "source", [signal.source for signal in moment.signals], sources)
            yield from _unknown(file, (*at, "unknown"), "rule", moment.unknown, each.rules)
            yield from _unknown(file, (*at, "lost"), "receiver", moment.lost, each.receivers)


def _unknown(
    file: OperatorFile, at: KeyPath, noun: str, texts: Iterable[str], names: Collection[str]
) -> Iterator[RanklakeError]:
    """Yield a fault for each text that no name matches."""
    for text in texts:
        if not any(fnmatchcase(name, text) for name in names):
            yield file.error(at, f"there is no {noun} {text!r}", did_you_mean(text, names))


def _above(each: AlertFile, name: str) -> set[str]:
    """Return all rules that keep a rule back, those that keep these back, and so on."""
    result: set[str] = set()
    rest = [name]
    while rest:
        added = each.inhibitors(rest.pop()) - result
        result |= added
        rest += added
    return result
