"""Which metrics have the values of one, by what became of them: names and units that took one another's place."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from ranklake.lake.rollups.life.state import Life


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
        How many others took its place one after another: of what two have of a step, that of the lesser age counts.
    """

    life: Life
    factor: float
    offset: float
    age: int


def members(every: Mapping[str, Life], metric: str) -> list[Member]:
    """Return the metrics that a metric became, or came of, one for one, the newest first; itself among them."""
    found = {metric: Member(every[metric], 1.0, 0.0, 0)}
    left = [metric]
    while left:
        here = found[left.pop()]
        for name, factor, offset, step in _beside(every, here.life):
            if name not in found and name in every:
                total = (here.factor * factor, here.factor * offset + here.offset)
                found[name] = Member(every[name], *total, here.age + step)
                left.append(name)
    return sorted(found.values(), key=lambda one: (one.age, one.life.metric))


def _beside(every: Mapping[str, Life], here: Life) -> Iterator[tuple[str, float, float, int]]:
    """Yield names, and factor and offset from a name's values to those of a metric, and how much older it is."""
    if len(here.links) == 1:
        (link,) = here.links
        yield link.name, 1 / link.factor, -link.offset / link.factor, -1
    for other in every.values():
        for link in other.links:
            if len(other.links) == 1 and link.name == here.metric:
                yield other.metric, link.factor, link.offset, 1
