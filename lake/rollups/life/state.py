"""States of a metric and transitions between them, as pure functions. `ranklake.lake.rollups.life.register` has I/O.

requested ─▶ active ─▶ deprecated ─▶ retired ─▶ sunset
                ▲           │
                └───────────┘ deprecation withdrawn
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from datetime import date, datetime, timedelta
from math import isfinite
from typing import Any, Final

from ranklake.errors import RanklakeError

NEXT: Final[Mapping[str, tuple[str, ...]]] = {
    "requested": ("active",),
    "planned": ("active",),
    "active": ("deprecated",),
    "deprecated": ("deprecated", "active", "retired"),
    "retired": ("sunset",),
    "sunset": (),
}
"""States, and the states that may follow. A metric may be deprecated again, with another date or successor."""


class MetricLifeError(RanklakeError):
    """An unknown metric, or a transition that is not allowed. Nothing was written."""


@dataclass(frozen=True, slots=True)
class Link:
    """A link to the successor of a metric, or of a part of it.

    Attributes
    ----------
    name
        The metric that is recorded now.
    factor, offset
        The new value is the old one times `factor`, plus `offset`; for a part, the value of this part.
    """

    name: str
    factor: float = 1.0
    offset: float = 0.0


@dataclass(frozen=True, slots=True)
class Life:
    """The state of a metric.

    Attributes
    ----------
    status
        One of `NEXT`.
    unit
        Unit of its values.
    links
        Successors: one for another name or unit; several if it was split into parts that add up to it.
    until
        Last day on which it may be recorded; None if not set.
    ends
        First day on which its rows may be deleted; None if not set.
    since
        When it got this status; None if the status is from the registry.
    default
        Value of its series for steps without a value, after its deprecation, in its own unit; None if not set.
    """

    metric: str
    status: str
    unit: str
    links: tuple[Link, ...] = ()
    until: date | None = None
    ends: date | None = None
    since: datetime | None = None
    default: float | None = None

    def plain(self) -> dict[str, Any]:
        """Return the attributes as JSON values."""
        return {
            **{name: getattr(self, name) for name in ("metric", "status", "unit")},
            "links": [asdict(link) for link in self.links],
            **{
                name: None if (day := getattr(self, name)) is None else day.isoformat()
                for name in ("until", "ends", "since")
            },
            "default": self.default,
        }


@dataclass(frozen=True, slots=True)
class Transition:
    """A transition of a metric to another state, from a row of the audit log.

    Attributes
    ----------
    metric, to
        The metric, and its new state.
    at
        Time of the transition.
    unit, links, until, ends, default
        As in `Life`; None for values that the transition does not change.
    seq
        Number of the row; -1 if it is not recorded yet.
    """

    metric: str
    to: str
    at: datetime
    unit: str
    links: tuple[Link, ...] | None = None
    until: date | None = None
    ends: date | None = None
    seq: int = -1
    default: float | None = None


def refuse_impossible(lives: Mapping[str, Life], transition: Transition) -> None:
    """Raise `MetricLifeError` if a transition is not allowed, or not yet."""
    now = lives.get(transition.metric)
    if now is None:
        raise MetricLifeError("there is no such metric", where=transition.metric, hint="see: ranklake catalog")
    if transition.to not in NEXT[now.status]:
        after = ", ".join(NEXT[now.status]) or "nothing"
        raise MetricLifeError(
            f"it is {now.status}, and {after} may follow", where=transition.metric, hint="see: ranklake metric"
        )
    day = transition.at.date()
    if transition.to == "retired" and now.until is not None and day <= now.until:
        hint = f"retire it from {now.until + timedelta(days=1)} on, or deprecate it again with an --until before today"
        raise MetricLifeError(f"it may be recorded until {now.until}", where=transition.metric, hint=hint)
    if transition.to == "sunset" and now.ends is not None and day < now.ends:
        raise MetricLifeError(f"its rows stay until {now.ends}", where=transition.metric, hint="wait")
    _refuse_invalid(lives, transition)
    if cycle := _cycle(
        {**_edges(lives), transition.metric: [link.name for link in transition.links or now.links]}, transition.metric
    ):
        raise MetricLifeError(
            f"a cycle: {' becomes '.join(cycle)}", where=transition.metric, hint="name what is recorded now"
        )


def _refuse_invalid(lives: Mapping[str, Life], transition: Transition) -> None:
    """Raise `MetricLifeError` for invalid successors or an invalid default."""
    if transition.default is not None and not isfinite(transition.default):
        raise MetricLifeError(
            f"a default of {transition.default} is no value", where=transition.metric, hint="say a number"
        )
    for link in transition.links or ():
        if link.name not in lives:
            raise MetricLifeError(f"nothing is known of {link.name}", where=transition.metric, hint="register it first")
        if link.factor == 0:
            raise MetricLifeError(
                f"a factor of 0 loses every value of {link.name}", where=transition.metric, hint="correct it"
            )
    if len({link.name for link in transition.links or ()}) < len(transition.links or ()):
        raise MetricLifeError("a part is named twice", where=transition.metric, hint="name each once")


def apply_transition(lives: Mapping[str, Life], transition: Transition) -> Life:
    """Return the state of a metric after a transition."""
    now = lives[transition.metric]
    if transition.to == "active":
        return Life(transition.metric, "active", now.unit, since=transition.at)
    dates = {
        name: getattr(transition, name)
        for name in ("links", "until", "ends", "default")
        if getattr(transition, name) is not None
    }
    return replace(now, status=transition.to, since=transition.at, **dates)


def fold(begin: Mapping[str, Life], transitions: Iterable[Transition]) -> dict[str, Life]:
    """Return the states of metrics after transitions. Transitions that are not allowed are ignored."""
    lives = dict(begin)
    for transition in transitions:
        # a newer registry may no longer have the metric
        lives.setdefault(transition.metric, Life(transition.metric, "active", transition.unit))
        for link in transition.links or ():
            lives.setdefault(link.name, Life(link.name, "active", ""))
        try:
            refuse_impossible(lives, transition)
        except MetricLifeError:
            continue
        lives[transition.metric] = apply_transition(lives, transition)
    return lives


def _edges(lives: Mapping[str, Life]) -> dict[str, list[str]]:
    return {name: [link.name for link in life.links] for name, life in lives.items() if life.links}


def _cycle(edges: Mapping[str, list[str]], begin: str) -> list[str]:
    """Return a path from a metric back to itself; empty if there is none."""
    paths = [[begin]]
    while paths:
        path = paths.pop()
        for name in edges.get(path[-1], ()):
            if name == begin:
                return [*path, name]
            if name not in path:
                paths.append([*path, name])
    return []


@dataclass(frozen=True, slots=True)
class Member:
    """A metric whose converted values are part of a series.

    Attributes
    ----------
    life
        The state of the metric.
    factor, offset
        The series' value is the metric's value times `factor`, plus `offset`.
    age
        Number of replacements between this metric and the series' metric; negative for successors. If two metrics have
        a value for one step, the lower age wins.
    """

    life: Life
    factor: float
    offset: float
    age: int


def members(every: Mapping[str, Life], metric: str) -> list[Member]:
    """Return a metric, its successors and its predecessors, the newest first. Splits are not followed.

    Parameters
    ----------
    every
        States of all metrics, by name.
    """
    by_name = {metric: Member(every[metric], 1.0, 0.0, 0)}
    queue = [metric]
    while queue:
        member = by_name[queue.pop()]
        for name, factor, offset, age in _neighbours(every, member.life):
            if name not in by_name and name in every:
                conversion = (member.factor * factor, member.factor * offset + member.offset)
                by_name[name] = Member(every[name], *conversion, member.age + age)
                queue.append(name)
    return sorted(by_name.values(), key=lambda member: (member.age, member.life.metric))


def _neighbours(every: Mapping[str, Life], life: Life) -> Iterator[tuple[str, float, float, int]]:
    """Yield the direct successor and predecessors of a metric: name, factor and offset to its values, relative age."""
    if len(life.links) == 1:
        (link,) = life.links
        yield link.name, 1 / link.factor, -link.offset / link.factor, -1
    for other in every.values():
        for link in other.links:
            if len(other.links) == 1 and link.name == life.metric:
                yield other.metric, link.factor, link.offset, 1
