"""Check kinds for single rows: one value, several columns compared, and text that looks like a secret."""

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Ranges,
    Watch,
    WatchContext,
    WatchResult,
    columns_text,
    empty_summary,
    range_text,
)
from ranklake.lake.contracts.json_text import is_json
from ranklake.lake.contracts.model import FLOATS, NUMBERS, TYPES, Check

if TYPE_CHECKING:
    import pyarrow as pa

    from ranklake.lake.contracts.checks.series import Batch


def _equal_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: both columns are equal."""
    import pyarrow.compute as pc

    del ranges
    left, other = (table.column(name) for name in check.columns)
    return pc.equal(left, other)


EQUAL = CheckKind(
    name="equal",
    fault=lambda check: f"{check.columns[0]} is not {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=frozenset({"string", "bool", "int32", "int64", "timestamp", "date"}),
    dimension="consistency",
    passes=_equal_passes,
)
"""``equal``: two columns are equal in rows where neither is NULL."""


def _at_most_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the first column is at most the second plus `tolerance`."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    small, large = (table.column(name) for name in check.columns)
    if check.tolerance:
        large = pc.add(pc.cast(large, pa.float64()), check.tolerance)
    return pc.less_equal(small, large)


AT_MOST = CheckKind(
    name="at_most",
    fault=lambda check: f"{check.columns[0]} greater than {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=NUMBERS | {"timestamp", "date"},
    dimension="consistency",
    passes=_at_most_passes,
)
"""``at_most``: the first of two columns is no greater than the second plus `tolerance`."""


def _exactly_one_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: exactly one of the columns has a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    counts = [pc.cast(pc.is_valid(table.column(name)), pa.int32()) for name in check.columns]
    total = counts[0]
    for count in counts[1:]:
        total = pc.add(total, count)
    return pc.equal(total, 1)


def _exactly_one_is_full(check: Check, table: "pa.Table") -> bool:
    columns = [table.column(name) for name in check.columns]
    empty = sum(column.null_count == len(column) for column in columns)
    return empty == len(columns) - 1 and any(column.null_count == 0 for column in columns)


EXACTLY_ONE = CheckKind(
    name="exactly_one",
    fault=lambda check: f"not exactly one of {columns_text(check)}",
    needs=(("columns",),),
    own_columns=True,
    null_passes=False,
    dimension="completeness",
    passes=_exactly_one_passes,
    clears=_exactly_one_is_full,
)
"""``exactly_one``: exactly one of the columns has a value; the others are NULL."""


def _not_null_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the column has a value."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_valid(table.column(check.columns[0]))


def _not_null_full(check: Check, table: "pa.Table") -> bool:
    return all(table.column(name).null_count == 0 for name in check.columns)


NOT_NULL = CheckKind(
    name="not_null",
    fault=lambda check: f"{columns_text(check)} is NULL",
    null_passes=False,
    dimension="completeness",
    rule=lambda _: {"metric": "nullValues", "mustBe": 0},
    passes=_not_null_passes,
    clears=_not_null_full,
)
"""``not_null``: a column has a value in each row."""


def _finite_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the value is finite."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_finite(table.column(check.columns[0]))


def _finite_sum_is_finite(check: Check, table: "pa.Table") -> bool:
    """Whether all values are finite; False if unsure. A value that is not finite makes the sum not finite."""
    import pyarrow.compute as pc

    return math.isfinite(pc.sum(table.column(check.columns[0])).as_py())


FINITE = CheckKind(
    name="finite",
    fault=lambda check: f"{check.columns[0]} is NaN or infinite",
    written=False,
    types=FLOATS,
    passes=_finite_passes,
    clears=_finite_sum_is_finite,
)
"""``finite``: a float is neither NaN nor infinite. The column's type implies this check."""


def _between_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the value lies in the range."""
    del ranges
    return in_range(table.column(check.columns[0]), check)


def in_range(values: "pa.ChunkedArray", check: Check) -> "pa.ChunkedArray":
    """Return a mask of values between the check's `min` and `max`, both included; NULL for NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    inside = pc.is_valid(values)
    if check.min is not None:
        inside = pc.and_(inside, pc.greater_equal(values, _bound_scalar(check.min, values.type)))
    if check.max is not None:
        inside = pc.and_(inside, pc.less_equal(values, _bound_scalar(check.max, values.type)))
    return pc.if_else(pc.is_valid(values), inside, pa.scalar(None, pa.bool_()))


