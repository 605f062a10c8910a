"""Rows of the audit log as lines for other systems: JSON, and CEF, which SIEMs read."""

import json
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any, Final

from ranklake import __version__
from ranklake.printable import printable, printable_lines

_SEVERITY: Final = {"artifact.verify": 3, "audit.resume": 9, "approvals.mode": 7}
"""Severity of actions, from 0 to 10; other actions have `_USUAL`."""
_USUAL: Final = 5


def as_json(row: Mapping[str, Any]) -> str:
    """Return a row as one line of JSON, its details as values, or as text if they are not ours."""
    details = row["details"]
    try:
        values = json.loads(details or "null")
        if (
            isinstance(values, dict) and json.dumps(values, sort_keys=True) == details
        ):  # else its digest could not be verified
            details = values
    except (ValueError, RecursionError):
        pass
    return json.dumps({**row, "ts": iso(row["ts"]), "date": iso(row["date"]), "details": details}, sort_keys=True)


def iso(when: date | None) -> str | None:
    """Return a date or a time as ISO 8601 writes it; None for hidden values."""
    return None if when is None else when.isoformat()


def as_cef(row: Mapping[str, Any]) -> str:
    """Return a row in the Common Event Format: ``CEF:0|vendor|product|version|id|name|severity|extension``."""
    action = row["action"] or ""
    facts = {
        "rt": None if row["ts"] is None else int(row["ts"].timestamp() * 1000),
        "suser": row["actor"],
        "act": row["action"],
        "duid": row["subject"],
        "externalId": row["seq"],
        "reason": row["reason"],
        "cs1Label": "sha256",
        "cs1": row["sha256"],
        "cs2Label": "details",
        "cs2": row["details"],
    }
    extension = " ".join(f"{key}={_extension(str(value))}" for key, value in facts.items() if value is not None)
    head = ["CEF:0", "ranklake", "ranklake", __version__, action, action, str(_SEVERITY.get(action, _USUAL))]
    return "|".join([head[0], *map(_header, head[1:]), extension])


def _header(text: str) -> str:
    return printable(" ".join(text.split())).replace("\\", "\\\\").replace("|", "\\|")


def _extension(text: str) -> str:
    lines = printable_lines(text.replace("\r\n", "\n").replace("\r", "\n"))
    return lines.replace("\\", "\\\\").replace("=", "\\=").replace("\n", "\\n")


FORMS: Final[Mapping[str, Callable[[Mapping[str, Any]], str]]] = {"json": as_json, "cef": as_cef}
"""Formats by their names in ``--format``."""
