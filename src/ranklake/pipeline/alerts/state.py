"""Due messages: a pure function of the rules, past deliveries, present signals, and the time.

An alert is pending until its signal has lasted ``for_s``, then it fires, and is resolved once the signal is gone.
Alerts of a rule that could not be evaluated stay unchanged. Deliveries are kept by receiver and group, so that a
receiver gets each firing once, and its end once. `sent` records a delivery; lost messages are due again in the next
round. If a process dies after sending and before storing, the message is sent again with the same `Notification.id`:
delivery is at least once, and receivers can drop repeated ids.
"""

import hashlib
import json
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final
from zoneinfo import ZoneInfo

from pydantic import AwareDatetime

from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.pipeline.alerts.file import AlertFile, Labels, Quiet, Route, Rule, matches

_REMEMBERED: Final = timedelta(days=30)
"""How long a group without alerts keeps its count, which is part of ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """A present condition: an incident, an objective with a firing alert, a failed check, a row of a rule's query."""

    source: str
    subject: str
    severity: str = "error"
    message: str = ""
    labels: Labels = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """A signal under a rule. `fired` is None while it is pending. `labels` are those of its first signal."""

    rule: str
    subject: str
    severity: str
    message: str
    labels: Labels
    since: AwareDatetime
    fired: AwareDatetime | None = None

    @property
    def key(self) -> str:
        """Its name among all alerts."""
        return f"{self.rule}/{self.subject}"


@dataclass(frozen=True, slots=True)
class Delivery:
    """Last delivery to a receiver about a group: time, alerts that fired, and number of messages so far."""

    ts: AwareDatetime
    firing: Mapping[str, Alert]
    count: int