def _bound_scalar(value: object, type_: "pa.DataType") -> "pa.Scalar":
    """Return a bound of a range as Arrow scalar: times and dates in the column's type, numbers in their own type."""
    import pyarrow as pa

    if pa.types.is_timestamp(type_):
        return pa.scalar(dt.datetime.fromisoformat(str(value)), type_)
    if pa.types.is_date(type_):
        return pa.scalar(dt.date.fromisoformat(str(value)), type_)
    return pa.scalar(value)


def _between_extremes_pass(check: Check, table: "pa.Table") -> bool:
    import pyarrow as pa
    import pyarrow.compute as pc

    column = table.column(check.columns[0])
    extremes = pc.min_max(column)
    inside = in_range(pa.chunked_array([pa.array([extremes[end].cast(column.type) for end in ("min", "max")])]), check)
    return pc.all(pc.fill_null(inside, fill_value=True)).as_py() is True


BETWEEN = CheckKind(
    name="between",
    fault=lambda check: f"{columns_text(check)} outside {range_text(check)}",
    needs=(("min", "max"),),
    types=NUMBERS | {"timestamp", "date"},
    passes=_between_passes,
    clears=_between_extremes_pass,
)
"""``between``: a value lies from `min` to `max`, both included. Either bound may be omitted.

Bounds of timestamps and dates are ISO 8601 text.
"""


def metric_ends(metrics: "pa.Array | pa.ChunkedArray", ranges: Ranges) -> "tuple[pa.Array, pa.Array]":
    """Return minimum and maximum valid value of each metric; NULL for a metric without a range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    places = pc.index_in(metrics, value_set=pa.array(list(ranges), pa.string()))
    low = pa.array([-math.inf if low is None else low for low, _ in ranges.values()], pa.float64())
    high = pa.array([math.inf if high is None else high for _, high in ranges.values()], pa.float64())
    return pc.take(low, places), pc.take(high, places)


def _metric_range_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the value lies in its metric's range. NULL for metrics without a range."""
    import pyarrow.compute as pc

    metric, value = (table.column(name) for name in check.columns)
    low, high = metric_ends(metric, ranges)
    return pc.invert(pc.or_(pc.less(value, low), pc.greater(value, high)))


def _metric_range_has_range(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    import pyarrow as pa
    import pyarrow.compute as pc

    metric, value = (table.column(name) for name in check.columns)
    return pc.and_(pc.is_in(metric, value_set=pa.array(list(ranges), pa.string())), pc.is_valid(value))


METRIC_RANGE = CheckKind(
    name="metric_range",
    fault=lambda _: "value outside the range that the metric registry gives",
    written=False,
    passes=_metric_range_passes,
    applies=_metric_range_has_range,
)
"""``metric_range``: a value lies in its metric's range in the registry. The registry implies this check."""


def _in_set_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the column has one of the values, or is NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    known = pc.is_in(values, value_set=pa.array(check.values).cast(values.type))
    return pc.or_(known, pc.is_null(values))


IN_SET = CheckKind(
    name="in_set",
    fault=lambda check: f"{columns_text(check)} not one of {', '.join(map(str, check.values))}",
    needs=(("values",),),
    types=frozenset(TYPES) - {"int64_list"},
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"validValues": list(check.values)}},
    passes=_in_set_passes,
)
"""``in_set``: a value is one of `values`."""


def _matches_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the text matches. Each distinct text is matched only once, because texts such as run names repeat."""
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    distinct = pc.unique(values)
    bad = distinct.filter(pc.invert(pc.match_substring_regex(distinct, rf"\A(?:{check.pattern})\z")))
    return pc.invert(pc.is_in(values, value_set=bad))


MATCHES = CheckKind(
    name="matches",
    fault=lambda check: f"{columns_text(check)} does not match {check.pattern}",
    needs=(("pattern",),),
    types=frozenset({"string"}),
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"pattern": f"^({check.pattern})$"}},
    passes=_matches_passes,
)
"""``matches``: the whole text matches `pattern`, a regular expression in the common syntax of Python and RE2."""


def _length_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the length of the text lies in the range."""
    import pyarrow.compute as pc

    del ranges
    return in_range(pc.utf8_length(table.column(check.columns[0])), check)


LENGTH = CheckKind(
    name="length",
    fault=lambda check: f"length of {columns_text(check)} outside {range_text(check)}",
    needs=(("min", "max"),),
    types=frozenset({"string"}),
    passes=_length_passes,
)
"""``length``: a text has from `min` to `max` characters, both included. Either bound may be omitted."""


