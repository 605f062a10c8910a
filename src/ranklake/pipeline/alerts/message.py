"""Messages: notifications as plain text of bounded length, without markup.

Names, labels and texts come from training processes and SQL, so they are untrusted. Each becomes one line without
control characters, credentials, markup, disguised links and mentions. Masks are not applied here: `Alert`s are masked
already.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Final

from ranklake.pipeline.alerts.file import AlertFile
from ranklake.pipeline.alerts.state import Alert, Notification
from ranklake.printable import fit, printable, printable_lines
from ranklake.redaction.redact import redact, redact_names, redact_uri

SHOWN_ALERTS: Final = 10
"""Most alerts of a group that are shown; others are counted. Alertmanager gets all of them."""
_LINE: Final = 300
_TITLE: Final = 150
_SQL: Final = 600
_TEXT: Final = 12_000
_LABELS: Final = 12
_FIRST: Final = ("run", "attempt", "rank", "host", "table")
_OWN: Final = ("rule", "subject")
"""Labels that have a fixed place in the text."""
_CALL: Final = re.compile(r"(?<!\w)@(?=[\w\u200c\u200d])")
_TAG: Final = re.compile(r"<(?=[!@#/A-Za-z])")
_LINK: Final = re.compile(r"\](?=[(\[])")


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertFacts:
    """Facts of an alert besides its signal: a line of evidence, SQL, the page's address, the runbook.

    All are text, empty if unknown.
    """

    evidence: str = ""
    sql: str = ""
    page: str = ""
    runbook: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A notification as text. `facts` of its alerts, by `Alert.key`, are for receivers of structured data.

    `lake` is the lake's name, without credentials, or empty.
    """

    notification: Notification
    title: str
    text: str
    facts: Mapping[str, AlertFacts]
    lake: str


def message(
    notification: Notification,
    file: AlertFile,
    facts: Mapping[str, AlertFacts] | None = None,
    *,
    lake: str = "",
    note: str = "",
) -> Message:
    """Return the message of a notification.

    Parameters
    ----------
    facts
        Facts of alerts, by `Alert.key`.
    lake
        The lake's name or address; credentials in it are dropped.
    note
        First line, such as why a fallback gets the message.
    """
    facts = facts or {}
    new = [alert for alert in notification.firing if alert.key in notification.new]
    lasting = [alert for alert in notification.firing if alert.key not in notification.new]
    counts = [
        f"{len(alerts):,} {word}"
        for alerts, word in ((new, "firing"), (lasting, "still firing"), (notification.resolved, "resolved"))
        if alerts
    ]
    kind = notification.kind.upper() if notification.firing else "Resolved"
    about = (*new, *lasting, *notification.resolved)
    rules = ", ".join(dict.fromkeys(alert.rule for alert in about))
    runs = ", ".join(dict.fromkeys(alert.labels["run"] for alert in about if "run" in alert.labels))
    title = f"[{kind}] {', '.join(counts)}: {rules}{f' · {runs}' if runs else ''}"
    lines = [harmless(note)] if note else []
    lake = harmless(redact_uri(lake))
    lines += [f"lake: {lake}"] if lake else []
    for alerts, word in ((new, "FIRING"), (lasting, "STILL FIRING")):
        lines += _listed(alerts, word, file, facts)
    for alert in notification.resolved[:SHOWN_ALERTS]:
        lines += ["", f"RESOLVED {_named(alert)}", *_place(alert)]
    lines += _rest(len(notification.resolved), "resolved")
    text = fit("\n".join(lines).lstrip("\n"), _TEXT)
    return Message(notification=notification, title=harmless(title, _TITLE), text=text, facts=facts, lake=lake)


def harmless(text: str, most: int = _LINE) -> str:
    """Return untrusted text as one line of at most `most` characters, without markup and mentions.

    >>> harmless("<!channel> [pay](http://x) @here a@b.c"), harmless("loss < 3")
    ('< !channel> [pay] (http://x) @ here a@b.c', 'loss < 3')
    """
    return fit(_without_markup(printable(redact(text))), most)


def _without_markup(text: str) -> str:
    """Break markup with spaces: texts stay readable, and SQL stays valid."""
    return _LINK.sub("] ", _TAG.sub("< ", _CALL.sub("@ ", text)))


def _listed(alerts: list[Alert], word: str, file: AlertFile, facts: Mapping[str, AlertFacts]) -> Iterator[str]:
    """Yield lines of the first alerts, and the number of others."""
    last_sql = ""
    for alert in alerts[:SHOWN_ALERTS]:
        known = facts.get(alert.key, AlertFacts())
        rule = file.rules.get(alert.rule)  # None if the rule was removed from the file
        yield from ("", f"{word} {_named(alert)}")
        yield from (harmless(text) for text in dict.fromkeys((rule.summary if rule else "", alert.message)) if text)
        yield from _place(alert)
        yield f"severity: {alert.severity}{f', owner: {harmless(rule.owner)}' if rule else ''}"
        runbook = (rule.runbook if rule else None) or known.runbook
        shown = {"runbook": runbook, "page": redact_uri(known.page), "evidence": known.evidence}
        yield from (f"{name}: {harmless(text)}" for name, text in shown.items() if text)
        if known.sql and known.sql != last_sql:
            last_sql = known.sql
            yield f"SQL: {fit(_without_markup(printable_lines(redact(known.sql))), _SQL)}"
    yield from _rest(len(alerts), word.lower())


def _rest(count: int, word: str) -> list[str]:
    return ["", f"and {count - SHOWN_ALERTS:,} more {word}"] if count > SHOWN_ALERTS else []


def _named(alert: Alert) -> str:
    return harmless(f"{alert.rule} ({alert.subject})")


def _place(alert: Alert) -> Iterator[str]:
    """Yield lines with labels, and with the start."""
    names = [name for name in _FIRST if name in alert.labels]
    names += [name for name in sorted(alert.labels) if name not in (*_FIRST, *_OWN)]
    where = redact_names({name: alert.labels[name] for name in names[:_LABELS]})
    if where:
        yield f"where: {fit(_without_markup(printable(_pairs(where.items()))), _LINE)}"
    yield f"since: {utc_text(alert.since)}"


def _pairs(items: Iterable[tuple[str, str]]) -> str:
    return ", ".join(f"{name} {value}" for name, value in items)


def utc_text(moment: datetime) -> str:
    """Return a time as text, in whole seconds, UTC."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC"
