"""PagerDuty: a group of alerts as an incident of version 2 of its Events API; apprise cannot resolve one.

The URL is that of the API with the routing key of an integration before the host:
``https://KEY@events.pagerduty.com/v2/enqueue``.
"""

import hashlib
import json
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.pipeline.alerts.message import Message
from ranklake.redaction.redact import redact_uri

_SUMMARY: Final = 1024
_DETAILS: Final = 8000


def address(url: str) -> str:
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