def _json_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the text is valid JSON. Each distinct text is parsed once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    column = table.column(check.columns[0])
    plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    bad = [text for text in pc.unique(plain).to_pylist() if text is not None and not is_json(text)]
    return pc.invert(pc.is_in(plain, value_set=pa.array(bad, pa.string())))


JSON = CheckKind(
    name="json",
    fault=lambda check: f"{check.columns[0]} is not JSON",
    written=False,
    types=frozenset({"string"}),
    passes=_json_passes,
)
"""``json``: a text is valid JSON. The column's format implies this check."""


def _dated_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Mask: the UTC date of the first column equals the second."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    moment, day = (table.column(name) for name in check.columns)
    utc_date = moment.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    return pc.equal(utc_date, day)


DATED = CheckKind(
    name="dated",
    fault=lambda _: "ts is not of the partition's date",
    written=False,
    types=frozenset({"timestamp", "date"}),
    dimension="consistency",
    passes=_dated_passes,
)
"""``dated``: a captured row is in the partition of its UTC date. The envelope implies this check."""


_NO_SECRETS_TEXTS: Final = 1_000
_NO_SECRETS_SHORTEST: Final = 6
_NO_SECRETS_LONGEST: Final = 20_000
_NO_SECRETS_EMAIL: Final = re.compile(
    r"(?<![\w.+/@-])[\w.+-]{1,64}@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,24}(?![\w/:@-])", re.IGNORECASE
)


def _summarize_no_secrets(check: Check, batch: "Batch") -> dict[str, tuple[int, int]]:
    """Return for each text column: number of values, and number of rows with a suspicious text."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del check
    counts = {}
    for name in batch.rows.column_names:
        column = batch.rows[name]
        text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not pa.types.is_string(text) or column.null_count == len(column):
            continue
        values = column
        if pa.types.is_dictionary(column.type):
            values = pa.chunked_array([chunk.dictionary for chunk in column.chunks], text)
        distinct = pc.unique(values).drop_null()
        secrets = [value for value in distinct.slice(0, _NO_SECRETS_TEXTS).to_pylist() if _looks_secret(value)]
        plain = column.cast(text) if secrets else column
        rows = int(pc.sum(pc.is_in(plain, value_set=pa.array(secrets, text))).as_py() or 0) if secrets else 0
        counts[name] = (len(column) - column.null_count, rows)
    return counts


def _looks_secret(text: str) -> bool:
    """Whether a text looks like a credential or an e-mail address."""
    from ranklake.redaction.redact import redact_names

    if len(text) < _NO_SECRETS_SHORTEST or text.isdecimal():
        return False
    text = text[:_NO_SECRETS_LONGEST]
    return redact_names(text) != text or ("@" in text and _NO_SECRETS_EMAIL.search(text) is not None)


def _evaluate_no_secrets(
    check: Check, parts: Sequence[dict[str, tuple[int, int]]], context: WatchContext
) -> WatchResult:
    from ranklake.lake.contracts.checks.series import join_lines

    del check, context
    rows: dict[str, list[int]] = {}
    for part in parts:
        for name, (part_checked, part_failed) in part.items():
            known = rows.setdefault(name, [0, 0])
            rows[name] = [known[0] + part_checked, known[1] + part_failed]
    lines = [f"{name}: {failed:,} rows" for name, (_, failed) in rows.items() if failed]
    if not rows:
        return WatchResult(unknown="there was no text to judge")
    checked, failed = (max(counts[at] for counts in rows.values()) for at in (0, 1))
    return WatchResult(checked, min(failed, checked), join_lines(lines), "no credential and no e-mail address")


NO_SECRETS = CheckKind(
    name="no_secrets",
    fault=lambda _: "operational text looks like a credential or an e-mail address",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(_summarize_no_secrets, _evaluate_no_secrets, reads_text=True),
)
"""``no_secrets``: no operational text looks like a credential or an e-mail address.

Recording redacts secrets (`ranklake.redaction`), but imported rows may contain them. Up to 1,000 distinct texts of each
column in a batch are checked. Results contain column names and counts, never a text.
"""


def _evaluate_protected(check: Check, parts: Sequence[Any], context: WatchContext) -> WatchResult:
    del check, parts
    rows = max(context.rows, 1)
    columns = ", ".join(context.classified_statistics)
    return WatchResult(rows, rows if columns else 0, columns, "no statistics of classified columns")


PROTECTED = CheckKind(
    name="protected",
    fault=lambda _: "the Delta log holds statistics of classified columns",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(empty_summary, _evaluate_protected),
)
"""``protected``: the Delta log contains no minimum or maximum of classified columns. They would outlive an erasure."""
