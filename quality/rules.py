"""How each kind of check is put to Great Expectations, and which rows fail it, a column at a time in Arrow.

The two ways are independent. Great Expectations judges; the Arrow masks count where it may not be asked for more than
yes or no (classified columns), and a test holds each against the other.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts import edge
from ranklake.lake.contracts.json_text import is_json
from ranklake.lake.contracts.model import Check, Column

Ranges = Mapping[str, tuple[float | None, float | None]]


@dataclass(frozen=True, slots=True)
class Rule:
    """One kind of row check.

    Attributes
    ----------
    expectation
        Its class in ``great_expectations.expectations``.
    kwargs
        Given the check and its first column, returns the arguments; they name columns of the frame.
    columns
        Given check and rows, returns the frame's columns it needs.
    mask
        Given check, rows and the metrics' ranges, returns true where a row fails; without NULL.
    describe
        What a failing row has wrong; holds no value of a row.
    judged
        Given check, rows and ranges, returns true where the check can say something of a row; None for all rows.
    """

    expectation: str
    kwargs: Callable[[Check, Column], dict[str, Any]]
    columns: Callable[[Check, pa.Table, Ranges], dict[str, pa.ChunkedArray]]
    mask: Callable[[Check, pa.Table, Ranges], pa.ChunkedArray]
    describe: Callable[[Check], str]
    judged: Callable[[Check, pa.Table, Ranges], pa.ChunkedArray] | None = None


def checked(check: Check, rows: pa.Table, ranges: Ranges) -> int:
    """Return how many rows the check can say something of."""
    judged = RULES[check.kind].judged
    return int(rows.num_rows if judged is None else pc.sum(judged(check, rows, ranges)).as_py() or 0)


def failures(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    """Return true where a row fails."""
    return RULES[check.kind].mask(check, rows, ranges)


def _by_contract(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    del ranges
    return edge.failures(check, rows)


def _null(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    del ranges
    return pc.is_null(rows[check.columns[0]])


def _infinite(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    del ranges
    return pc.invert(pc.fill_null(pc.is_finite(rows[check.columns[0]]), fill_value=True))


def _misdated(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    del ranges
    moment, day = (rows[name] for name in check.columns)
    there = moment.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    return pc.fill_null(pc.not_equal(there, day), fill_value=False)


def _not_json(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    del ranges
    found = rows[check.columns[0]].combine_chunks().dictionary_encode()
    bad = pa.array([not is_json(text) for text in found.dictionary.to_pylist()], pa.bool_())
    return pa.chunked_array([pc.fill_null(bad.take(found.indices), fill_value=False)])


def metric_ends(metrics: pa.Array | pa.ChunkedArray, ranges: Ranges) -> tuple[pa.Array, pa.Array]:
    """Return the least and the greatest valid value of each of some metrics; NULL for those without a range."""
    which = pc.index_in(metrics, value_set=pa.array(list(ranges), pa.string()))
    low = pa.array([-np.inf if low is None else low for low, _ in ranges.values()], pa.float64())
    high = pa.array([np.inf if high is None else high for _, high in ranges.values()], pa.float64())
    return pc.take(low, which), pc.take(high, which)


def _out_of_metric_range(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    metric, value = (rows[name] for name in check.columns)
    low, high = metric_ends(metric, ranges)
    return pc.fill_null(pc.or_(pc.less(value, low), pc.greater(value, high)), fill_value=False)


def _there(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    """Return true where no column is NULL."""
    del ranges
    there = pc.is_valid(rows[check.columns[0]])
    for name in check.columns[1:]:
        there = pc.and_(there, pc.is_valid(rows[name]))
    return there


def _has_range(check: Check, rows: pa.Table, ranges: Ranges) -> pa.ChunkedArray:
    metric, value = (rows[name] for name in check.columns)
    return pc.and_(pc.is_in(metric, value_set=pa.array(list(ranges), pa.string())), pc.is_valid(value))


def _raw(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    del ranges
    return {name: rows[name] for name in check.columns}


def _pair(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    """Return both columns, the larger with its tolerance added, which Great Expectations does not know."""
    columns = _raw(check, rows, ranges)
    if check.tolerance:
        columns[f"tolerant:{check.id}"] = pc.add(rows[check.columns[1]].cast(pa.float64()), check.tolerance)
    return columns


def _flag(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    """Return 1 where a row passes, 0 where it fails, NULL where it is not judged.

    For what pandas cannot say (NaN is NULL to it) or Great Expectations has no word for. Numbers, since a pandas column
    of booleans with NULLs is one of Python objects.
    """
    passes = pc.invert(failures(check, rows, ranges)).cast(pa.float64())
    judged = RULES[check.kind].judged
    if judged is not None:
        passes = pc.if_else(judged(check, rows, ranges), passes, pa.scalar(None, pa.float64()))
    return {f"holds:{check.id}": passes}


def _about(check: Check, column: Column) -> dict[str, Any]:
    del column
    return {"column": check.columns[0]}


def _holds(check: Check, column: Column) -> dict[str, Any]:
    del column
    return {"column": f"holds:{check.id}", "value_set": [1.0]}


def _range(check: Check, column: Column) -> dict[str, Any]:
    ends = {"min_value": _end(check.min, column), "max_value": _end(check.max, column)}
    return {"column": column.name, **{name: end for name, end in ends.items() if end is not None}}


def _end(value: object, column: Column) -> object:
    """Return one end of a range as the frame's column has it: a time in UTC, which for a date is its midnight."""
    if value is None or column.type not in {"timestamp", "date"}:
        return value
    moment = datetime.fromisoformat(str(value))
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment


