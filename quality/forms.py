"""How each check kind is put to Great Expectations, and how the screen may clear it.

Great Expectations and the Arrow masks (`ranklake.lake.contracts.checks.masks`) are independent: the one judges; the
other counts where the first may not be asked for more than yes or no (classified columns), and a test holds each
against the other. A kind without a line in `FORMS` is put to Great Expectations as a column of 1 and 0 that the mask
gives.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.lake.contracts.checks.kind import Ranges
from ranklake.lake.contracts.checks.masks import failures, judged
from ranklake.lake.contracts.checks.registry import KINDS
from ranklake.lake.contracts.model import Check, Column
from ranklake.quality import screen as looks
from ranklake.quality.screen import Screen


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
    there = judged(check, rows, ranges)
    if there is not None:
        passes = pc.if_else(there, passes, pa.scalar(None, pa.float64()))
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


@dataclass(frozen=True, slots=True)
class Form:
    """What the quality room knows of one kind.

    Attributes
    ----------
    expectation
        Its class in ``great_expectations.expectations``, or that of the same meaning where a partition is judged as a
        whole.
    kwargs
        Given the check and its first column, returns the arguments; they name columns of the frame.
    columns
        Given check and rows, returns the frame's columns it needs.
    clear
        How the screen counts rows of which surely none fails.
    compares
        Whether values are compared, so that integers too large for a float must go as Python objects.
    shows
        Whether failing numbers and times tell something.
    judges_nothing
        Whether a partition without a value to judge is judged all the same.
    """

    expectation: str = "ExpectColumnValuesToBeInSet"
    kwargs: Callable[[Check, Column], dict[str, Any]] = _holds
    columns: Callable[[Check, pa.Table, Ranges], dict[str, pa.ChunkedArray]] = _flag
    clear: Callable[[Screen, Check], int | None] = looks.by_row
    compares: bool = True
    shows: bool = False
    judges_nothing: bool = False


_NOT_NULL: Final = "ExpectColumnValuesToNotBeNull"
_LENGTHS: Final = "ExpectColumnValueLengthsToBeBetween"
_ORDER: Final = "ExpectColumnPairValuesAToBeGreaterThanB"


def _own(name: str) -> Form:
    """Return the form of a kind that Great Expectations has no word for: only the name that it would have there."""
    return Form("Expect" + "".join(word.capitalize() for word in name.split("_")), judges_nothing=True)


FORMS: Final[Mapping[str, Form]] = {
    name: _own(name) if kind.level == "watch" else Form() for name, kind in KINDS.items()
} | {
    "not_null": Form(_NOT_NULL, _about, _raw, looks.not_null, compares=False),
    "fill_ratio": Form(_NOT_NULL, _about, _raw, looks.not_null),
    "between": Form("ExpectColumnValuesToBeBetween", _range, _raw, looks.between, shows=True),
    "in_set": Form("ExpectColumnValuesToBeInSet", _set, _raw, looks.by_word),
    "matches": Form("ExpectColumnValuesToMatchRegex", _pattern, _raw, looks.by_word),
    "length": Form(_LENGTHS, _range, _raw, looks.by_word),
    "json": Form("ExpectColumnValuesToBeJsonParseable", _about, _raw, looks.by_word),
    "at_most": Form(_ORDER, _order, _pair, looks.at_most),
    "finite": Form(clear=looks.finite),
    "dated": Form(clear=looks.dated),
    "metric_range": Form(clear=looks.metric_range),
    "unique": Form("ExpectCompoundColumnsToBeUnique"),
    "duplicates": Form("ExpectCompoundColumnsToBeUnique"),
    "row_count": Form("ExpectTableRowCountToBeBetween", judges_nothing=True),
}
"""Kinds that Great Expectations has a word for, or that a look at a column can clear; the others as `Form` has it."""


def clear(screen: Screen, check: Check) -> int | None:
    """Return how many rows a check can say something of, if surely none of them fails it; else None."""
    try:
        # NaN is no value to Great Expectations and a wrong one to Arrow, so there only the former is asked.
        if not all(screen.finite(name) for name in check.columns):
            return None
        return FORMS[check.kind].clear(screen, check)
    except (pa.ArrowException, TypeError, ValueError, OverflowError):  # a bound that does not suit its column
        return None
