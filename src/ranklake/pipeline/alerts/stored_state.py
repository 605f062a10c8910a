"""State of alerts in a lake: numbered files, each written once, so that only one of two processes continues.

    <lake>/alerts/0000000007.json    the highest number is valid; some older ones stay, so that no number is used again

Before sending, a process writes the next number, as a claim for some minutes. Other processes then send nothing. If the
process dies, its claim expires, and the next one sends the same messages with the same ids. If the last files are
damaged, the newest valid one is used, and new ones are numbered after them.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any, Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from ranklake.lake.contracts.json_text import facts_in
from ranklake.lake.plans.plan import append_own
from ranklake.lake.store.files import delete, file_numbers, numbered_name
from ranklake.pipeline.alerts.delivery import DeliveryResult
from ranklake.pipeline.alerts.file import AlertFile
from ranklake.pipeline.alerts.state import Alert, AlertState, Delivery, Notification, firing_alerts, mute_reason

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store
    from ranklake.lake.store.tables import Tables


TABLE: Final = "alerts"
_OWN_COLUMNS: Final = frozenset({"rule", "subject", "run", "host"})
"""Labels that have their own columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AlertRecord:
    """An alert that fired, and its deliveries.

    Attributes
    ----------
    messages, failures
        Delivered and lost messages so far.
    muted
        Why it is not sent now; empty if it is.
    resolved
        When it ended; None while it fires.
    """

    alert: Alert
    receivers: tuple[str, ...] = ()
    messages: int = 0
    failures: int = 0
    muted: str = ""
    resolved: AwareDatetime | None = None

    @property
    def id(self) -> str:
        """Its id in the table: if the rule and subject fire again, it is a new alert."""
        text = f"{self.alert.key}\n{self.alert.since.isoformat()}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @property
    def shown(self) -> tuple[object, ...]:
        """Values whose change gives a new row; repeated failures of a receiver do not."""
        facts = self.alert.severity, self.alert.fired, self.resolved, self.receivers, self.messages, self.muted
        return *facts, self.failures > 0

    def differs(self, other: "AlertRecord | None") -> bool:
        """Whether it differs enough from an earlier record for a new row."""
        return other is None or self.id != other.id or self.shown != other.shown


def records_after(
    file: AlertFile,
    records: Mapping[str, AlertRecord],
    state: AlertState,
    due: Iterable[Notification],
    results: Iterable[DeliveryResult],
    now: datetime,
) -> dict[str, AlertRecord]:
    """Return the records of alerts, by key, after a round.

    Parameters
    ----------
    records
        Records before the round.
    due, results
        Notifications, and all results, including fallbacks.
    """
    firing = firing_alerts(state)
    result: dict[str, AlertRecord] = {}
    for key, alert in firing.items():
        last = records.get(key)
        known = last if last is not None and last.alert.since == alert.since else AlertRecord(alert=alert)
        result[key] = replace(known, alert=alert, muted=mute_reason(file, alert, firing, now))
    for key, last in records.items():
        if key not in result:
            result[key] = last if last.resolved else replace(last, resolved=now, muted="")
    by_id = {notification.id: notification for notification in due}
    for sending in (each for each in results if each.notification in by_id):
        notification = by_id[sending.notification]
        ended = () if sending.fallback_of else notification.resolved
        for key in (alert.key for alert in (*notification.firing, *ended) if alert.key in result):
            result[key] = _counted(result[key], sending)
    return result


def _counted(record: AlertRecord, sending: DeliveryResult) -> AlertRecord:
    if not sending.is_delivered:
        return replace(record, failures=record.failures + 1)
    receivers = tuple(sorted({*record.receivers, sending.receiver}))
    return replace(record, receivers=receivers, messages=record.messages + 1)


def still_open(records: Mapping[str, AlertRecord], state: AlertState) -> dict[str, AlertRecord]:
    """Return the records that a later round can change: without those whose end was delivered."""
    awaited = {key for delivery in state.deliveries.values() for key in delivery.firing}
    return {key: record for key, record in records.items() if record.resolved is None or key in awaited}


def open_records(rows: Iterable[Mapping[str, Any]]) -> dict[str, AlertRecord]:
    """Return the open records in rows of the table, by key."""
    records = map(_record, rows)
    return {record.alert.key: record for record in records}


def write_history(
    tables: "Tables", before: Mapping[str, AlertRecord], after: Mapping[str, AlertRecord], now: datetime
) -> int:
    """Append a row for each changed alert; return their number."""
    rows = [_row(record, now) for key, record in sorted(after.items()) if record.differs(before.get(key))]
    return append_own(tables, TABLE, lambda _: rows) if rows else 0


def _row(record: AlertRecord, now: datetime) -> dict[str, Any]:
    alert = record.alert
    others = dict(_others(alert.labels))
    return {
        "alert_id": record.id, "ts": now, "rule": alert.rule, "subject": alert.subject, "severity": alert.severity,
        "state": "resolved" if record.resolved else "firing", "message": alert.message or None,
        "run": alert.labels.get("run"), "host": alert.labels.get("host"),
        "labels": json.dumps(others, sort_keys=True, ensure_ascii=False) if others else None,
        "since_ts": alert.since, "fired_ts": alert.fired, "resolved_ts": record.resolved,
        "receivers": ",".join(record.receivers) or None, "messages": record.messages, "failures": record.failures,
        "muted": record.muted or None, "date": now.date(),
    }  # fmt: skip