def _set(check: Check, column: Column) -> dict[str, Any]:
    return {"column": column.name, "value_set": list(check.values)}


def _pattern(check: Check, column: Column) -> dict[str, Any]:
    return {"column": column.name, "regex": rf"\A(?:{check.pattern})\Z"}


def _order(check: Check, column: Column) -> dict[str, Any]:
    del column
    small, large = check.columns
    large = f"tolerant:{check.id}" if check.tolerance else large
    return {"column_A": large, "column_B": small, "or_equal": True, "ignore_row_if": "either_value_is_missing"}


_NOT_NULL: Final = "ExpectColumnValuesToNotBeNull"
_IN_SET: Final = "ExpectColumnValuesToBeInSet"

RULES: Final[Mapping[str, Rule]] = {
    # kinds of the contracts
    "not_null": Rule(_NOT_NULL, _about, _raw, _null, edge.describe),
    "between": Rule("ExpectColumnValuesToBeBetween", _range, _raw, _by_contract, edge.describe, _there),
    "in_set": Rule(_IN_SET, _set, _raw, _by_contract, edge.describe, _there),
    "matches": Rule("ExpectColumnValuesToMatchRegex", _pattern, _raw, _by_contract, edge.describe, _there),
    "length": Rule("ExpectColumnValueLengthsToBeBetween", _range, _raw, _by_contract, edge.describe, _there),
    "at_most": Rule("ExpectColumnPairValuesAToBeGreaterThanB", _order, _pair, _by_contract, edge.describe, _there),
    "exactly_one": Rule(_IN_SET, _holds, _flag, _by_contract, edge.describe),
    "fill_ratio": Rule(_NOT_NULL, _about, _raw, _null, lambda check: f"{check.columns[0]} filled below {check.min}"),
    # kinds that suites derive
    "finite": Rule(_IN_SET, _holds, _flag, _infinite, lambda check: f"{check.columns[0]} is NaN or infinite", _there),
    "dated": Rule(_IN_SET, _holds, _flag, _misdated, lambda _: "ts is not of the partition's date", _there),
    "json": Rule(
        "ExpectColumnValuesToBeJsonParseable",
        _about,
        _raw,
        _not_json,
        lambda check: f"{check.columns[0]} is not JSON",
        _there,
    ),
    "metric_range": Rule(
        _IN_SET,
        _holds,
        _flag,
        _out_of_metric_range,
        lambda _: "value outside the range that the metric registry gives",
        _has_range,
    ),
}
