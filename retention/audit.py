"""The audit trail: who did what to governed data, as a chain that shows where it was altered.

Each row holds the SHA-256 of the row before, and its own over all its facts. Rows are appended one commit each by
compare-and-swap, so that writers at the same time make one chain, and the table's transaction number counts them: a
tail that was cut off shows too.
"""

import hashlib
import json
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from deltalake import DeltaTable

from ranklake.lake.commit import number_of
from ranklake.lake.contracts.load import contract
from ranklake.lake.ledger import append_own
from ranklake.lake.read import read
from ranklake.lake.tables import delta_table

if TYPE_CHECKING:
    from ranklake.lake.store import Lake

TABLE: Final = "audit"
GENESIS: Final = "0" * 64


def record(
    lake: "Lake",
    actor: str,
    action: str,
    subject: str,
    reason: str | None = None,
    details: Mapping[str, Any] | None = None,
    *,
    once: bool = False,
) -> int | None:
    """Append a row and return its number in the chain.

    Parameters
    ----------
    actor
        Who did it; pseudonymous data, which goes nowhere but into this row.
    action, subject
        What was done, such as ``retention.approve``, and to what.
    reason
        Why, in the actor's words.
    details
        Facts as plain JSON values, without personal data.
    once
        Append nothing, and return None, if a row of this action and subject is there: for what may be carried out again
        after a crash.
    """
    written: list[int] = []

    def compose(handle: DeltaTable) -> list[dict[str, Any]]:
        written.clear()
        known = ["seq", "sha256", "action", "subject"]
        rows = read(lake, contract(TABLE), known, version=handle.version()).to_pylist()
        if once and any((row["action"], row["subject"]) == (action, subject) for row in rows):
            return []
        last: dict[str, Any] = max(rows, key=lambda row: row["seq"]) if rows else {"seq": -1, "sha256": GENESIS}
        now = datetime.now(UTC)
        row: dict[str, Any] = {
            "seq": last["seq"] + 1,
            "ts": now,
            "actor": actor,
            "action": action,
            "subject": subject,
            "reason": reason,
            "details": None if details is None else json.dumps(dict(details), sort_keys=True),
            "prev_sha256": last["sha256"],
            "date": now.date(),
        }
        written.append(row["seq"])
        return [{**row, "sha256": digest(row)}]

    append_own(lake, TABLE, compose)
    return written[0] if written else None


def digest(row: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a row's facts, all but its own digest, as JSON with sorted keys; times in ISO 8601, UTC."""
    facts = {name: value for name, value in row.items() if name != "sha256"}
    facts["ts"] = row["ts"].astimezone(UTC).isoformat(timespec="microseconds")
    facts["date"] = row["date"].isoformat()
    return hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode()).hexdigest()


def verify(lake: "Lake") -> int | None:
    """Return the number of the first row that is missing, repeated or altered; None if the chain is whole."""
    before = GENESIS
    rows = trail(lake)
    for expected, row in enumerate(rows):
        if row["seq"] != expected or row["prev_sha256"] != before or row["sha256"] != digest(row):
            return expected
        before = row["sha256"]
    handle = delta_table(lake, TABLE)
    committed = 0 if handle is None else number_of(handle)
    return len(rows) if committed != len(rows) else None


def trail(lake: "Lake") -> list[dict[str, Any]]:
    """Return the rows in the order of the chain."""
    return sorted(read(lake, contract(TABLE)).to_pylist(), key=lambda row: row["seq"])
