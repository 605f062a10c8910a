"""State of alerts in a lake: numbered files, each written once, so that of two processes one goes on.

    <lake>/alerts/0000000007.json    the highest number counts; some older ones stay, so that no number is used again

Whoever is about to send writes the next number first, as a claim that holds for some minutes. Another process that
meets it sends nothing. One that dies in between leaves it: once it is over, the next sends the same, with the same ids.
Where the last files are damaged, the newest sound one counts, and what follows is written after them.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Final

from pydantic import AwareDatetime, TypeAdapter, ValidationError

from ranklake.lake.store.files import delete
from ranklake.pipeline.alerts.history import AlertRecord
from ranklake.pipeline.alerts.state import Alert, AlertState, Delivery

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

FOLDER: Final = "alerts"
_KEPT: Final = 16
_FILE: Final = re.compile(r"([0-9]{10}|[1-9][0-9]{10,})\.json")
"""At least ten digits: one with more of them is a higher number."""


@dataclass(frozen=True, slots=True)
class StoredState:
    """What is known of alerts.

    Attributes
    ----------
    number
        After which the next is written: of its file, or of damaged ones that follow; 0 before the first.
    records
        Alerts that fired, by key.
    claimed_until
        Until when another process may be sending what is due; None if nobody is.
    damaged
        Names of files after it that cannot be read.
    is_behind
        Whether one of these was the last, so that what became of alerts since is not known.
    """

    number: int = 0
    state: AlertState = field(default_factory=AlertState)
    records: Mapping[str, AlertRecord] = field(default_factory=dict)
    claimed_until: datetime | None = None
    damaged: tuple[str, ...] = ()
    is_behind: bool = False

    def following(self, **changes: object) -> "StoredState":
        """Return what comes after it."""
        return replace(self, number=self.number + 1, **changes)  # type: ignore[arg-type]

    def with_open(self, records: Mapping[str, AlertRecord]) -> "StoredState":
        """Return it with alerts that the history says are open, which it may not know, or as they were before."""
        alerts = {**self.state.alerts, **{key: record.alert for key, record in records.items()}}
        return replace(self, state=replace(self.state, alerts=alerts), records={**self.records, **records})


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
    claimed_until: AwareDatetime | None = None


_DOCUMENTS: Final = TypeAdapter(_Document)


def load_state(store: "Store") -> StoredState:
    """Return the newest state that can be read; an empty one before the first round, or where none can.

    What was sent after it is sent once more: too much is better than silence.
    """
    numbers = _numbers(store)
    document, damaged = None, set[int]()
    for number in reversed(numbers):
        document = _read(store, number)
        if document is not None:
            break
        damaged.add(number)
    last = start = number if document else min(numbers, default=1) - 1
    while last + 1 in damaged:  # one far beyond is none of ours: what follows must not go on from there
        last += 1
    names, is_behind = tuple(map(_name, sorted(damaged))), last > start
    if document is None:
        return StoredState(last, damaged=names, is_behind=is_behind)
    deliveries = {(each.receiver, each.group): each.delivery for each in document.deliveries}
    claimed_until = None if is_behind else document.claimed_until  # whoever had claimed it has written the next
    return StoredState(
        last, AlertState(document.alerts, deliveries), document.records, claimed_until, names, is_behind
    )  # fmt: skip


def _read(store: "Store", number: int) -> _Document | None:
    try:
        return _DOCUMENTS.validate_json(store.fs.cat_file(store.path(_name(number))))
    except (ValidationError, FileNotFoundError):
        return None


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
    return f"{FOLDER}/{number:010d}.json"


def _numbers(store: "Store") -> list[int]:
    try:
        paths = store.fs.ls(store.path(FOLDER), detail=False)
    except FileNotFoundError:
        return []
    names = (str(path).rpartition("/")[2] for path in paths)
    return sorted(int(name.partition(".")[0]) for name in names if _FILE.fullmatch(name))
