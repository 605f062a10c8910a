"""Each check kind as an expectation of Great Expectations, and as a screen that passes rows without it.

Nearly always all rows pass. The extremes of a column show that its values are in a range; its distinct values show that
they match a pattern. A ``clear_…`` function returns the number of rows that a check applies to if none of them can
fail. Otherwise it returns None, and Great Expectations validates the rows.

Great Expectations and the Arrow masks (`ranklake.lake.contracts.checks.registry`) are independent implementations. The
masks count rows of classified columns, for which Great Expectations returns only yes or no. A test compares both. A
kind without an entry in `FORMS` is passed to Great Expectations as a column of 1 and 0, computed by the mask.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.checks.kind import Ranges
from ranklake.lake.contracts.checks.kinds.values import metric_ends
from ranklake.lake.contracts.checks.registry import KINDS, failures, judged_mask, judged_rows
from ranklake.lake.contracts.model import Check, Column


class Screen:
    """Facts about the columns of a batch of rows; each is computed once and shared by all checks.

    Parameters
    ----------
    rows
        Columns with the contract's types; text is dictionary-encoded.
    ranges
        Valid range of each metric.
    """

    def __init__(self, rows: pa.Table, ranges: "Ranges") -> None:
        self.rows, self.ranges = rows, ranges
        self._extremes: dict[str, tuple[Any, Any]] = {}
        self._finite: dict[str, bool] = {}
        self._words: dict[str, pa.ChunkedArray] = {}

    def valid(self, name: str) -> int:
        """Return the number of values of a column that are not NULL."""
        return int(self.rows.num_rows - self.rows[name].null_count)

    def finite(self, name: str) -> bool:
        """Return True if a column has neither NaN nor infinity; False also if that is uncertain."""
        if name not in self._finite:
            column = self.rows[name]
            total = pc.sum(column).as_py() if pa.types.is_floating(column.type) else None
            self._finite[name] = total is None or math.isfinite(total)
        return self._finite[name]

    def extremes(self, name: str) -> tuple[Any, Any]:
        """Return minimum and maximum of a column as Python values, which compare exactly."""
        if name not in self._extremes:
            ends = pc.min_max(self.rows[name])
            self._extremes[name] = (ends["min"].as_py(), ends["max"].as_py())
        return self._extremes[name]

    def words(self, name: str) -> pa.ChunkedArray:
        """Return the distinct values of a column; the dictionary may add values that no row has."""
        if name not in self._words:
            column = self.rows[name]
            if pa.types.is_dictionary(column.type):
                column = pa.chunked_array([chunk.dictionary for chunk in column.chunks], column.type.value_type)
            self._words[name] = pa.chunked_array([pc.unique(column).drop_null()])
        return self._words[name]


def clear_not_null(screen: Screen, check: "Check") -> int | None:
    """Pass a column without NULL."""
    judged = screen.valid(check.columns[0])
    return judged if judged == screen.rows.num_rows else None


def clear_between(screen: Screen, check: "Check") -> int | None:
    """Pass a column whose extremes lie in the range."""
    (name,) = check.columns
    ends = screen.extremes(name)
    if pa.types.is_temporal(screen.rows[name].type):
        bounds = pa.table({name: pa.array(ends, screen.rows[name].type)})
        inside = not pc.any(failures(check, bounds, screen.ranges)).as_py()
    else:
        least, greatest = ends
        inside = (check.min is None or least >= check.min) and (check.max is None or greatest <= check.max)
    return screen.valid(name) if inside else None


def clear_by_word(screen: Screen, check: "Check") -> int | None:
    """Pass a column whose distinct values all pass."""
    (name,) = check.columns
    bad = failures(check, pa.table({name: screen.words(name)}), screen.ranges)
    return None if pc.any(bad).as_py() else screen.valid(name)


def clear_by_row(screen: Screen, check: "Check") -> int | None:
    """Pass rows that all pass by the mask, at a tenth of the cost of Great Expectations."""
    rows = screen.rows.select(list(dict.fromkeys(check.columns)))
    if pc.any(failures(check, rows, screen.ranges)).as_py():
        return None
    if all(column.null_count == 0 for column in rows.columns):
        return int(rows.num_rows)
    return judged_rows(check, rows, screen.ranges)


def clear_at_most(screen: Screen, check: "Check") -> int | None:
    """Pass rows that all pass by the mask, unless a float is compared with an integer."""
    floats = {pa.types.is_floating(screen.rows[name].type) for name in check.columns}
    return clear_by_row(screen, check) if len(floats) == 1 else None  # two large integers may be the same float


def clear_finite(screen: Screen, check: "Check") -> int | None:
    """Pass a column; `clear` has already found it finite."""
    return screen.valid(check.columns[0])


def clear_dated(screen: Screen, check: "Check") -> int | None:
    """Pass rows whose timestamps and dates all have the same day."""
    moment, day = check.columns
    if screen.rows[moment].null_count or screen.rows[day].null_count:
        return None
    days = {*screen.extremes(day), *(time.astimezone(UTC).date() for time in screen.extremes(moment))}
    return int(screen.rows.num_rows) if len(days) == 1 else None


def clear_metric_range(screen: Screen, check: "Check") -> int | None:
    """Pass values that lie in the ranges of their metrics."""
    judged: int = 0
    for batch in screen.rows.select(list(check.columns)).to_batches():
        metric, value = batch.columns
        low, high = (ends.take(metric.indices) for ends in metric_ends(metric.dictionary, screen.ranges))
        if pc.any(pc.or_(pc.less(value, low), pc.greater(value, high))).as_py():
            return None
        judged += len(batch) - int(pc.add(value, low).null_count)
    return judged


def _raw(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    del ranges
    return {name: rows[name] for name in check.columns}


def _pair(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    """Return both columns, the larger with its tolerance added: Great Expectations has no tolerance."""
    columns = _raw(check, rows, ranges)
    if check.tolerance:
        columns[f"tolerant:{check.id}"] = pc.add(rows[check.columns[1]].cast(pa.float64()), check.tolerance)
    return columns


def _flag(check: Check, rows: pa.Table, ranges: Ranges) -> dict[str, pa.ChunkedArray]:
    """Return a column with 1 for rows that pass, 0 for rows that fail, NULL for rows that the check does not apply to.

    Used if pandas cannot represent the values (NaN is NULL to pandas) or Great Expectations has no such check. The
    values are numbers, since pandas stores booleans with NULLs as Python objects.
    """
    passes = pc.invert(failures(check, rows, ranges)).cast(pa.float64())
    judged = judged_mask(check, rows, ranges)
    if judged is not None:
        passes = pc.if_else(judged, passes, pa.scalar(None, pa.float64()))
    return {f"holds:{check.id}": passes}


def _column_domain(check: Check, column: Column) -> dict[str, Any]:
    del column
    return {"column": check.columns[0]}


def _holds(check: Check, column: Column) -> dict[str, Any]:
    del column
    return {"column": f"holds:{check.id}", "value_set": [1.0]}


def _range(check: Check, column: Column) -> dict[str, Any]:
    ends = {"min_value": _end(check.min, column), "max_value": _end(check.max, column)}
    return {"column": column.name, **{name: end for name, end in ends.items() if end is not None}}


def _end(value: object, column: Column) -> object:
    """Return one end of a range with the type of the frame's column: a UTC timestamp, midnight for a date."""
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


