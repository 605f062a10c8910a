"""The states of metrics in a lake: those of the registry, changed by transitions in the audit log.

Transitions are only stored in the audit log, with who made them and why.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.errors import did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.draft import FACTORS
from ranklake.lake.migrations.migration import is_of_added
from ranklake.lake.migrations.register import history
from ranklake.lake.migrations.registry import load_migrations
from ranklake.lake.migrations.steps.step import MetricSuccessor
from ranklake.lake.rollups.life.state import Life, Link, MetricLifeError, Transition, fold, members, refuse_impossible
from ranklake.lake.tables.live_files import files
from ranklake.lake.tables.read import read_where
from ranklake.lake.tables.table_schema import refuse_misread
from ranklake.lake.tables.tables import latest

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Metric
    from ranklake.lake.store.catalog import Catalog
    from ranklake.lake.store.lake import Lake
    from ranklake.lake.store.tables import Tables

ACTION: Final = "metric."
_COLUMNS: Final = ["seq", "ts", "action", "subject", "details"]


def lives(lake: "Lake") -> dict[str, Life]:
    """Return the state of each metric of the registry and of the audit log, by name."""
    return fold(_registry_state(lake.catalog.metrics()), transitions(lake.tables))


def transitions(tables: "Tables") -> list[Transition]:
    """Return all transitions in the audit log, oldest first, including those without effect."""
    table = latest(tables, audit.TABLE)
    if table is None:
        return []
    refuse_misread(table, contract(audit.TABLE))
    parts = read_where(tables.store, contract(audit.TABLE), files(table), _COLUMNS, ["action"], _is_transition)
    rows = [row for part in parts for row in part.to_pylist()]
    return [_read(row) for row in sorted(rows, key=lambda row: row["seq"])]


def _is_transition(rows: pa.Table) -> pa.ChunkedArray:
    return pc.starts_with(rows["action"].cast(pa.string()), ACTION)


def move(  # noqa: PLR0913 - attributes of a transition
    lake: "Lake",
    metric: str,
    to: str,
    by: str,
    reason: str | None = None,
    *,
    links: Sequence[Link] | None = None,
    until: date | None = None,
    ends: date | None = None,
    default: float | None = None,
) -> Life:
    """Record a metric's transition to another state in the audit log; return the new state.

    Parameters
    ----------
    to, by, reason
        The new state, who makes the transition, and why.
    links, until, ends, default
        As in `Life`; None to keep the current value.

    Raises `MetricLifeError` if the transition is not allowed, with nothing written, or if another transition was
    recorded first.
    """
    before = lives(lake)
    if metric not in before:
        hint = did_you_mean(metric, before) or "register it first"
        raise MetricLifeError("there is no such metric", where=metric, hint=hint)
    unit = before[metric].unit
    new_links = None if links is None else tuple(links)
    transition = Transition(metric, to, datetime.now(UTC), unit, new_links, until, ends, default=default)
    refuse_impossible(before, transition)
    _refuse_other_unit(before, transition)
    details: dict[str, Any] = {"unit": unit}
    if new_links is not None:
        details["links"] = [asdict(link) for link in new_links]
    details |= {name: day.isoformat() for name, day in (("until", until), ("ends", ends)) if day is not None}
    details |= {} if default is None else {"default": default}
    seq = audit.record(lake, by, f"{ACTION}{to}", metric, reason, details)
    recorded = transitions(lake.tables)
    up_to_new = [other for other in recorded if other.seq <= (seq or 0)]
    life = fold(_registry_state(lake.catalog.metrics()), up_to_new)[metric]
    new = next(other for other in recorded if other.seq == seq)
    if (life.status, life.since) != (to, new.at):
        raise MetricLifeError("another changed it meanwhile", where=metric, hint="look again: ranklake metric")
    return life


def link_to(lake: "Lake", old: str, new: str, factor: float | None = None, offset: float = 0.0) -> Link:
    """Return the link from a metric to its successor.

    Parameters
    ----------
    factor
        By default from the units of both metrics.

    Raises `MetricLifeError` for an unknown metric, and if the factor between the units is unknown.
    """
    states = lives(lake)
    if new not in states or old not in states:
        name = new if new not in states else old
        raise MetricLifeError(
            f"nothing is known of {name}", where=old, hint=did_you_mean(name, states) or "register it"
        )
    units = (states[old].unit, states[new].unit)
    if factor is None:
        factor = 1.0 if units[0] == units[1] else FACTORS.get(units) or _inverse(units)
    if not factor:
        message = f"{old} is in {units[0]}, {new} in {units[1]}"
        raise MetricLifeError(message, where=old, hint="say --factor: a value of the new is one of the old times it")
    return Link(new, float(factor), float(offset))


def _inverse(units: tuple[str, str]) -> float:
    known = FACTORS.get((units[1], units[0]))
    return 1 / known if known else 0.0


def _refuse_other_unit(before: Mapping[str, Life], transition: Transition) -> None:
    """Raise `MetricLifeError` if the successor has another unit, but the factor is 1."""
    for link in transition.links or ():
        if before[link.name].unit != before[transition.metric].unit and (link.factor, link.offset) == (1.0, 0.0):
            message = (
                f"{transition.metric} is in {before[transition.metric].unit}, {link.name} in {before[link.name].unit}"
            )
            raise MetricLifeError(f"{message}, and the factor is 1", where=transition.metric, hint="say the factor")


def _registry_state(metrics: "Mapping[str, Metric]") -> dict[str, Life]:
    """Return the states of metrics in the registry. A replacement with another unit is not linked."""
    lives = {}
    for metric in metrics.values():
        other = metrics.get(metric.replaced_by or "")
        links = (Link(other.name),) if other is not None and other.unit == metric.unit else ()
        lives[metric.name] = Life(metric.name, metric.stage, metric.unit, links)
    return lives


def _read(row: Mapping[str, Any]) -> Transition:
    details = json.loads(row["details"] or "{}")
    links = details.get("links")
    until, ends = (
        None if details.get(name) is None else date.fromisoformat(details[name]) for name in ("until", "ends")
    )
    return Transition(
        row["subject"],
        row["action"].removeprefix(ACTION),
        row["ts"],
        details.get("unit", ""),
        None if links is None else tuple(Link(**link) for link in links),
        until,
        ends,
        row["seq"],
        details.get("default"),
    )


@dataclass(frozen=True, slots=True)
class CatalogChange:
    """A change of a table or metric.

    Attributes
    ----------
    at
        Time of the change.
    kind, name
        ``table`` or ``metric``, and its name.
    text
        A clause that describes the change.
    """

    at: datetime
    kind: str
    name: str
    text: str

    def plain(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {"at": self.at.isoformat(), "kind": self.kind, "name": self.name, "what": self.text}


def changes(lake: "Lake", since: datetime | None = None) -> list[CatalogChange]:
    """Return the changes since a time, oldest first; by default all."""
    result = sorted([*_migrations(lake), *map(_transition, transitions(lake.tables))], key=lambda change: change.at)
    return [change for change in result if since is None or change.at >= since]


def _migrations(lake: "Lake") -> Iterator[CatalogChange]:
    steps = {
        migration.number: ", ".join(step.text for step in migration.steps)
        for migration in load_migrations(overlay=lake.catalog.overlay)
    }
    for row in history(lake):
        if row["status"] != "approved":
            undone = " undone" if row["status"] == "reverted" else ""
            prefix = "added columns, " if is_of_added(row["number"], row["table"]) else ""
            versions = f"{prefix}version {row['from_version']} to {row['to_version']}"
            text = steps.get(row["number"], "not known here")
            message = f"{row['number']:04d}_{row['name']}{undone}, {versions}: {text}"
            yield CatalogChange(row["ts"], "table", row["table"], message)


def _transition(transition: "Transition") -> CatalogChange:
    parts = [transition.to]
    if transition.links:
        parts.append(f"use {' + '.join(link.name for link in transition.links)}")
    if transition.until is not None:
        parts.append(f"may be recorded until {transition.until}")
    if transition.default is not None:
        parts.append(f"{transition.default:g} where a step has no value")
    if transition.ends is not None:
        parts.append(f"rows stay until {transition.ends}")
    return CatalogChange(transition.at, "metric", transition.metric, "; ".join(parts))


_ROWS_BY_NAME: Final = ("scalars", "distributions")
_ASK: Final = "ask the view series for it"


def metric_successors(lake: "Lake") -> dict[str, MetricSuccessor]:
    """Return the successors of metrics that are no columns, by name."""
    states = lives(lake)
    return {
        name: _successor(lake.catalog, states, name)
        for name, life in states.items()
        if life.links and not has_column(lake.catalog, name)
    }


def _successor(catalog: "Catalog", states: Mapping[str, Life], name: str) -> MetricSuccessor:
    newer = [member.life for member in members(states, name) if member.age < 0]
    if parts := next((life.links for life in (states[name], *newer) if len(life.links) > 1), ()):
        return MetricSuccessor("", f"split into {', '.join(link.name for link in parts)}; {_ASK}")
    if column := next((life.metric for life in newer if has_column(catalog, life.metric)), ""):
        return MetricSuccessor("", f"recorded as {column}, which has a column, now; {_ASK}")
    newest = newer[0].metric if newer else states[name].links[0].name
    return MetricSuccessor(newest, f"recorded as {newest} now, perhaps in another unit; {_ASK}, or for both")


def of_column(lake: "Lake", name: str) -> str:
    """Return the metric in a column of ``steps``, such as ``train/loss`` for ``loss``; for other names, the name."""
    return next(
        (metric for metric, entry in lake.catalog.metrics().items() if entry.stored_in == f"steps.{name}"), name
    )


def has_column(catalog: "Catalog", name: str) -> bool:
    """Whether a metric is stored in a column of its own, not as rows with its name in ``scalars``."""
    metric = catalog.metrics().get(name)
    table = (metric.stored_in or "").partition(".")[0] if metric is not None else ""
    return bool(table) and table not in _ROWS_BY_NAME
