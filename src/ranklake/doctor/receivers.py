"""Probe of alerts: whether anybody is told, whether URLs of receivers are there, and what nobody was told."""

from collections.abc import Iterator

from ranklake.context import Context
from ranklake.doctor.examination import Patient
from ranklake.doctor.finding import Finding, failed, ok, skipped, warning
from ranklake.pipeline.alerts.delivery import read_url
from ranklake.pipeline.alerts.file import HEARTBEAT
from ranklake.pipeline.alerts.stage import configured_rules
from ranklake.pipeline.alerts.stored_state import load_state
from ranklake.printable import counted
from ranklake.segments.references import SecretError


def alerts(patient: Patient) -> Iterator[Finding]:
    """Say of each receiver whether its URL can be read here, and how many alerts fire that no receiver took."""
    context = Context.of(patient.config)
    section = context.config.alerts
    if not (section.file or section.notify):
        yield skipped("nobody is told of alerts: name a receiver as notify under [alerts]", "see docs/alerts.md")
        return
    file = configured_rules(context)
    urls = {name: receiver.url for name, receiver in file.receivers.items()}
    urls |= {HEARTBEAT: file.heartbeat.url} if file.heartbeat else {}
    wrong = list(_unreadable(urls))
    yield from wrong or [ok(f"{counted(len(urls), 'URL')} can be read; 'ranklake alerts send RECEIVER' tries one")]
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


def _unreadable(urls: dict[str, str]) -> Iterator[Finding]:
    for name, reference in urls.items():
        try:
            read_url(reference)
        except SecretError as error:
            yield failed(f"receiver {name}: {error}", "put its URL there, as docs/alerts.md says")