def _record(row: Mapping[str, Any]) -> AlertRecord:
    """Return the record for a row of `_row`."""
    others = facts_in(row["labels"])
    labels = {**others, **{name: row[name] for name in sorted(_OWN_COLUMNS) if row[name] is not None}}
    alert = Alert(
        rule=row["rule"], subject=row["subject"], severity=row["severity"], message=row["message"] or "",
        labels={name: str(value) for name, value in labels.items()}, since=row["since_ts"], fired=row["fired_ts"],
    )  # fmt: skip
    receivers = tuple(row["receivers"].split(",")) if row["receivers"] else ()
    return AlertRecord(
        alert=alert, receivers=receivers, messages=row["messages"], failures=row["failures"], muted=row["muted"] or ""
    )


def _others(labels: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    return ((name, value) for name, value in labels.items() if name not in _OWN_COLUMNS)


FOLDER: Final = "alerts"
_KEPT: Final = 16
_TRIES: Final = 20
_FILE: Final = re.compile(r"([0-9]{10}|[1-9][0-9]{10,})\.json")
"""At least ten digits; longer ones are higher numbers."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """Stored state of alerts.

    Attributes
    ----------
    number
        Highest number so far, including damaged files; 0 before the first.
    records
        Alerts that fired, by key.
    claimed_until
        Until when another process may be sending; None without a claim.
    damaged
        Names of later files that cannot be read.
    is_behind
        Whether the last file is damaged, so that later changes of alerts are unknown.
    """

    number: int = 0
    state: AlertState = field(default_factory=AlertState)
    records: Mapping[str, AlertRecord] = field(default_factory=dict)
    claimed_until: datetime | None = None
    damaged: tuple[str, ...] = ()
    is_behind: bool = False

    def following(self, **changes: object) -> "StoredState":
        """Return the next state."""
        return replace(self, number=self.number + 1, **changes)  # type: ignore[arg-type]

    def with_open(self, records: Mapping[str, AlertRecord]) -> "StoredState":
        """Return the state with open alerts of the history added."""
        alerts = {**self.state.alerts, **{key: record.alert for key, record in records.items()}}
        return replace(self, state=replace(self.state, alerts=alerts), records={**self.records, **records})


@dataclass(frozen=True, slots=True)
class _Sent:
    receiver: str
    group: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class _Document:
    """Content of a file, without pairs as keys, which JSON lacks."""

    alerts: dict[str, Alert]
    deliveries: list[_Sent]
    records: dict[str, AlertRecord]
    claimed_until: AwareDatetime | None = None


_DOCUMENTS: Final = TypeAdapter(_Document)


def load_state(store: "Store") -> StoredState:
    """Return the newest readable state; an empty one if there is none.

    Messages after it are sent again: repetition is better than silence.
    """
    for _ in range(_TRIES):
        with suppress(FileNotFoundError):  # other processes have replaced the listed files meanwhile
            return _load(store, _read)
    return _load(store, _read_listed)


def _load(store: "Store", read: "Callable[[Store, int], _Document | None]") -> StoredState:
    numbers = file_numbers(store, FOLDER, _FILE)
    document, damaged = None, set[int]()
    for number in reversed(numbers):
        document = read(store, number)
        if document is not None:
            break
        damaged.add(number)
    last = start = number if document else min(numbers, default=1) - 1
    while last + 1 in damaged:  # a number far beyond is foreign, and must not be continued
        last += 1
    names, is_behind = tuple(numbered_name(FOLDER, number) for number in sorted(damaged)), last > start
    if document is None:
        return StoredState(last, damaged=names, is_behind=is_behind)
    deliveries = {(each.receiver, each.group): each.delivery for each in document.deliveries}
    claimed_until = None if is_behind else document.claimed_until  # the claiming process has written the next
    return StoredState(
        last, AlertState(document.alerts, deliveries), document.records, claimed_until, names, is_behind
    )  # fmt: skip


def _read(store: "Store", number: int) -> _Document | None:
    try:
        return _DOCUMENTS.validate_json(store.fs.cat_file(store.path(numbered_name(FOLDER, number))))
    except ValidationError:
        return None


def _read_listed(store: "Store", number: int) -> _Document | None:
    """Read a file; None also for one that is listed and never there, such as a broken link."""
    try:
        return _read(store, number)
    except FileNotFoundError:
        return None


def save_state(store: "Store", stored: StoredState) -> bool:
    """Write a state under its number; return False if another process has written that number or far higher ones."""
    sent = [_Sent(*at, delivery) for at, delivery in stored.state.deliveries.items()]
    document = _Document(dict(stored.state.alerts), sent, dict(stored.records), stored.claimed_until)
    if not store.put_if_absent(numbered_name(FOLDER, stored.number), _DOCUMENTS.dump_json(document)):
        return False
    numbers = file_numbers(store, FOLDER, _FILE)
    # A number is free again once others are `_KEPT` files ahead. A foreign file of a high number is not ahead.
    overtaken_from = stored.number + _KEPT
    if numbers and numbers[-1] >= overtaken_from and load_state(store).number >= overtaken_from:
        delete(store, store.path(numbered_name(FOLDER, stored.number)))
        return False
    for number in numbers:
        if number <= stored.number - _KEPT:
            delete(store, store.path(numbered_name(FOLDER, number)))
    return True
