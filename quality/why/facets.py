"""Facets that rows may share, and the lift of their values: which of them failing rows have more often than others.

A candidate splits all rows in two: those that have a value (or lie in a range of values), and the rest. Candidates are
compared by the likelihood-ratio statistic of that 2 x 2 table, G = 2 sum(observed x ln(observed / expected)) (Dunning,
"Accurate methods for the statistics of surprise and coincidence", 1993), of which 2 ln(candidates of the facet) is
taken off: of 4,096 ranks one looks odd more easily than of two driver versions. Rows of one process are alike, so that
G is no measure of significance here. It only puts candidates in order.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.tables.read import read

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract
    from ranklake.lake.store.lake import Lake


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


HOUR: Final = "hour"
PROCESS: Final = "process"
MOST_VALUES: Final = 10_000
"""Values of a facet that are counted; one with more tells rows apart, not what they share."""
_IDENTITY: Final = ("run", "attempt", "rank")
_POSITIONS: Final = frozenset({"incarnation", "segment", "slot", "pid", *_IDENTITY})
_PROCESS_TABLES: Final = ("runs", "ranks")
"""Tables about runs and processes; what a rank says of itself wins."""
_WORDS: Final = ("string", "bool")

Process = tuple[str | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Facet:
    """One facet of a table's rows.

    Attributes
    ----------
    name
        A column of the table or of one in `_PROCESS_TABLES`, `HOUR`, or `PROCESS`.
    table
        Where its values stand.
    classified
        Whether they are shown to nobody.
    ordered
        Whether they have an order, so that a range of them says something.
    """

    name: str
    table: str
    classified: bool = False
    ordered: bool = False


def own_facets(contract: "Contract", judged: Sequence[str]) -> dict[str, Facet]:
    """Return the facets in a table's own columns, but those that a check judges: they are what is wrong.

    Text, truth values and numbers that name things are facets; measured values, JSON and keys are none.
    """
    named = [one for one in contract.columns if _names(one) and one.name not in {*judged, *_POSITIONS, "date"}]
    facets = {one.name: _facet(one, contract.table) for one in named}
    if "ts" in contract:
        facets[HOUR] = Facet(HOUR, contract.table, ordered=True)
    return facets


def _names(column: "Column") -> bool:
    if column.type in _WORDS:
        return column.format is None
    return column.is_number and column.unit == "none" and column.type.startswith("int")


def _facet(column: "Column", table: str) -> Facet:
    return Facet(column.name, table, column.class_ != "operational", ordered=column.is_number)


class Counts:
    """Counts of judged and failing rows, by facet and by process; `add` takes batches of rows.

    Parameters
    ----------
    contract
        With the columns that the table has.
    judged
        Columns that the check judges.
    """

    def __init__(self, contract: "Contract", judged: Sequence[str]) -> None:
        self.facets = own_facets(contract, judged)
        self.identity = tuple(name for name in _IDENTITY if name in contract)
        self.columns = tuple(name for name in self.facets if name != HOUR) + self.identity
        self.columns += ("ts",) if HOUR in self.facets else ()
        self.total = Count(0, 0)
        self._by_facet: dict[str, dict[Any, Count]] = {name: {} for name in self.facets}
        self._by_process: dict[Process, Count] = {}

    def add(self, rows: pa.Table, failed: pa.ChunkedArray) -> None:
        """Count rows, which have `columns`; `failed` is true where one fails, and has no NULL."""
        self.total = _plus(self.total, Count(rows.num_rows, int(pc.sum(failed).as_py() or 0)))
        flagged = rows.append_column("_failed", failed.cast(pa.int64()))
        for name, by_value in list(self._by_facet.items()):
            if name == HOUR:
                hours = pc.hour(flagged["ts"].cast(pa.timestamp("us", "UTC")))
                table = pa.table({HOUR: hours, "_failed": flagged["_failed"]})
            else:
                table = flagged.select([name, "_failed"])
            _count(by_value, table, [name])
            if len(by_value) > MOST_VALUES:
                del self._by_facet[name]
        if self.identity:
            _count(self._by_process, flagged.select([*self.identity, "_failed"]), self.identity)

    def by_facet(self, lake: "Lake") -> tuple[dict[str, dict[Any, Count]], dict[str, Facet]]:
        """Return the counts by facet and value, those of processes and of what is known of them among them.

        A facet of the table itself goes before one of the same name elsewhere. Classified ones come last, so that of
        equal explanations one is reported whose value can be shown.
        """
        counts, facets = dict(self._by_facet), {name: self.facets[name] for name in self._by_facet}
        processes = {_process(self.identity, key): count for key, count in self._by_process.items()}
        if not processes:
            return counts, facets
        for place, name in enumerate(_IDENTITY):
            if name in self.identity:
                counts[name] = _sums((key[place], count) for key, count in processes.items())
                facets[name] = Facet(name, "", ordered=name != "run")
        if len(self.identity) == len(_IDENTITY):
            counts[PROCESS] = _sums(((key[0], key[2]), count) for key, count in processes.items())
            facets[PROCESS] = Facet(PROCESS, "")
        for name, (facet, values) in process_facts(lake, {key[0] for key in processes if key[0] is not None}).items():
            if name not in counts:
                counts[name] = _sums((_value(values, key), count) for key, count in processes.items())
                facets[name] = facet
        few = [name for name, by_value in counts.items() if len(by_value) <= MOST_VALUES]
        return {name: counts[name] for name in sorted(few, key=lambda name: facets[name].classified)}, facets


def process_facts(lake: "Lake", runs: "set[str]") -> dict[str, tuple[Facet, dict[Process, Any]]]:
    """Return what is known of processes of some runs, by column: its value for each of them, the last one reported.

    What only ``runs`` has is of all ranks, and stands under the rank None. The rest is of the rank that told it, which
    for ``runs`` is rank 0: of others nothing is known unless they told it in ``ranks``.
    """
    known: dict[str, tuple[Facet, dict[Process, Any]]] = {}
    of_ranks = lake.contracts()["ranks"]
    for table in _PROCESS_TABLES:
        contract = lake.contracts()[table]
        names = [
            column
            for column in contract.columns
            if column.type in _WORDS and _names(column) and column.name not in _POSITIONS
        ]
        rows = read(lake.tables, contract, [*_IDENTITY, "ts", *(column.name for column in names)])
        rows = rows.filter(pc.is_in(rows["run"], value_set=pa.array(sorted(runs), pa.string()))).sort_by("ts")
        keys = list(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))
        for column in names:
            mine = keys if column.name in of_ranks else [(run, attempt, None) for run, attempt, _ in keys]
            pairs = zip(mine, rows[column.name].to_pylist(), strict=True)
            values = {key: value for key, value in pairs if value is not None}
            if values:
                before = known.get(column.name, (None, {}))[1]
                known[column.name] = (_facet(column, table), {**before, **values})
    return known


def _value(values: "Mapping[Process, Any]", process: Process) -> Any:  # noqa: ANN401 - whatever a column holds
    run, attempt, _ = process
    return values.get(process, values.get((run, attempt, None)))


def _process(identity: Sequence[str], key: Any) -> Process:  # noqa: ANN401 - a value, or those of several columns
    values = dict(zip(identity, key if len(identity) > 1 else (key,), strict=True))
    return values.get("run"), values.get("attempt"), values.get("rank")


def _count(into: dict[Any, Count], rows: pa.Table, names: Sequence[str]) -> None:
    """Add counts of rows, with a column ``_failed`` of 0 and 1, by the value of a column or the values of several."""
    counted = rows.group_by(list(names)).aggregate([("_failed", "count"), ("_failed", "sum")])
    keys = list(zip(*(counted[name].to_pylist() for name in names), strict=True))
    counts = zip(counted["_failed_count"].to_pylist(), counted["_failed_sum"].to_pylist(), strict=True)
    for key, (count, failed) in zip(keys, counts, strict=True):
        value = key if len(names) > 1 else key[0]
        into[value] = _plus(into.get(value, Count(0, 0)), Count(count, failed))


def _sums(parts: Iterable[tuple[Any, Count]]) -> dict[Any, Count]:
    sums: dict[Any, Count] = {}
    for value, count in parts:
        sums[value] = _plus(sums.get(value, Count(0, 0)), count)
    return sums


def _plus(count: Count, other: Count) -> Count:
    return Count(count.rows + other.rows, count.failed + other.failed)
