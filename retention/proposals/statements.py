"""Statements: the exact text that somebody signs who proposes, approves or applies.

    statement ──ssh-keygen -Y sign──▶ signature ──▶ a row of the audit trail, which holds all that the text is made of

The text says who, what, of which lake, which digest of the items, and until when. So a signature is good for nothing
else: no other proposal, lake, step, or time. Whoever verifies makes the text again from the trail's row.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, Self

from ranklake.errors import RanklakeError

if TYPE_CHECKING:
    from ranklake.lake.store.store import Store

DIGEST: Final = "items_sha256"
"""Under which a row of the trail names what was approved, or begun."""
_FORMAT: Final = "ranklake approval 1"


class StatementError(RanklakeError):
    """A text that is no statement, or not about what it is given for. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Statement:
    """What is signed.

    Attributes
    ----------
    lake
        Identity of the lake, from its marker.
    kind, step, proposal, items_sha256
        What is done (``propose``, ``approve``, ``apply``) about which proposal of which kind, and its items' digest.
    signer, reason
        Who does it, and why.
    at, expires
        When it was said, and from when on it is good for nothing; ISO 8601, UTC, whole seconds.
    """

    lake: str
    kind: str
    step: str
    proposal: str
    items_sha256: str
    signer: str
    reason: str | None
    at: str
    expires: str

    @property
    def text(self) -> str:
        """What is signed, byte for byte."""
        return json.dumps({"statement": _FORMAT, **asdict(self)}, indent=1, sort_keys=True) + "\n"

    @property
    def details(self) -> dict[str, str]:
        """What the trail's row holds of it beside its own columns."""
        return {"lake": self.lake, "at": self.at, "expires": self.expires}

    @property
    def made(self) -> datetime:
        """When it was said."""
        return moment(self.at)

    @property
    def ends(self) -> datetime:
        """From when on it is good for nothing."""
        return moment(self.expires)

    @classmethod
    def parse(cls, text: str, where: str) -> Self:
        """Return the statement of a text. Raises `StatementError`."""
        try:
            facts = json.loads(text)
            statement = cls(**{item.name: facts[item.name] for item in fields(cls)})
            is_one = statement.text == text and statement.ends > statement.made
        except (ValueError, KeyError, TypeError, RecursionError):
            is_one = False
        if not is_one:
            hint = "write it anew with --statement, and sign that file as it is"
            raise StatementError("is no statement, or was edited", where=where, hint=hint)
        return statement

    @classmethod
    def of_row(cls, row: Mapping[str, Any], details: Mapping[str, Any]) -> Self:
        """Return the statement that a row of the trail stands for. Raises `KeyError`, `TypeError` or `ValueError`."""
        kind, _, step = row["action"].rpartition(".")
        statement = cls(
            str(details["lake"]),
            kind,
            step,
            row["subject"],
            str(details[DIGEST]),
            row["actor"],
            row["reason"],
            str(details["at"]),
            str(details["expires"]),
        )
        if statement.ends <= statement.made:
            raise ValueError("ends before it begins")
        return statement


def moment(text: str) -> datetime:
    """Return a moment of a statement. Raises `ValueError`."""
    when = datetime.fromisoformat(text)
    if when.tzinfo is None:
        raise ValueError("no zone")
    return when.astimezone(UTC)


def owner(store: "Store") -> str:
    """Return what places outside of a lake name it by: its number, or its address where it has none."""
    return lake_identity(store) or f"at {store.address}"


def lake_identity(store: "Store") -> str:
    """Return what tells a lake from others: the number in its marker; empty where that has none."""
    return store.number
