"""The life of metrics in a lake: rows of the audit trail, on top of what the registry says.

The trail is the only place: a transition that is not in it did not happen, and one that is says who did it and why.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, date, datetime
from typing import TYPE_CHECKING, Any, Final

import pyarrow.compute as pc

from ranklake.errors import did_you_mean
from ranklake.lake.audit import trail as audit
from ranklake.lake.contracts.load import contract
from ranklake.lake.migrations.draft import FACTORS
from ranklake.lake.rollups.life.state import Life, Link, MetricLifeError, Transition, fold, refuse_impossible
from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Metric
    from ranklake.lake.store.store import Lake

ACTION: Final = "metric."
_COLUMNS: Final = ["seq", "ts", "action", "subject", "details"]


def lives(lake: "Lake") -> dict[str, Life]:
    """Return where each metric of the registry and of the trail stands."""
    return fold(_registered(lake.metrics()), transitions(lake))


def transitions(lake: "Lake") -> list[Transition]:
    """Return the transitions of the trail, oldest first, those that came to nothing included."""
    rows = read(lake, contract(audit.TABLE), _COLUMNS)
    mine = rows.filter(pc.starts_with(rows["action"], ACTION)).to_pylist()
    return [_read(row) for row in sorted(mine, key=lambda row: row["seq"])]


def move(  # noqa: PLR0913 - what may be said of a transition
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
    """Bring a metric to another state, and write it into the trail; return where it stands then.

    Raises `MetricLifeError` where it cannot be, nothing was written then, or where another was faster.
    """
    before = lives(lake)
    if metric not in before:
        hint = did_you_mean(metric, before) or "register it first"
        raise MetricLifeError("there is no such metric", where=metric, hint=hint)
    unit = before[metric].unit
    chosen = None if links is None else tuple(links)
    one = Transition(metric, to, datetime.now(UTC), unit, chosen, until, ends, default=default)
    refuse_impossible(before, one)
    _refuse_other_unit(before, one)
    told: dict[str, Any] = {"unit": unit}
    if chosen is not None:
        told["links"] = [asdict(link) for link in chosen]
    told |= {name: day.isoformat() for name, day in (("until", until), ("ends", ends)) if day is not None}
    told |= {} if default is None else {"default": default}
    seq = audit.record(lake, by, f"{ACTION}{to}", metric, reason, told)
    every = transitions(lake)
    found = fold(_registered(lake.metrics()), [other for other in every if other.seq <= (seq or 0)])[metric]
    mine = next(other for other in every if other.seq == seq)
    if (found.status, found.since) != (to, mine.at):
        raise MetricLifeError("another changed it meanwhile", where=metric, hint="look again: ranklake metric")
    return found


def link_to(lake: "Lake", old: str, new: str, factor: float | None = None, offset: float = 0.0) -> Link:
    """Return the link from a metric to one in its place, with the factor that their units have.

    Raises `MetricLifeError` where nobody knows it.
    """
    every = lives(lake)
    if new not in every or old not in every:
        name = new if new not in every else old
        raise MetricLifeError(f"nothing is known of {name}", where=old, hint=did_you_mean(name, every) or "register it")
    units = (every[old].unit, every[new].unit)
    if factor is None:
        factor = 1.0 if units[0] == units[1] else FACTORS.get(units) or _inverse(units)
    if not factor:
        what = f"{old} is in {units[0]}, {new} in {units[1]}"
        raise MetricLifeError(what, where=old, hint="say --factor: a value of the new is one of the old times it")
    return Link(new, float(factor), float(offset))


def _inverse(units: tuple[str, str]) -> float:
    known = FACTORS.get((units[1], units[0]))
    return 1 / known if known else 0.0


def _refuse_other_unit(before: Mapping[str, Life], one: Transition) -> None:
    """Raise `MetricLifeError` where a unit changes, and values would not."""
    for link in one.links or ():
        if before[link.name].unit != before[one.metric].unit and (link.factor, link.offset) == (1.0, 0.0):
            what = f"{one.metric} is in {before[one.metric].unit}, {link.name} in {before[link.name].unit}"
            raise MetricLifeError(f"{what}, and the factor is 1", where=one.metric, hint="say the factor")


def _registered(metrics: "Mapping[str, Metric]") -> dict[str, Life]:
    """Return where the registry has each metric; a replacement in another unit is not believed to be the same."""
    found = {}
    for one in metrics.values():
        status = "deprecated" if one.status == "active" and (one.deprecated or one.replaced_by) else one.status
        other = metrics.get(one.replaced_by or "")
        links = (Link(other.name),) if other is not None and other.unit == one.unit else ()
        found[one.name] = Life(one.name, status, one.unit, links)
    return found


def _read(row: Mapping[str, Any]) -> Transition:
    told = json.loads(row["details"] or "{}")
    links = told.get("links")
    until, ends = (None if told.get(name) is None else date.fromisoformat(told[name]) for name in ("until", "ends"))
    return Transition(
        row["subject"],
        row["action"].removeprefix(ACTION),
        row["ts"],
        told.get("unit", ""),
        None if links is None else tuple(Link(**link) for link in links),
        until,
        ends,
        row["seq"],
        told.get("default"),
    )
