"""A line of the query log: who used which columns, when. It has no values, and nothing of the query's text."""

import getpass
import json
import re
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Final, Self

from ranklake.errors import RanklakeError
from ranklake.lake.store.json_shape import Maybe, UpTo, fault

UNKNOWN: Final = "unknown"
_NAMES: Final = re.compile(r"[\w.@/+-]{1,128}")
_WORD: Final = re.compile(r"\w{1,128}")
_ID: Final = re.compile(r"[0-9]{20}-[0-9a-f]{32}")
_SHAPE: Final = {
    "id": _ID,
    "consumer": _NAMES,
    "role": Maybe(str),
    "columns": {_WORD: UpTo(10_000, [_WORD])},
    "former": {_WORD: {_WORD: _WORD}},
}


class ConsumerError(RanklakeError):
    """A name that no consumer can have."""


@dataclass(frozen=True, slots=True)
class Asked:
    """One query.

    Attributes
    ----------
    consumer
        Who asked: a name that was configured, or a login name, which is personal data.
    role
        As which role, by its name; None as none.
    columns
        Columns that it used, by table, as they were called then; none where it only counted rows.
    former
        Former names that it used, by table, and what each stood for then.
    id
        When, in microseconds since 1970, and a random part.
    """

    consumer: str
    role: str | None
    columns: Mapping[str, tuple[str, ...]]
    former: Mapping[str, Mapping[str, str]]
    id: str = field(default_factory=lambda: f"{int(datetime.now(UTC).timestamp() * 1e6):020}-{uuid.uuid4().hex}")

    @property
    def at(self) -> datetime:
        """When it was asked, UTC."""
        return datetime.fromtimestamp(int(self.id[:20]) / 1e6, UTC)

    def line(self) -> str:
        """Return it as a line of JSON."""
        facts = {name: getattr(self, name) for name in ("id", "consumer", "role", "columns", "former")}
        return json.dumps(facts, separators=(",", ":"))

    @classmethod
    def read(cls, line: str) -> Self | None:
        """Return what a line says; None where it is none: half of one, or of a later release."""
        try:
            facts = json.loads(line)
        except (ValueError, RecursionError):
            return None
        if fault(facts, _SHAPE, "query") is not None:
            return None
        columns = {table: tuple(names) for table, names in facts["columns"].items()}
        found = cls(facts["consumer"], facts["role"], columns, facts["former"], facts["id"])
        try:
            found.at  # noqa: B018 - a time beyond all years is none
        except (ValueError, OverflowError, OSError):
            return None
        return found


def consumer_named(name: str) -> str:
    """Return the name of a consumer: what is said, else the login name. Raises `ConsumerError`."""
    if not name:
        try:
            name = getpass.getuser()
        except (OSError, KeyError):  # a container without an entry for its user
            return UNKNOWN
        return name if _NAMES.fullmatch(name) else UNKNOWN
    if not _NAMES.fullmatch(name):
        hint = "write up to 128 letters, digits and . _ @ / + -"
        raise ConsumerError("not the name of a consumer", where="--consumer", hint=hint)
    return name
