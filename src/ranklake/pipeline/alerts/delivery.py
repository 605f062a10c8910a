"""Delivery: send messages to their receivers, side by side, each within a time; what is lost goes to fallbacks.

    messages ─by receiver─▶ a process each (send.py) ─▶ results ─lost─▶ messages to fallbacks ─▶ results

Results hold no part of a URL, nor do they name a person.
"""

import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Final
from urllib.parse import unquote

from ranklake.pipeline.alerts import receiver_apis
from ranklake.pipeline.alerts.file import HEARTBEAT, AlertFile
from ranklake.pipeline.alerts.message import AlertFacts, Message, message
from ranklake.pipeline.alerts.state import Alert, AlertState, Evaluation, Notification, sent
from ranklake.pipeline.playbooks.programs import run_program
from ranklake.segments.references import SecretError, read_reference

TIMEOUT_S: Final = 30.0
MOST_MESSAGES: Final = 50
"""To a receiver in a round; the others go out in the next. More is a flood that nobody reads."""
_LINE: Final = re.compile(r"(\d+): (delivered|lost) in ([\d.]+) s(?:: (.*))?")
_SECRET_PARTS: Final = re.compile(r"[^/:@?&=#,;]{5,}")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryResult:
    """What became of a message to a receiver.

    Attributes
    ----------
    notification
        `Notification.id`; empty for the heartbeat and for a test message.
    fallback_of
        The receiver that did not take it, where this one is its fallback; otherwise empty.
    error
        Why the last attempt failed, on one line, without the URL; empty if it was delivered.
    attempts
        How often it was tried; 0 where there was no time left, or no URL.
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
    """The state after a round, and what became of each message."""

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
    """Send what is due and the heartbeat, then what was lost to fallbacks; takes at most twice `timeout_s` and 4 s.

    The state says what each receiver got; store it. What a receiver did not take is due again in the next round, even
    if a fallback took it. A fallback gets each alert once, and its end.
    """
    state = evaluation.state
    messages = [message(each, file, facts, lake=lake) for each in evaluation.notifications]
    results = deliver(messages, file, timeout_s=timeout_s, has_heartbeat=True)
    for each, result in zip(evaluation.notifications, results, strict=False):
        if result.is_delivered:
            state = sent(state, each, now)
    further: list[tuple[Notification, DeliveryResult]] = []
    expected = state  # once fallbacks have taken all: one may be that of several receivers
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
    """Yield what fallbacks get of a lost notification: alerts that they were not told of. Ends follow by themselves.

    `sent` notes it as told to the fallback, from which `evaluate` knows that its end is due there, too.
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
    """Send messages, receivers side by side; return a result for each, in their order, and the heartbeat's if asked.

    A receiver costs at most `timeout_s` and 2 s, whatever it does. Raises nothing of theirs.
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
    """Return a receiver's URL, and where it stands. Raises `SecretError` where it cannot be read, or is empty."""
    text, place = read_reference(reference, "URL", "command for the URL")
    if not text.strip():
        raise SecretError("the URL is empty", where=place)
    return text.strip(), place


def unreadable_urls(file: AlertFile) -> dict[str, str]:
    """Return why URLs of receivers, and of the heartbeat, cannot be read here, by name; nothing where all can."""
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
    """Send a message to one receiver that says that it is a test."""
    alert = Alert(
        rule="test", subject=receiver, severity="info", since=now, fired=now, labels={},
        message="This is a test of a receiver of alerts. Nothing happened.",
    )  # fmt: skip
    notification = Notification("", receiver, "ticket", "test", (alert,), frozenset({alert.key}), ())
    return deliver([message(notification, file)], file, timeout_s=timeout_s)[0]


Content = Mapping[str, str]
"""What `send` takes of a message: a title, a text and a level, or a body that is posted."""


def _by_apprise(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del file
    levels = [each.notification.kind if each.notification.firing else "resolved" for each in messages]
    pairs = zip(messages, levels, strict=True)
    return url, [{"title": each.title, "text": each.text, "level": level} for each, level in pairs]


def _to_alertmanager(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    bodies = [json.dumps(receiver_apis.payload(each, file)) for each in messages]
    return receiver_apis.address(url), [{"body": body} for body in bodies]


def _to_pagerduty(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del file
    return receiver_apis.pagerduty_address(url), [
        {"body": json.dumps(receiver_apis.event(each, url))} for each in messages
    ]


def _heartbeat(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del messages, file
    return url, [{"body": json.dumps({"status": "alive"})}]


def _watchdog(url: str, messages: Sequence[Message], file: AlertFile) -> tuple[str, list[Content]]:
    del messages, file
    return receiver_apis.address(url), [{"body": json.dumps(receiver_apis.watchdog())}]


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
    """Send messages, or a heartbeat if there are none, by a process of its own; return a result for each."""
    began = time.monotonic()
    ids = [each.notification.id for each in messages] or [""]
    nothing = DeliveryResult(receiver=name, notification="", is_delivered=False, error="", attempts=0, duration_s=0.0)
    results = [replace(nothing, notification=identity) for identity in ids]
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
    """Yield results with a reason for each message of which nothing was heard: the first was being tried."""
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
