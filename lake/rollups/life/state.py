"""States of a metric and their transitions, as pure functions: `ranklake.lake.rollups.life.register` reads and writes.

requested ─▶ active ─▶ deprecated ─▶ retired ─▶ sunset
                ▲           │
                └───────────┘ taken back
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
"""States, and those that may follow; one that is deprecated may be so anew, with another date or replacement."""


class MetricLifeError(RanklakeError):
    """A transition that is not allowed; nothing was written."""


@dataclass(frozen=True, slots=True)
class Link:
    """What took a metric's place, or a part of it.

    Attributes
    ----------
    name
        Of the metric that is recorded now.
    factor, offset
        Its value is the old one times `factor` + `offset`; of a part, that of the old one's part.
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
        Of its values.
    links
        What took its place: one for another name or unit; several are parts that add up to it.
    until
        Last day on which it may still be recorded; None if none is set.
    ends
        Day from which its rows may go; likewise.
    since
        When it got this status; None where it comes from the registry.
    default
        What its series has, once it is deprecated, where a step has no value, in its own unit; None where nobody said
        one.
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
        """Return plain JSON values."""
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
    """A transition, from a row of the audit log.

    Attributes
    ----------
    metric, to
        The metric, and its new state.
    at
        When.
    unit, links, until, ends, default
        As in `Life`; what it does not say is None.
    seq
        Number of the row.
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
    """Raise `MetricLifeError` where a transition is not allowed, or not yet."""
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
    _refuse_odd(lives, transition)
    if around := _cycle(
        {**_edges(lives), transition.metric: [link.name for link in transition.links or now.links]}, transition.metric
    ):
        raise MetricLifeError(
            f"a cycle: {' becomes '.join(around)}", where=transition.metric, hint="name what is recorded now"
        )


def _refuse_odd(lives: Mapping[str, Life], transition: Transition) -> None:
    """Raise `MetricLifeError` where what takes a metric's place, or stands for it, cannot."""
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
    """Return the states of metrics after transitions. One that is not allowed, as the later of two, is ignored."""
    lives = dict(begin)
    for transition in transitions:
        # a later release may have dropped the metric
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
    """Return the way from a metric back to itself; empty if there is none."""
    ways = [[begin]]
    while ways:
        way = ways.pop()
        for name in edges.get(way[-1], ()):
            if name == begin:
                return [*way, name]
            if name not in way:
                ways.append([*way, name])
    return []


@dataclass(frozen=True, slots=True)
class Member:
    """A metric whose values are those of a series, once they are converted.

    Attributes
    ----------
    life
        The metric.
    factor, offset
        The series' value is the metric's times `factor` + `offset`.
    age
        How many metrics replaced it in turn. Where two have a value of one step, the lower age wins.
    """

    life: Life
    factor: float
    offset: float
    age: int


def members(every: Mapping[str, Life], metric: str) -> list[Member]:
    """Return the metrics that a metric became, or came of, one for one, the newest first; itself among them."""
    by_name = {metric: Member(every[metric], 1.0, 0.0, 0)}
    left = [metric]
    while left:
        here = by_name[left.pop()]
        for name, factor, offset, step in _predecessors(every, here.life):
            if name not in by_name and name in every:
                total = (here.factor * factor, here.factor * offset + here.offset)
                by_name[name] = Member(every[name], *total, here.age + step)
                left.append(name)
    return sorted(by_name.values(), key=lambda member: (member.age, member.life.metric))


def _predecessors(every: Mapping[str, Life], here: Life) -> Iterator[tuple[str, float, float, int]]:
    """Yield names, and factor and offset from a name's values to those of a metric, and how much older it is."""
    if len(here.links) == 1:
        (link,) = here.links
        yield link.name, 1 / link.factor, -link.offset / link.factor, -1
    for other in every.values():
        for link in other.links:
            if len(other.links) == 1 and link.name == here.metric:
                yield other.metric, link.factor, link.offset, 1
