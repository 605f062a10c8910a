"""Delivery: sends messages to receivers in parallel, with time limits; lost messages go to fallbacks.

    messages ─by receiver─▶ a process each (send.py) ─▶ results ─lost─▶ messages to fallbacks ─▶ results

Results contain no part of a URL and no names of persons.

Alertmanager identifies an alert by its labels, and ends alerts that are not repeated. So a firing alert is sent with an
end time after two repetitions. PagerDuty gets a group of alerts as one incident of its Events API, version 2; its URL
has the routing key of an integration before the host: ``https://KEY@events.pagerduty.com/v2/enqueue``.
"""

import hashlib
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote, urlsplit, urlunsplit

from ranklake.lake.rollups.incidents import SEVERITIES
from ranklake.pipeline.alerts.file import HEARTBEAT, AlertFile
from ranklake.pipeline.alerts.message import AlertFacts, Message, harmless, message
from ranklake.pipeline.alerts.state import Alert, AlertState, Evaluation, Notification, route_of, sent
from ranklake.pipeline.playbooks.programs import run_program
from ranklake.redaction.redact import redact_uri
from ranklake.segments.references import SecretError, read_reference

TIMEOUT_S: Final = 30.0
MOST_MESSAGES: Final = 50
"""Most messages to a receiver in a round; others are sent in the next. Nobody would read more."""
_LINE: Final = re.compile(r"(\d+): (delivered|lost) in ([\d.]+) s(?:: (.*))?")
_SECRET_PARTS: Final = re.compile(r"[^/:@?&=#,;]{5,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """Result of sending a message to a receiver.

    Attributes
    ----------
    notification
        `Notification.id`; empty for the heartbeat and for a test message.
    fallback_of
        The receiver that failed, if this one is its fallback; else empty.
    error
        Why the last attempt failed, on one line, without the URL; empty if it was delivered.
    attempts
        Number of attempts; 0 without time or URL.
    """

    receiver: str
    notification: str
    is_delivered: bool
    error: str
    attempts: int
    duration_s: float
    fallback_of: str = ""


@dataclass(frozen=True, slots=True)
class DeliveryRound:
    """The state after a round, and the result of each message."""

    state: AlertState
    results: tuple[DeliveryResult, ...]


def deliver_round(
    evaluation: Evaluation,
    file: AlertFile,
    now: datetime,
    facts: Mapping[str, AlertFacts] | None = None,
    *,
    lake: str = "",
    timeout_s: float = TIMEOUT_S,
) -> DeliveryRound:
    """Send due messages and the heartbeat, then lost ones to fallbacks; takes at most twice `timeout_s` plus 4 s.

    Store the returned state, which records deliveries. A lost message is due again in the next round, even if a
    fallback got it. A fallback gets each alert once, and its end.
    """
    state = evaluation.state
    messages = [message(each, file, facts, lake=lake) for each in evaluation.notifications]
    results = deliver(messages, file, timeout_s=timeout_s, has_heartbeat=True)
    for each, result in zip(evaluation.notifications, results, strict=False):
        if result.is_delivered:
            state = sent(state, each, now)
    further: list[tuple[Notification, DeliveryResult]] = []
    expected = state  # after all fallbacks: one may serve several receivers
    for notification, result in zip(evaluation.notifications, results, strict=False):
        if not result.is_delivered:
            for each in fallback_notifications(notification, file, expected):
                expected = sent(expected, each, now)
                further.append((each, result))
    messages = [
        message(each, file, facts, lake=lake, note=f"{lost.receiver} was to get this and is not reached: {lost.error}")
        for each, lost in further
    ]
    second = deliver(messages, file, timeout_s=timeout_s)
    for (each, lost), result in zip(further, second, strict=True):
        results += (replace(result, fallback_of=lost.receiver),)
        if result.is_delivered:
            state = sent(state, each, now)
    return DeliveryRound(state, results)


def fallback_notifications(notification: Notification, file: AlertFile, state: AlertState) -> Iterator[Notification]:
    """Yield messages to fallbacks for a lost notification, with alerts that they did not get yet.

    `sent` records the delivery to the fallback, so that `evaluate` sends the end there, too.
    """
    for name in file.receivers[notification.receiver].fallback:
        last = state.deliveries.get((name, notification.group))
        known = last.firing if last else {}
        firing = tuple(alert for alert in notification.firing if alert.key not in known)
        if firing:
            new = frozenset(alert.key for alert in firing)
            yield replace(notification, receiver=name, firing=firing, new=new, resolved=())


def deliver(
    messages: Sequence[Message], file: AlertFile, *, timeout_s: float = TIMEOUT_S, has_heartbeat: bool = False
) -> tuple[DeliveryResult, ...]:
    """Send messages to receivers in parallel; return a result for each, in order, and the heartbeat's if requested.

    Each receiver takes at most `timeout_s` plus 2 s. Does not raise their errors.
    """
    by_receiver: dict[str, list[int]] = {}
    for number, each in enumerate(messages):
        by_receiver.setdefault(each.notification.receiver, []).append(number)
    jobs: list[Callable[[], list[DeliveryResult]]] = []
    for name, numbers in by_receiver.items():
        receiver, own = file.receivers[name], [messages[number] for number in numbers]
        jobs.append(partial(_send, name, receiver.url, _CONTENTS[receiver.kind], own, file, timeout_s))
    if has_heartbeat and file.heartbeat:
        contents = _BEATS[file.heartbeat.kind]
        jobs.append(partial(_send, HEARTBEAT, file.heartbeat.url, contents, [], file, timeout_s))
    if not jobs:
        return ()
    with ThreadPoolExecutor(len(jobs), thread_name_prefix="deliver") as pool:
        by_job = list(pool.map(lambda job: job(), jobs))
    numbered: dict[int, DeliveryResult] = {}
    for numbers, results in zip(by_receiver.values(), by_job, strict=False):
        numbered |= dict(zip(numbers, results, strict=True))
    heartbeat = by_job[len(by_receiver)] if len(by_job) > len(by_receiver) else []
    return (*(numbered[number] for number in range(len(messages))), *heartbeat)


def read_url(reference: str) -> tuple[str, str]:
    """Return a receiver's URL, and its source. Raises `SecretError` if it cannot be read, or is empty."""
    text, place = read_reference(reference, "URL", "command for the URL")
    if not text.strip():
        raise SecretError("the URL is empty", where=place)
    return text.strip(), place


def unreadable_urls(file: AlertFile) -> dict[str, str]:
    """Return why URLs of receivers and of the heartbeat cannot be read here, by name; empty if all can."""
    urls = {name: receiver.url for name, receiver in file.receivers.items()}
    urls |= {HEARTBEAT: file.heartbeat.url} if file.heartbeat else {}
    result = {}
    for name, reference in urls.items():
        try:
            read_url(reference)
        except SecretError as error:
            result[name] = str(error)
    return result


def send_test(file: AlertFile, receiver: str, now: datetime, *, timeout_s: float = TIMEOUT_S) -> DeliveryResult:
    """Send a test message to one receiver."""
    alert = Alert(
        rule="test", subject=receiver, severity="info", since=now, fired=now, labels={},
        message="This is a test of a receiver of alerts. Nothing happened.",
    )  # fmt: skip
    notification = Notification("", receiver, "ticket", "test", (alert,), frozenset({alert.key}), ())
    return deliver([message(notification, file)], file, timeout_s=timeout_s)[0]


Content = Mapping[str, str]
"""Job of `send`: title, text and level, or a body to post."""


def _by_apprise(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del file
    levels = [each.notification.kind if each.notification.firing else "resolved" for each in messages]
    pairs = zip(messages, levels, strict=True)
    return url, [{"title": each.title, "text": each.text, "level": level} for each, level in pairs]


def _to_alertmanager(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    bodies = [json.dumps(payload(each, file)) for each in messages]
    return address(url), [{"body": body} for body in bodies]


def _to_pagerduty(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del file
    return pagerduty_address(url), [{"body": json.dumps(event(each, url))} for each in messages]


def _heartbeat(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del messages, file
    return url, [{"body": json.dumps({"status": "alive"})}]


def _watchdog(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del messages, file
    return address(url), [{"body": json.dumps(watchdog())}]


Contents = Callable[[str, Sequence[Message], AlertFile], tuple[str, list[Content]]]
_CONTENTS: Final[Mapping[str, Contents]] = {
    "apprise": _by_apprise,
    "alertmanager": _to_alertmanager,
    "pagerduty": _to_pagerduty,
}
_BEATS: Final[Mapping[str, Contents]] = {"http": _heartbeat, "alertmanager": _watchdog}


def _send(
    name: str, reference: str, contents_of: Contents, messages: Sequence[Message], file: AlertFile, timeout_s: float
) -> list[DeliveryResult]:
    """Send messages, or a heartbeat if there are none, in a child process; return a result for each."""
    began = time.monotonic()
    ids = [each.notification.id for each in messages] or [""]
    empty = DeliveryResult(receiver=name, notification="", is_delivered=False, error="", attempts=0, duration_s=0.0)
    results = [replace(empty, notification=identity) for identity in ids]
    try:
        url, place = read_url(reference)
    except SecretError as fault:
        return [replace(each, error=str(fault)) for each in results]
    try:
        target, contents = contents_of(url, messages[:MOST_MESSAGES], file)
    except ValueError:
        return [replace(each, error=f"{place}: the URL is not valid") for each in results]
    given = json.dumps({"url": target, "timeout_s": timeout_s, "messages": contents}).encode()
    argv = [sys.executable, "-I", "-B", "-m", "ranklake.pipeline.alerts.send"]
    whole = {url, unquote(url)}
    hidden = whole.union(*(_SECRET_PARTS.findall(text.split("://", 1)[-1]) for text in whole))
    with tempfile.TemporaryDirectory() as folder:
        ended = run_program(
            argv, {}, given, timeout_s=timeout_s - (time.monotonic() - began), folder=Path(folder),
            secrets=sorted(hidden, key=len, reverse=True), output_characters=1 << 16,
        )  # fmt: skip
    for line in ended.output.splitlines():
        match = _LINE.fullmatch(line)
        if match:
            number, outcome, duration_s, reason = match.groups()
            last = results[int(number)]
            results[int(number)] = replace(
                last, is_delivered=outcome == "delivered", error=reason or "", attempts=last.attempts + 1,
                duration_s=round(last.duration_s + float(duration_s), 3),
            )  # fmt: skip
    if ended.outcome == "timed out":
        silent = f"no answer within {timeout_s:g} s"
    else:
        silent = f"the process that sends ended with status {ended.exit_code}"
    return list(_completed(results, silent, ended.seconds))


def _completed(results: Sequence[DeliveryResult], silent: str, duration_s: float) -> Iterator[DeliveryResult]:
    """Yield failures for messages without a result: the first was being sent, the others were not tried."""
    is_first = True
    for number, result in enumerate(results):
        if result.is_delivered or result.error:
            yield result
        elif number >= MOST_MESSAGES:
            yield replace(result, error=f"more than {MOST_MESSAGES} messages in a round")
        elif is_first:
            is_first = False
            yield replace(result, error=silent, attempts=1, duration_s=duration_s)
        else:
            yield replace(result, error=f"not tried: {silent}")


PATH: Final = "/api/v2/alerts"
_WATCHDOG_S: Final = 3600
_LABEL: Final = re.compile(r"[^A-Za-z0-9_]")
_REPEATS: Final = 2
_TEST_S: Final = 300


def address(url: str) -> str:
    """Return the address to which alerts for an Alertmanager are posted.

    >>> address("http://user:key@am:9093/prefix/"), address("http://am/api/v2/alerts")
    ('http://user:key@am:9093/prefix/api/v2/alerts', 'http://am/api/v2/alerts')
    """
    parts = urlsplit(url)
    path = parts.path.rstrip("/").removesuffix(PATH)
    return urlunsplit(parts._replace(path=path + PATH))


def payload(message: Message, file: AlertFile, now: datetime | None = None) -> list[dict[str, Any]]:
    """Return all alerts of a message, resolved ones with their end."""
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
    """How long Alertmanager keeps an alert: a test message ends soon."""
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
    """Return the address for events: the URL without its key.

    >>> pagerduty_address("https://R0UT1NG@events.pagerduty.com/v2/enqueue")
    'https://events.pagerduty.com/v2/enqueue'
    """
    parts = urlsplit(url)
    return urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2]))


def event(message: Message, url: str) -> dict[str, Any]:
    """Return the event that opens or updates a group's incident, or that resolves it once none of its alerts fires."""
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
