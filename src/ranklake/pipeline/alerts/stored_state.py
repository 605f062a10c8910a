"""State of alerts in a lake: numbered files, each written once, so that of two processes one goes on.

    <lake>/alerts/0000000007.json    the highest number counts; some older ones stay, so that no number is used again

Whoever is about to send writes the next number first, as a claim that holds for some minutes. Another process that
meets it sends nothing. One that dies in between leaves it: once it is over, the next sends the same, with the same ids.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pydantic import TypeAdapter, ValidationError

from ranklake.lake.store.files import delete
from ranklake.pipeline.alerts.history import AlertRecord
from ranklake.pipeline.alerts.state import Alert, AlertState, Delivery

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "alerts"
_KEPT: Final = 16
_DIGITS: Final = 10


@dataclass(frozen=True, slots=True)
class StoredState:
    """What is known of alerts.

    Attributes
    ----------
    number
        Of its file; 0 before the first.
    records
        Alerts that fired, by key.
    claimed_until
        Until when another process may be sending what is due; None if nobody is.
    """

    number: int = 0
    state: AlertState = field(default_factory=AlertState)
    records: Mapping[str, AlertRecord] = field(default_factory=dict)
    claimed_until: datetime | None = None

    def following(self, **changes: object) -> "StoredState":
        """Return what comes after it."""
        return replace(self, number=self.number + 1, **changes)  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True)
class _Sent:
    receiver: str
    group: str
    delivery: Delivery


@dataclass(frozen=True, slots=True)
class _Document:
    """What a file has: JSON knows no pairs as keys."""

    alerts: dict[str, Alert]
    deliveries: list[_Sent]
    records: dict[str, AlertRecord]
    claimed_until: datetime | None = None


_DOCUMENTS: Final = TypeAdapter(_Document)


def load_state(store: "Store") -> StoredState:
    """Return the state that counts; an empty one before the first round, or where its file is damaged.

    Without it alerts that last are sent once more: too much is better than silence.
    """
    numbers = _numbers(store)
    if not numbers:
        return StoredState()
    number = numbers[-1]
    try:
        document = _DOCUMENTS.validate_json(store.fs.cat_file(store.path(_name(number))))
    except (ValidationError, FileNotFoundError):
        return StoredState(number)
    deliveries = {(each.receiver, each.group): each.delivery for each in document.deliveries}
    return StoredState(number, AlertState(document.alerts, deliveries), document.records, document.claimed_until)


def save_state(store: "Store", stored: StoredState) -> bool:
    """Write a state under its number; False, and nothing is written, where another process has written that."""
    sent = [_Sent(*at, delivery) for at, delivery in stored.state.deliveries.items()]
    document = _Document(dict(stored.state.alerts), sent, dict(stored.records), stored.claimed_until)
    if not store.put_if_absent(_name(stored.number), _DOCUMENTS.dump_json(document)):
        return False
    for number in _numbers(store):
        if number <= stored.number - _KEPT:
            delete(store, store.path(_name(number)))
    return True


def _name(number: int) -> str:
    return f"{FOLDER}/{number:0{_DIGITS}d}.json"


def _numbers(store: "Store") -> list[int]:
    try:
        paths = store.fs.ls(store.path(FOLDER), detail=False)
    except FileNotFoundError:
        return []
    names = (str(path).rpartition("/")[2].partition(".") for path in paths)
    return sorted(
        int(stem) for stem, _, suffix in names if suffix == "json" and stem.isdigit() and len(stem) == _DIGITS
    )
