"""Alerts as the APIs of Alertmanager and PagerDuty take them.

Alertmanager knows an alert by its labels, and ends one that nobody repeats. So an alert that fires has an end ahead, by
which it will have been repeated twice.

PagerDuty takes a group of alerts as one incident of version 2 of its Events API; apprise cannot resolve one. The URL is
that of the API with the routing key of an integration before the host: ``https://KEY@events.pagerduty.com/v2/enqueue``.
"""

import hashlib
import json
import re
from datetime import UTC, datetime, timedelta
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.pipeline.alerts.file import AlertFile
from ranklake.pipeline.alerts.message import AlertFacts, Message, harmless
from ranklake.pipeline.alerts.state import Alert, route_of
from ranklake.redaction.redact import redact_uri

PATH: Final = "/api/v2/alerts"
_WATCHDOG_S: Final = 3600
_LABEL: Final = re.compile(r"[^A-Za-z0-9_]")
_REPEATS: Final = 2
_TEST_S: Final = 300


def address(url: str) -> str:
    """Return where alerts are posted to, of the address of an Alertmanager.

    >>> address("http://user:key@am:9093/prefix/"), address("http://am/api/v2/alerts")
    ('http://user:key@am:9093/prefix/api/v2/alerts', 'http://am/api/v2/alerts')
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix(PATH)
    return urlunsplit(parts._replace(path=path + PATH))


def payload(message: Message, file: AlertFile, now: datetime | None = None) -> list[dict[str, Any]]:
    """Return all alerts of a message, those that ended with their end."""
    now = now or datetime.now(UTC)
    notification = message.notification
    ends = [(alert, now + _lasting(alert, file)) for alert in notification.firing]
    ends += [(alert, now) for alert in notification.resolved]
    return [_alert(alert, file, message, end) for alert, end in ends]


def watchdog(now: datetime | None = None) -> list[dict[str, Any]]:
    """Return the alert that always fires, which ends an hour after the last round that repeated it."""
    now = now or datetime.now(UTC)
    annotations = {"summary": "ranklake evaluates alerts. Route this to what notices when it ends."}
    labels = {"alertname": "Watchdog", "severity": "none", "job": "ranklake"}
    ends = now + timedelta(seconds=_WATCHDOG_S)
    return [{"labels": labels, "annotations": annotations, "startsAt": _iso(now), "endsAt": _iso(ends)}]


def _lasting(alert: Alert, file: AlertFile) -> timedelta:
    """How long Alertmanager goes by what it gets: a test message ends soon."""
    return timedelta(seconds=_REPEATS * route_of(file, alert).repeat_s if alert.rule in file.rules else _TEST_S)


def _alert(alert: Alert, file: AlertFile, message: Message, ends: datetime) -> dict[str, Any]:
    rule, facts = file.rules.get(alert.rule), message.facts.get(alert.key, AlertFacts())
    labels = {_LABEL.sub("_", name): harmless(value) for name, value in alert.labels.items()}
    labels |= {"alertname": alert.rule, "severity": alert.severity, "job": "ranklake", "lake": message.lake}
    annotations = {
        "summary": rule.summary if rule else "",
        "description": alert.message,
        "owner": rule.owner if rule else "",
        "runbook_url": (rule.runbook if rule else None) or facts.runbook,
        "evidence": facts.evidence,
        "sql": facts.sql,
    }
    result: dict[str, Any] = {
        "labels": {_named(name): value for name, value in labels.items() if value},
        "annotations": {name: harmless(text) for name, text in annotations.items() if text},
        "startsAt": _iso(alert.fired or alert.since),
        "endsAt": _iso(ends),
    }
    return {**result, "generatorURL": redact_uri(facts.page)} if facts.page else result


def _named(label: str) -> str:
    return label if label[:1].isalpha() or label[:1] == "_" else f"_{label}"


def _iso(moment: datetime) -> str:
    return moment.astimezone(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


_SUMMARY: Final = 1024
_DETAILS: Final = 8000


def pagerduty_address(url: str) -> str:
    """Return where events are posted to: the URL without its key.

    >>> address("https://R0UT1NG@events.pagerduty.com/v2/enqueue")
    'https://events.pagerduty.com/v2/enqueue'
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def event(message: Message, url: str) -> dict[str, Any]:
    """Return what opens the incident of a group, or adds to it; what resolves it once none of its alerts fires."""
    notification = message.notification
    group = json.dumps([message.lake, notification.receiver, notification.group])
    about = notification.firing or notification.resolved
    pages = [facts.page for alert in about if (facts := message.facts.get(alert.key)) and facts.page]
    return {
        "routing_key": unquote(urlsplit(url).username or ""),
        "event_action": "trigger" if notification.firing else "resolve",
        "dedup_key": hashlib.sha256(group.encode()).hexdigest(),
        "client": "ranklake",
        "payload": {
            "summary": message.title[:_SUMMARY],
            "source": message.lake or "ranklake",
            "severity": min((alert.severity for alert in about), key=SEVERITIES.index),
            "timestamp": min(alert.since for alert in about).isoformat(),
            "custom_details": {"text": message.text[:_DETAILS], "kind": notification.kind},
        },
        "links": [{"href": redact_uri(page), "text": "Page"} for page in pages[:1]],
    }
