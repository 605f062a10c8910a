"""Facets of rows, and the lift of their values: which values failing rows have more often than other rows.

A candidate splits all rows in two: those with a value (or a range of values), and the rest. Candidates are ranked by
the likelihood-ratio statistic of this 2 x 2 table, G = 2 sum(observed x ln(observed / expected)) (Dunning, "Accurate
methods for the statistics of surprise and coincidence", 1993). 2 ln(number of candidates of the facet) is subtracted,
because an extreme one among 4,096 ranks is more likely by chance than among two driver versions. Rows of one process
are not independent, so G only ranks candidates; it is no measure of significance.
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
"""Minimum share of the failing rows that an explanation covers."""
MIN_LIFT: Final = 2.0
"""Minimum ratio of the failure rate of an explanation's rows to that of the other rows."""
MOST_ENDS: Final = 1024
"""Maximum number of values that may end a range. If more values fail more often than average, no range is computed."""


class Count(NamedTuple):
    """Number of rows checked, and of those that failed."""

    rows: int
    failed: int


@dataclass(frozen=True, slots=True)
class Cause:
    """A candidate: rows whose `facet` lies between `low` and `high`, both included; the two are equal for one value.

    Attributes
    ----------
    here, rest
        Counts of these rows, and of all others.
    distinct
        Number of values of the facet.
    score
        Rank of the candidate; larger is better.
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
        """Share of all failing rows that the candidate covers."""
        return self.here.failed / (self.here.failed + self.rest.failed)

    @property
    def lift(self) -> float | None:
        """Failure rate of its rows divided by that of the others; None if no other row fails."""
        if not self.rest.failed:
            return None
        return (self.here.failed / self.here.rows) / (self.rest.failed / self.rest.rows)

    @property
    def stands_out(self) -> bool:
        """Whether it covers half of the failing rows, and its rows fail twice as often as others."""
        if not self.rest.rows or not self.here.failed or self.share < MIN_SHARE:
            return False
        return self.lift is None or self.lift >= MIN_LIFT

    def same_rows(self, other: "Cause") -> bool:
        """Whether another candidate has the same counts; it is then reported with this one."""
        return self.here == other.here


def causes(counts: Mapping[str, Mapping[Any, Count]], ordered: Sequence[str] = ()) -> list[Cause]:
    """Return the best candidate of each facet, the best first; among equals the facet with fewer values.

    Parameters
    ----------
    counts
        Counts by facet and value, of the same rows for each facet. The value None means rows without a value. It is
        a candidate, but not part of a range.
    ordered
        Facets whose values are ordered, so that a range may be the cause.
    """
    candidates = []
    for facet, by_value in counts.items():
        total = Count(sum(count.rows for count in by_value.values()), sum(count.failed for count in by_value.values()))
        if total.failed and len(by_value) > 1:
            candidates.append(_best(facet, by_value, total, ranges=facet in ordered))
    places = {facet: place for place, facet in enumerate(counts)}
    return sorted(candidates, key=lambda cause: (-cause.score, cause.distinct, places[cause.facet]))


def _best(facet: str, by_value: Mapping[Any, Count], total: Count, *, ranges: bool) -> Cause:
    spans = [(value, value, count) for value, count in by_value.items()]
    penalty = 2 * math.log(len(spans))
    best = _cause(facet, max(spans, key=lambda span: _score(span[2], total)), total, len(by_value), penalty)
    ordered_values = sorted((value, count) for value, count in by_value.items() if value is not None)
    span = _range(ordered_values, total) if ranges else None
    if span is None:
        return best
    range_cause = _cause(facet, span, total, len(by_value), 2 * penalty)  # the number of ranges is about its square
    return max(best, range_cause, key=lambda cause: cause.score)


def _range(ordered_values: list[tuple[Any, Count]], total: Count) -> tuple[Any, Any, Count] | None:
    """Return the range of several values with the highest score; both end values have failing rows."""
    rows = [0, *accumulate(count.rows for _, count in ordered_values)]
    failed = [0, *accumulate(count.failed for _, count in ordered_values)]
    end_places = [place for place, (_, count) in enumerate(ordered_values) if count.failed]
    if len(end_places) > MOST_ENDS:  # the best range rarely ends with a value that fails less often than average
        end_places = [
            place
            for place in end_places
            if ordered_values[place][1].failed * total.rows > total.failed * ordered_values[place][1].rows
        ]
    best, score = None, -math.inf
    for begin in end_places if len(end_places) <= MOST_ENDS else ():
        for end in end_places:
            if end > begin:
                count = Count(rows[end + 1] - rows[begin], failed[end + 1] - failed[begin])
                if (new_score := _score(count, total)) > score:
                    best, score = (ordered_values[begin][0], ordered_values[end][0], count), new_score
    return best


def _cause(facet: str, span: tuple[Any, Any, Count], total: Count, distinct: int, penalty: float) -> Cause:
    low, high, here = span
    rest = Count(total.rows - here.rows, total.failed - here.failed)
    return Cause(facet, low, high, here, rest, distinct, _score(here, total) - penalty)


def _score(here: Count, total: Count) -> float:
    """Return G of the 2 x 2 table of these rows and the rest; negative if they fail less often than the rest."""
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
"""Maximum number of values of a facet; a facet with more values identifies rows instead of grouping them."""
_IDENTITY: Final = ("run", "attempt", "rank")
_POSITIONS: Final = frozenset({"incarnation", "segment", "slot", "pid", *_IDENTITY})
_PROCESS_TABLES: Final = ("runs", "ranks")
"""Tables about runs and processes. Values that a rank reports itself have precedence."""
_WORDS: Final = ("string", "bool")

Process = tuple[str | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class Facet:
    """A property of a table's rows by which failures are grouped.

    Attributes
    ----------
    name
        A column of the table or of one in `_PROCESS_TABLES`, `HOUR`, or `PROCESS`.
    table
        Table of the values.
    classified
        Whether values are hidden.
    ordered
        Whether values are ordered, so that a range is meaningful.
    """

    name: str
    table: str
    classified: bool = False
    ordered: bool = False


def own_facets(contract: "Contract", judged: Sequence[str]) -> dict[str, Facet]:
    """Return the facets in a table's own columns, without the columns that the check reads.

    Text, booleans and numbers that name things are facets; measured values, JSON and keys are not.
    """
    named = [
        column for column in contract.columns if _is_name(column) and column.name not in {*judged, *_POSITIONS, "date"}
    ]
    facets = {column.name: _facet(column, contract.table) for column in named}
    if "ts" in contract:
        facets[HOUR] = Facet(HOUR, contract.table, ordered=True)
    return facets


def _is_name(column: "Column") -> bool:
    if column.type in _WORDS:
        return column.format is None
    return column.is_number and column.unit == "none" and column.type.startswith("int")


def _facet(column: "Column", table: str) -> Facet:
    return Facet(column.name, table, column.class_ != "operational", ordered=column.is_number)


class Counts:
    """Number of checked and failing rows, by facet and by process. `add` takes batches of rows.

    Parameters
    ----------
    contract
        Contract with the columns that the table has.
    judged
        Columns that the check reads.
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
        """Count rows, which must have all `columns`; `failed` is a mask of the failing rows, without NULL."""
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
        """Return the counts by facet and value, including processes and their known facts, and the facets.

        A facet of the table has precedence over one of the same name elsewhere. Classified facets are last, so that
        among equal explanations one with a visible value is reported.
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
    """Return the facts of the processes of some runs, by column: the last reported value for each process.

    Columns that only ``runs`` has apply to all ranks, and are stored under the rank None. Other columns apply to the
    rank that reported them; in ``runs`` that is rank 0. For other ranks they are unknown unless reported in ``ranks``.
    """
    known: dict[str, tuple[Facet, dict[Process, Any]]] = {}
    of_ranks = lake.contracts()["ranks"]
    for table in _PROCESS_TABLES:
        contract = lake.contracts()[table]
        columns = [
            column
            for column in contract.columns
            if column.type in _WORDS and _is_name(column) and column.name not in _POSITIONS
        ]
        rows = read(lake.tables, contract, [*_IDENTITY, "ts", *(column.name for column in columns)])
        rows = rows.filter(pc.is_in(rows["run"], value_set=pa.array(sorted(runs), pa.string()))).sort_by("ts")
        keys = list(zip(*(rows[name].to_pylist() for name in _IDENTITY), strict=True))
        for column in columns:
            process_keys = keys if column.name in of_ranks else [(run, attempt, None) for run, attempt, _ in keys]
            pairs = zip(process_keys, rows[column.name].to_pylist(), strict=True)
            values = {key: value for key, value in pairs if value is not None}
            if values:
                earlier = known.get(column.name, (None, {}))[1]
                known[column.name] = (_facet(column, table), {**earlier, **values})
    return known


def _value(values: "Mapping[Process, Any]", process: Process) -> Any:  # noqa: ANN401 - a value of any column type
    run, attempt, _ = process
    return values.get(process, values.get((run, attempt, None)))


def _process(identity: Sequence[str], key: Any) -> Process:  # noqa: ANN401 - a value, or those of several columns
    values = dict(zip(identity, key if len(identity) > 1 else (key,), strict=True))
    return values.get("run"), values.get("attempt"), values.get("rank")


def _count(into: dict[Any, Count], rows: pa.Table, names: Sequence[str]) -> None:
    """Add counts of rows by the values of one or several columns; ``_failed`` is a column of 0 and 1."""
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
