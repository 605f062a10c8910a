"""Which value of which facet the failing rows have more often than the others: pure counting.

A candidate splits all rows in two: those that have a value (or lie in a range of values), and the rest. Candidates are
compared by the likelihood-ratio statistic of that 2 x 2 table, G = 2 sum(observed x ln(observed / expected)) (Dunning,
"Accurate methods for the statistics of surprise and coincidence", 1993), of which 2 ln(candidates of the facet) is
taken off: of 4,096 ranks one looks odd more easily than of two driver versions. Rows of one process are alike, so that
G is no measure of significance here. It only puts candidates in order.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, NamedTuple

MIN_SHARE: Final = 0.5
"""Share of the failing rows that an explanation has at least."""
MIN_LIFT: Final = 2.0
"""How many times as often as elsewhere rows of an explanation fail, at least."""
MOST_ENDS: Final = 1024
"""Values at which a range may begin or end; where more of them fail more often than all rows do, none is looked for."""


class Count(NamedTuple):
    """Rows that were judged, and those of them that failed."""

    rows: int
    failed: int


@dataclass(frozen=True, slots=True)
class Cause:
    """One candidate: rows whose `facet` is `low`, or lies between `low` and `high`, both included.

    Attributes
    ----------
    here, rest
        Counts of these rows, and of all others.
    distinct
        Values that the facet has in all.
    score
        By which candidates are put in order.
    """

    facet: str
    low: Any
    high: Any
    here: Count
    rest: Count
    distinct: int
    score: float

    @property
    def share(self) -> float:
        """Share of all failing rows that it has."""
        return self.here.failed / (self.here.failed + self.rest.failed)

    @property
    def lift(self) -> float | None:
        """How many times as often as elsewhere its rows fail; None where no other row fails."""
        if not self.rest.failed:
            return None
        return (self.here.failed / self.here.rows) / (self.rest.failed / self.rest.rows)

    @property
    def stands_out(self) -> bool:
        """Whether it says something: it has half of the failing rows, and they are twice as many as elsewhere."""
        if not self.rest.rows or not self.here.failed or self.share < MIN_SHARE:
            return False
        return self.lift is None or self.lift >= MIN_LIFT

    def same_rows(self, other: "Cause") -> bool:
        """Whether another has as many rows, and as many failing ones: then it is reported beside it."""
        return self.here == other.here


def causes(counts: Mapping[str, Mapping[Any, Count]], ordered: Sequence[str] = ()) -> list[Cause]:
    """Return the best candidate of each facet, the best of all first; of equal ones that with fewer values.

    Parameters
    ----------
    counts
        Counts by facet and value, each facet over the same rows. The value None is rows without one; it is a candidate,
        too, but lies in no range.
    ordered
        Facets whose values have an order, so that a range of them may be the cause.
    """
    candidates = []
    for facet, by_value in counts.items():
        total = Count(sum(one.rows for one in by_value.values()), sum(one.failed for one in by_value.values()))
        if total.failed and len(by_value) > 1:
            candidates.append(_best(facet, by_value, total, ranges=facet in ordered))
    places = {facet: place for place, facet in enumerate(counts)}
    return sorted(candidates, key=lambda cause: (-cause.score, cause.distinct, places[cause.facet]))


def _best(facet: str, by_value: Mapping[Any, Count], total: Count, *, ranges: bool) -> Cause:
    spans = [(value, value, one) for value, one in by_value.items()]
    price = 2 * math.log(len(spans))
    best = _cause(facet, max(spans, key=lambda span: _score(span[2], total)), total, len(by_value), price)
    there = sorted((value, one) for value, one in by_value.items() if value is not None)
    longer = _range(there, total) if ranges else None
    if longer is None:
        return best
    wide = _cause(facet, longer, total, len(by_value), 2 * price)  # there are so many more ranges
    return max(best, wide, key=lambda cause: cause.score)


def _range(there: list[tuple[Any, Count]], total: Count) -> tuple[Any, Any, Count] | None:
    """Return the range of several values with the highest score; both ends of it have failing rows."""
    rows = [0, *accumulate(one.rows for _, one in there)]
    failed = [0, *accumulate(one.failed for _, one in there)]
    odd = [place for place, (_, one) in enumerate(there) if one.failed]
    if len(odd) > MOST_ENDS:  # the best range may end with a value that fails less often than all rows do, but hardly
        odd = [place for place in odd if there[place][1].failed * total.rows > total.failed * there[place][1].rows]
    best, score = None, -math.inf
    for begin in odd if len(odd) <= MOST_ENDS else ():
        for end in odd:
            if end > begin:
                here = Count(rows[end + 1] - rows[begin], failed[end + 1] - failed[begin])
                if (mine := _score(here, total)) > score:
                    best, score = (there[begin][0], there[end][0], here), mine
    return best


def _cause(facet: str, span: tuple[Any, Any, Count], total: Count, distinct: int, price: float) -> Cause:
    low, high, here = span
    rest = Count(total.rows - here.rows, total.failed - here.failed)
    return Cause(facet, low, high, here, rest, distinct, _score(here, total) - price)


def _score(here: Count, total: Count) -> float:
    """Return G of the 2 x 2 table of these rows and the rest; negative where they fail less often than the rest."""
    rest = Count(total.rows - here.rows, total.failed - here.failed)
    g = 0.0
    for side in (here, rest):
        for observed, of_all in ((side.failed, total.failed), (side.rows - side.failed, total.rows - total.failed)):
            if observed:
                g += observed * math.log(observed * total.rows / (side.rows * of_all))
    return 2 * g if here.failed * total.rows >= total.failed * here.rows else -2 * g
