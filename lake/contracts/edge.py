"""Judging rows against their contract, a column at a time: when they arrive, and again once they are stored."""

import datetime as dt
import math
from collections.abc import Iterator
from typing import Final

import pyarrow as pa
from pyarrow import compute as pc

from ranklake.lake.contracts.arrow import arrow_schema
from ranklake.lake.contracts.json_text import is_json
from ranklake.lake.contracts.model import FLOATS, Check, Contract
from ranklake.segments.segment import REFUSED

Verdict = tuple[str, str, pa.ChunkedArray]  # check id, what is wrong, true where a row fails


def judge(contract: Contract, table: pa.Table) -> pa.Array:
    """Return for each row NULL if it is good, else ``check_id: what is wrong`` of the first thing that is.

    First come required columns that are NULL (``required``), floats that are NaN or infinite (``finite``) and text
    that should be JSON and is not (``json``), then the row checks of the contract that quarantine, in its order.
    Columns that the table lacks are not judged, so that a segment, which holds no ``date``, can be. Reasons hold no
    value of the row: those who read them may not see it. What an importer refused
    (`ranklake.segments.segment.REFUSED`) has its reason already.

    Parameters
    ----------
    contract, table
        The table has the contract's types, as `ranklake.lake.contracts.arrow.conform` gives it; text may also be
        dictionary-typed, and a column without any value of Arrow's type null.
    """
    refused = REFUSED in table.column_names
    reasons: pa.Array | pa.ChunkedArray = table[REFUSED] if refused else pa.nulls(table.num_rows, pa.string())
    for check_id, what, failed in verdicts(contract, table):
        if pc.any(failed).as_py():
            fresh = pc.and_(failed, pc.is_null(reasons))
            reasons = pc.if_else(fresh, pa.scalar(f"{check_id}: {what}"), reasons)
    return reasons.combine_chunks() if isinstance(reasons, pa.ChunkedArray) else reasons


def verdicts(contract: Contract, table: pa.Table) -> Iterator[Verdict]:
    """Yield (check id, what is wrong, rows that fail) of all that may send a row to quarantine; the mask has no NULL.

    Nearly always all rows are good, and the extremes of a column or its distinct values show it, at a tenth of the cost
    of looking at each row: what they clear is not yielded.
    """
    present = set(table.column_names)
    for column in contract.columns:
        if column.required and column.name in present and table.column(column.name).null_count:
            yield "required", f"{column.name} is NULL", pc.is_null(table.column(column.name))
    for column in contract.columns:
        if column.type in FLOATS and column.name in present and not _all_finite(table.column(column.name)):
            finite = pc.fill_null(pc.is_finite(table.column(column.name)), fill_value=True)
            yield "finite", f"{column.name} is NaN or infinite", pc.invert(finite)
    for column in contract.columns:
        if (
            column.format == "json"
            and column.name in present
            and (bad := _not_json(table.column(column.name))) is not None
        ):
            yield "json", f"{column.name} is no JSON that can be parsed", bad
    for check in contract.all_checks():
        if check.quarantines and present.issuperset(check.columns) and not _cleared(check, table):
            yield check.id, describe(check), failures(check, _typed(contract, table, check.columns))


def _not_json(column: pa.ChunkedArray) -> pa.ChunkedArray | None:
    """Return a mask of the rows whose text is no JSON; None where there is none. Each distinct text is parsed once."""
    if column.null_count == len(column):
        return None
    plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    bad = [text for text in pc.unique(plain).to_pylist() if text is not None and not is_json(text)]
    return pc.is_in(plain, value_set=pa.array(bad, pa.string())) if bad else None


def _all_finite(column: pa.ChunkedArray) -> bool:
    """Say whether a column's values are finite; False where that is not sure. One that is not makes the sum so."""
    if column.null_count == len(column):
        return True
    return math.isfinite(pc.sum(column).as_py())


def _cleared(check: Check, table: pa.Table) -> bool:
    """Say whether no row can fail a check; False where only a look at each row can tell."""
    columns = [table.column(name) for name in check.columns]
    empty = [column.null_count == len(column) for column in columns]
    if check.kind == "exactly_one":
        full = [column.null_count == 0 for column in columns]
        return sum(empty) == len(columns) - 1 and any(full)
    if check.kind == "not_null":
        return all(column.null_count == 0 for column in columns)
    if any(empty):
        return True
    if pa.types.is_dictionary(columns[0].type):
        name = check.columns[0]
        words = pa.chunked_array([chunk.dictionary for chunk in columns[0].chunks], columns[0].type.value_type)
        return len(columns) == 1 and pc.any(failures(check, pa.table({name: words}))).as_py() is not True
    if check.kind == "between":
        extremes = pc.min_max(columns[0])
        ends = pa.array([extremes["min"].cast(columns[0].type), extremes["max"].cast(columns[0].type)])
        return pc.any(failures(check, pa.table({check.columns[0]: ends}))).as_py() is False
    return False