@dataclass(frozen=True, slots=True)
class Form:
    """How a check kind is evaluated by Great Expectations and by the screen.

    Attributes
    ----------
    expectation
        Class in ``great_expectations.expectations``; for checks of whole partitions, the class of the same meaning.
    kwargs
        Function from the check and its first column to the arguments, which name columns of the frame.
    columns
        Function from check, rows and ranges to the columns of the frame that the check needs.
    clear
        Function that counts the rows of a batch if none of them can fail.
    compares
        Whether values are compared, so that integers too large for a float become Python objects.
    shows
        Whether failing numbers and times are informative.
    judges_nothing
        Whether a partition without values is checked rather than skipped.
    """

    expectation: str = "ExpectColumnValuesToBeInSet"
    kwargs: Callable[[Check, Column], dict[str, Any]] = _holds
    columns: Callable[[Check, pa.Table, Ranges], dict[str, pa.ChunkedArray]] = _flag
    clear: Callable[[Screen, Check], int | None] = clear_by_row
    compares: bool = True
    shows: bool = False
    judges_nothing: bool = False


_NOT_NULL: Final = "ExpectColumnValuesToNotBeNull"
_LENGTHS: Final = "ExpectColumnValueLengthsToBeBetween"
_ORDER: Final = "ExpectColumnPairValuesAToBeGreaterThanB"


def _own(name: str) -> Form:
    """Return the form of a kind that Great Expectations does not have; only its name follows their convention."""
    return Form("Expect" + "".join(word.capitalize() for word in name.split("_")), judges_nothing=True)


FORMS: Final[Mapping[str, Form]] = {
    name: _own(name) if kind.level == "watch" else Form() for name, kind in KINDS.items()
} | {
    "not_null": Form(_NOT_NULL, _column_domain, _raw, clear_not_null, compares=False),
    "fill_ratio": Form(_NOT_NULL, _column_domain, _raw, clear_not_null),
    "between": Form("ExpectColumnValuesToBeBetween", _range, _raw, clear_between, shows=True),
    "in_set": Form("ExpectColumnValuesToBeInSet", _set, _raw, clear_by_word),
    "matches": Form("ExpectColumnValuesToMatchRegex", _pattern, _raw, clear_by_word),
    "length": Form(_LENGTHS, _range, _raw, clear_by_word),
    "json": Form("ExpectColumnValuesToBeJsonParseable", _column_domain, _raw, clear_by_word),
    "at_most": Form(_ORDER, _order, _pair, clear_at_most),
    "finite": Form(clear=clear_finite),
    "dated": Form(clear=clear_dated),
    "metric_range": Form(clear=clear_metric_range),
    "unique": Form("ExpectCompoundColumnsToBeUnique"),
    "duplicates": Form("ExpectCompoundColumnsToBeUnique"),
    "row_count": Form("ExpectTableRowCountToBeBetween", judges_nothing=True),
}
"""Forms of kinds that Great Expectations has, or that the screen can pass; other kinds have the defaults of `Form`."""


def clear(screen: Screen, check: Check) -> int | None:
    """Return the number of rows that a check applies to if none of them can fail; else None."""
    try:
        # NaN is missing to Great Expectations and a failure to Arrow; let Great Expectations decide.
        if not all(screen.finite(name) for name in check.columns):
            return None
        return FORMS[check.kind].clear(screen, check)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a bound of a type that does not fit the column
        return None
