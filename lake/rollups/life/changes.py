"""What changed of tables and metrics in a lake since a moment: migrations, and the life of metrics."""

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any

from ranklake.lake.migrations.migration import is_of_added
from ranklake.lake.migrations.register import history
from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.rollups.life.register import transitions

if TYPE_CHECKING:
    from ranklake.lake.rollups.life.state import Transition
    from ranklake.lake.store.store import Lake


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """A change.

    Attributes
    ----------
    kind, name
        ``table`` or ``metric``, and which.
    what
        What became of it, in a clause.
    """

    at: datetime
    kind: str
    name: str
    what: str

    def plain(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {"at": self.at.isoformat(), "kind": self.kind, "name": self.name, "what": self.what}


def changes(lake: "Lake", since: datetime | None = None) -> list[CatalogChange]:
    """Return the changes since a moment, oldest first."""
    found = sorted([*_migrations(lake), *map(_transition, transitions(lake))], key=lambda one: one.at)
    return [one for one in found if since is None or one.at >= since]


def _migrations(lake: "Lake") -> Iterator[CatalogChange]:
    steps = {one.number: ", ".join(step.text for step in one.steps) for one in load_migrations(overlay=lake.overlay)}
    for row in history(lake):
        if row["status"] != "approved":
            back = " undone" if row["status"] == "reverted" else ""
            whose = "added columns, " if is_of_added(row["number"], row["table"]) else ""
            ends = f"{whose}version {row['from_version']} to {row['to_version']}"
            what = f"{row['number']:04d}_{row['name']}{back}, {ends}: {steps.get(row['number'], 'not known here')}"
            yield CatalogChange(row["ts"], "table", row["table"], what)


def _transition(one: "Transition") -> CatalogChange:
    parts = [one.to]
    if one.links:
        parts.append(f"use {' + '.join(link.name for link in one.links)}")
    if one.until is not None:
        parts.append(f"may be recorded until {one.until}")
    if one.default is not None:
        parts.append(f"{one.default:g} where a step has no value")
    if one.ends is not None:
        parts.append(f"rows stay until {one.ends}")
    return CatalogChange(one.at, "metric", one.metric, "; ".join(parts))