def _typed(contract: Contract, table: pa.Table, names: tuple[str, ...]) -> pa.Table:
    """Return some columns with text as text, and columns without any value under the contract's types."""
    schema = arrow_schema(contract)
    return pa.table({name: table.column(name).cast(schema.field(name).type) for name in names})


def failures(check: Check, table: pa.Table) -> pa.ChunkedArray:
    """Return a mask, true for the rows that fail a row check; it has no NULL."""
    return pc.invert(pc.fill_null(_PASSES[check.kind](check, table), fill_value=True))


def describe(check: Check) -> str:
    """Return what a row that fails the check has wrong, in words that hold no value of the row."""
    what = ", ".join(check.columns)
    if check.kind in {"between", "length"}:
        low = "…" if check.min is None else check.min
        high = "…" if check.max is None else check.max
        return f"{'length of ' if check.kind == 'length' else ''}{what} outside {low} to {high}"
    if check.kind == "in_set":
        return f"{what} not one of {', '.join(map(str, check.values))}"
    if check.kind == "at_most":
        return f"{check.columns[0]} greater than {check.columns[1]}"
    return {
        "not_null": f"{what} is NULL",
        "matches": f"{what} does not match {check.pattern}",
        "exactly_one": f"not exactly one of {what}",
    }[check.kind]


def _not_null(check: Check, table: pa.Table) -> pa.ChunkedArray:
    return pc.is_valid(table.column(check.columns[0]))


def _between(check: Check, table: pa.Table) -> pa.ChunkedArray:
    return _within(table.column(check.columns[0]), check)


def _length(check: Check, table: pa.Table) -> pa.ChunkedArray:
    return _within(pc.utf8_length(table.column(check.columns[0])), check)


def _in_set(check: Check, table: pa.Table) -> pa.ChunkedArray:
    values = table.column(check.columns[0])
    known = pc.is_in(values, value_set=pa.array(check.values).cast(values.type))
    return pc.or_(known, pc.is_null(values))


def _matches(check: Check, table: pa.Table) -> pa.ChunkedArray:
    # Captured text repeats (a run's name stands in every row), so each distinct value is matched once.
    values = table.column(check.columns[0])
    distinct = pc.unique(values)
    bad = distinct.filter(pc.invert(pc.match_substring_regex(distinct, rf"\A(?:{check.pattern})\z")))
    return pc.invert(pc.is_in(values, value_set=bad))


def _at_most(check: Check, table: pa.Table) -> pa.ChunkedArray:
    small, large = (table.column(name) for name in check.columns)
    if check.tolerance:
        large = pc.add(pc.cast(large, pa.float64()), check.tolerance)
    return pc.less_equal(small, large)


def _exactly_one(check: Check, table: pa.Table) -> pa.ChunkedArray:
    there = [pc.cast(pc.is_valid(table.column(name)), pa.int32()) for name in check.columns]
    total = there[0]
    for one in there[1:]:
        total = pc.add(total, one)
    return pc.equal(total, 1)


_PASSES: Final = {
    "not_null": _not_null,
    "between": _between,
    "in_set": _in_set,
    "matches": _matches,
    "length": _length,
    "at_most": _at_most,
    "exactly_one": _exactly_one,
}


def _within(values: pa.ChunkedArray, check: Check) -> pa.ChunkedArray:
    """Return where values lie between the check's ends, both included; NULL where the value is."""
    passes = pc.is_valid(values)
    if check.min is not None:
        passes = pc.and_(passes, pc.greater_equal(values, _end(check.min, values.type)))
    if check.max is not None:
        passes = pc.and_(passes, pc.less_equal(values, _end(check.max, values.type)))
    return pc.if_else(pc.is_valid(values), passes, pa.scalar(None, pa.bool_()))


def _end(value: object, of: pa.DataType) -> pa.Scalar:
    """Return one end of a range in the column's type; an end that an integer type cannot hold stays a float."""
    if pa.types.is_timestamp(of):
        return pa.scalar(dt.datetime.fromisoformat(str(value)), of)
    if pa.types.is_date(of):
        return pa.scalar(dt.date.fromisoformat(str(value)), of)
    return pa.scalar(value)
