"""Probe of alerts: whether anybody is told, whether URLs of receivers are there, and what nobody was told."""

from collections.abc import Iterator

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, ok, skipped, warning
from ranklake.pipeline.alerts.delivery import unreadable_urls
from ranklake.pipeline.alerts.stage import configured_rules
from ranklake.pipeline.alerts.stored_state import load_state
from ranklake.printable import counted


def alerts(patient: Patient) -> Iterator[Finding]:
    """Say of each receiver whether its URL can be read here, and how many alerts fire that no receiver took."""
    context = Context.of(patient.config)
    section = context.config.alerts
    if not (section.file or section.notify):
        yield skipped("nobody is told of alerts: name a receiver as notify under [alerts]", "see docs/alerts.md")
        return
    file = configured_rules(context)
    wrong = [
        failed(f"receiver {name}: {reason}", "put its URL there, as docs/alerts.md says")
        for name, reason in unreadable_urls(file).items()
    ]
    urls = len(file.receivers) + bool(file.heartbeat)
    yield from wrong or [ok(f"{counted(urls, 'URL')} can be read; 'ranklake alerts send RECEIVER' tries one")]
    stored = load_state(context.open_lake().store)
    if stored.damaged:
        message = f"{', '.join(stored.damaged)} cannot be read: alerts since the state before may be sent once more"
        yield warning(message, "the next round goes on after it; find out who wrote what stays, and remove it")
    records = stored.records.values()
    untold = [each for each in records if not (each.resolved or each.messages) and each.failures]
    if untold:
        first = untold[0].alert
        message = f"{counted(len(untold), 'alert')} that nobody was told of, such as {first.rule}: receivers are lost"
        yield warning(message, "try them by 'ranklake alerts send RECEIVER'")