@dataclass(frozen=True, slots=True)
class AlertState:
    """State between rounds: alerts by key, and deliveries by receiver and group."""

    alerts: Mapping[str, Alert] = field(default_factory=dict)
    deliveries: Mapping[tuple[str, str], Delivery] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Notification:
    """A message: all firing alerts of the group, the new ones, and the resolved ones."""

    id: str
    receiver: str
    kind: str
    group: str
    firing: tuple[Alert, ...]
    new: frozenset[str]
    resolved: tuple[Alert, ...]


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The state before deliveries, and the due messages."""

    state: AlertState
    notifications: tuple[Notification, ...]


def evaluate(
    file: AlertFile,
    state: AlertState,
    signals: Iterable[Signal],
    now: datetime,
    unknown: Collection[str] = frozenset(),
) -> Evaluation:
    """Return the due messages. `unknown` are rules that could not be evaluated. Changes nothing."""
    alerts = _alerts(file, state.alerts, tuple(signals), now, unknown)
    firing = firing_alerts(AlertState(alerts))
    groups: dict[tuple[str, str], dict[str, Alert]] = {}
    for key, alert in firing.items():
        route = route_of(file, alert)
        if mute_reason(file, alert, firing, now):
            continue
        group = json.dumps([alert.labels.get(label, "") for label in route.group_by])
        for receiver in _receivers(route, alert, now):
            groups.setdefault((receiver, group), {})[key] = alert
    deliveries = {
        at: replace(last, ts=min(last.ts, now))  # a clock that was set back must not delay repetitions
        for at, last in state.deliveries.items()
        if at[0] in file.receivers and (last.firing or now - last.ts < _REMEMBERED)
    }
    due = tuple(_notifications(file, groups, deliveries, firing, now))
    return Evaluation(AlertState(alerts, deliveries), due)


def sent(state: AlertState, notification: Notification, now: datetime) -> AlertState:
    """Return the state after a notification was delivered."""
    at = notification.receiver, notification.group
    last = state.deliveries.get(at, Delivery(now, {}, 0))
    ended = {alert.key for alert in notification.resolved}
    firing = {key: alert for key, alert in last.firing.items() if key not in ended}
    firing |= {alert.key: alert for alert in notification.firing}
    return replace(state, deliveries={**state.deliveries, at: Delivery(now, firing, last.count + 1)})


def route_of(file: AlertFile, alert: Alert) -> Route:
    """Return the first matching route; the last one matches all."""
    labels = {**alert.labels, "severity": alert.severity}
    return next((route for route in file.routes if matches(route.where, labels)), file.routes[-1])


def firing_alerts(state: AlertState) -> dict[str, Alert]:
    """Return the alerts that fire, by key; not those that are pending."""
    return {key: alert for key, alert in state.alerts.items() if alert.fired is not None}


def mute_reason(file: AlertFile, alert: Alert, firing: Mapping[str, Alert], now: datetime) -> str:
    """Return why an alert is not sent now: a silence, an inhibiting alert, quiet hours; empty if it is sent."""
    labels = {**alert.labels, "severity": alert.severity}
    for silence in file.silences:
        if now < silence.until and matches(silence.where, labels):
            return f"silence: {silence.reason}"
    rule = file.rules.get(alert.rule)
    if rule is not None and rule.inhibited_by is not None:
        names, equal = file.inhibitors(alert.rule), rule.inhibited_by.equal
        for other in firing.values():
            if other.rule in names and all(other.labels.get(key) == alert.labels.get(key) for key in equal):
                return f"inhibited by {other.rule}"
    return "quiet hours" if _is_quiet(route_of(file, alert).quiet, alert, now) else ""


def _alerts(
    file: AlertFile, before: Mapping[str, Alert], signals: tuple[Signal, ...], now: datetime, unknown: Collection[str]
) -> dict[str, Alert]:
    result = {key: alert for key, alert in before.items() if alert.rule in unknown and alert.rule in file.rules}
    for name, rule in file.rules.items():
        source = name if rule.sql else rule.source
        for signal in signals if name not in unknown else ():
            if signal.source == source and matches(rule.where, {**signal.labels, "severity": signal.severity}):
                alert = _alert(name, rule, signal, before, now)
                other = result.get(alert.key)
                if other is None or SEVERITIES.index(alert.severity) < SEVERITIES.index(other.severity):
                    result[alert.key] = alert
    return result


def _alert(name: str, rule: Rule, signal: Signal, before: Mapping[str, Alert], now: datetime) -> Alert:
    severity = rule.severity or signal.severity
    labels = {**signal.labels, "rule": name, "subject": signal.subject}
    last = before.get(f"{name}/{signal.subject}")
    since = now if last is None else min(last.since, now)
    fired = last.fired if last else None
    if fired is None and now - since >= timedelta(seconds=rule.for_s):
        fired = now
    return Alert(
        rule=name, subject=signal.subject, severity=severity, message=signal.message or rule.summary,
        labels=last.labels if last else labels, since=since, fired=fired,
    )  # fmt: skip


def _receivers(route: Route, alert: Alert, now: datetime) -> Iterator[str]:
    yield from route.receivers
    if route.escalate and alert.fired and now - alert.fired >= timedelta(seconds=route.escalate.after_s):
        yield from route.escalate.receivers


def _is_quiet(quiet: Quiet | None, alert: Alert, now: datetime) -> bool:
    if quiet is None or alert.severity in quiet.except_severities:
        return False
    clock = now.astimezone(ZoneInfo(quiet.timezone)).time()
    if quiet.start < quiet.end:
        return quiet.start <= clock < quiet.end
    return clock >= quiet.start or clock < quiet.end


def _notifications(
    file: AlertFile,
    groups: Mapping[tuple[str, str], Mapping[str, Alert]],
    deliveries: Mapping[tuple[str, str], Delivery],
    firing: Mapping[str, Alert],
    now: datetime,
) -> Iterator[Notification]:
    for at in sorted({*groups, *deliveries}):
        current, last = groups.get(at, {}), deliveries.get(at, Delivery(now, {}, 0))
        new = frozenset(current.keys() - last.firing.keys())
        resolved = tuple(
            alert for key, alert in sorted(last.firing.items())
            if key not in firing and not _is_quiet(route_of(file, alert).quiet, alert, now)
        )  # fmt: skip
        about = (*current.values(), *resolved)
        if not about:
            continue
        routes = [route_of(file, alert) for alert in about]
        age_s = (now - last.ts).total_seconds()
        is_repeat = bool(current) and age_s >= min(route.repeat_s for route in routes)
        if new or resolved or is_repeat:
            kind = "page" if any(route.kind == "page" for route in routes) else "ticket"
            text = json.dumps([*at, last.count, sorted(current), [alert.key for alert in resolved]])
            identity = hashlib.sha256(text.encode()).hexdigest()[:32]
            ordered = tuple(current[key] for key in sorted(current))
            yield Notification(identity, *(at[0], kind, at[1]), ordered, new, resolved)
