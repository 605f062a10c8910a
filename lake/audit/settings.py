"""Changes of what a lake is governed by, in the audit trail: roles, policies, contracts, configuration.

digests by name as they are now ─▶ against what the trail's rows add up to ─▶ one row for each kind that changed
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.lake.audit.trail import TABLE, Entry, record_all
from ranklake.lake.contracts.load import contract
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.store.lake import Lake

ACTION: Final = "settings.changed"

Settings = Mapping[str, Mapping[str, str]]
"""Kind, such as ``roles``, to digests or versions by name."""


def note_settings(lake: "Lake", by: str, settings: Settings, more: Mapping[str, Any] | None = None) -> list[str]:
    """Write a row for each kind of settings that is not as the trail has it; return the kinds.

    A row has what each changed name was before and is after, None where it was or is not there. The first has all.
    Raises as `ranklake.lake.audit.trail.record_all`.
    """
    known = recorded_settings(lake)
    entries = []
    for kind, now in settings.items():
        before = known.get(kind, {})
        names = sorted(name for name in {*before, *now} if before.get(name) != now.get(name))
        if names:
            sides = (("before", before), ("after", now))
            changed = {side: {name: each.get(name) for name in names} for side, each in sides}
            entries.append(Entry(by, ACTION, kind, None, {**changed, **(more or {})}))
    if entries:
        record_all(lake, entries)
    return [entry.subject for entry in entries]


def recorded_settings(lake: "Lake") -> dict[str, dict[str, str | None]]:
    """Return the latest recorded settings, by kind; None for those that were removed."""
    rows = read(lake.tables, contract(TABLE), ["seq", "action", "subject", "details"])
    known: dict[str, dict[str, str | None]] = {}
    for row in rows.filter(pc.field("action") == ACTION).sort_by("seq").to_pylist():
        settings = known.setdefault(row["subject"], {})
        for name, value in json.loads(row["details"])["after"].items():
            settings[name] = value
    return known
