"""Checks of one row: of a value by itself, of columns against each other, and of text that looks like a secret."""

import datetime as dt
import math
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ranklake.lake.contracts.checks.kind import (
    CheckKind,
    Finding,
    Ranges,
    Surroundings,
    Watch,
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
    """Return where both are equal."""
    import pyarrow.compute as pc

    del ranges
    left, other = (table.column(name) for name in check.columns)
    return pc.equal(left, other)


EQUAL = CheckKind(
    name="equal",
    wrong=lambda check: f"{check.columns[0]} is not {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=frozenset({"string", "bool", "int32", "int64", "timestamp", "date"}),
    dimension="consistency",
    passes=_equal_passes,
)
"""``equal``: two columns are equal in rows where neither is NULL."""


def _at_most_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the smaller is no greater."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    small, large = (table.column(name) for name in check.columns)
    if check.tolerance:
        large = pc.add(pc.cast(large, pa.float64()), check.tolerance)
    return pc.less_equal(small, large)


AT_MOST = CheckKind(
    name="at_most",
    wrong=lambda check: f"{check.columns[0]} greater than {check.columns[1]}",
    needs=(("columns",),),
    own_columns=True,
    pair=True,
    types=NUMBERS | {"timestamp", "date"},
    dimension="consistency",
    passes=_at_most_passes,
)
"""``at_most``: the first of two columns is no greater than the second plus `tolerance`."""


def _exactly_one_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where one column has a value."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    there = [pc.cast(pc.is_valid(table.column(name)), pa.int32()) for name in check.columns]
    total = there[0]
    for column in there[1:]:
        total = pc.add(total, column)
    return pc.equal(total, 1)


def _exactly_one_is_full(check: Check, table: "pa.Table") -> bool:
    columns = [table.column(name) for name in check.columns]
    empty = sum(column.null_count == len(column) for column in columns)
    return empty == len(columns) - 1 and any(column.null_count == 0 for column in columns)


EXACTLY_ONE = CheckKind(
    name="exactly_one",
    wrong=lambda check: f"not exactly one of {columns_text(check)}",
    needs=(("columns",),),
    own_columns=True,
    null_passes=False,
    dimension="completeness",
    passes=_exactly_one_passes,
    cleared=_exactly_one_is_full,
)
"""``exactly_one``: of some columns one has a value and the others are NULL."""


def _not_null_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column has a value."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_valid(table.column(check.columns[0]))


def _not_null_full(check: Check, table: "pa.Table") -> bool:
    return all(table.column(name).null_count == 0 for name in check.columns)


NOT_NULL = CheckKind(
    name="not_null",
    wrong=lambda check: f"{columns_text(check)} is NULL",
    null_passes=False,
    dimension="completeness",
    rule=lambda _: {"metric": "nullValues", "mustBe": 0},
    passes=_not_null_passes,
    cleared=_not_null_full,
)
"""``not_null``: a column has a value in each row."""


def _finite_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the value is finite."""
    import pyarrow.compute as pc

    del ranges
    return pc.is_finite(table.column(check.columns[0]))


def _finite_sum_is_finite(check: Check, table: "pa.Table") -> bool:
    """Whether all values are finite; False if unsure. A value that is not finite makes the sum not finite."""
    import pyarrow.compute as pc

    return math.isfinite(pc.sum(table.column(check.columns[0])).as_py())


FINITE = CheckKind(
    name="finite",
    wrong=lambda check: f"{check.columns[0]} is NaN or infinite",
    written=False,
    types=FLOATS,
    passes=_finite_passes,
    cleared=_finite_sum_is_finite,
)
"""``finite``: a float is neither NaN nor infinite. It follows from the column's type."""


def _between_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column's values lie in the range."""
    del ranges
    return in_range(table.column(check.columns[0]), check)


def in_range(values: "pa.ChunkedArray", check: Check) -> "pa.ChunkedArray":
    """Return where values lie between the check's ends, both included; NULL where the value is NULL."""
    import pyarrow as pa
    import pyarrow.compute as pc

    inside = pc.is_valid(values)
    if check.min is not None:
        inside = pc.and_(inside, pc.greater_equal(values, _between_end(check.min, values.type)))
    if check.max is not None:
        inside = pc.and_(inside, pc.less_equal(values, _between_end(check.max, values.type)))
    return pc.if_else(pc.is_valid(values), inside, pa.scalar(None, pa.bool_()))


def _between_end(value: object, of: "pa.DataType") -> "pa.Scalar":
    """Return one end of a range in the column's type; an end that an integer type cannot hold stays a float."""
    import pyarrow as pa

    if pa.types.is_timestamp(of):
        return pa.scalar(dt.datetime.fromisoformat(str(value)), of)
    if pa.types.is_date(of):
        return pa.scalar(dt.date.fromisoformat(str(value)), of)
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
    wrong=lambda check: f"{columns_text(check)} outside {range_text(check)}",
    needs=(("min", "max"),),
    types=NUMBERS | {"timestamp", "date"},
    passes=_between_passes,
    cleared=_between_extremes_pass,
)
"""``between``: a value lies from `min` to `max`, both included; either end may be open.

Ends of timestamps and dates are ISO 8601 text.
"""


def metric_ends(metrics: "pa.Array | pa.ChunkedArray", ranges: Ranges) -> "tuple[pa.Array, pa.Array]":
    """Return the least and the greatest valid value of each of some metrics; NULL for those without a range."""
    import pyarrow as pa
    import pyarrow.compute as pc

    which = pc.index_in(metrics, value_set=pa.array(list(ranges), pa.string()))
    low = pa.array([-math.inf if low is None else low for low, _ in ranges.values()], pa.float64())
    high = pa.array([math.inf if high is None else high for _, high in ranges.values()], pa.float64())
    return pc.take(low, which), pc.take(high, which)


def _metric_range_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the value lies in its metric's range; metrics without a range are not judged."""
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
    wrong=lambda _: "value outside the range that the metric registry gives",
    written=False,
    passes=_metric_range_passes,
    judged=_metric_range_has_range,
)
"""``metric_range``: a value lies in the range that the metric registry gives. It follows from the registry."""


def _in_set_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the column has one of the values, or none."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    known = pc.is_in(values, value_set=pa.array(check.values).cast(values.type))
    return pc.or_(known, pc.is_null(values))


IN_SET = CheckKind(
    name="in_set",
    wrong=lambda check: f"{columns_text(check)} not one of {', '.join(map(str, check.values))}",
    needs=(("values",),),
    types=frozenset(TYPES) - {"int64_list"},
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"validValues": list(check.values)}},
    passes=_in_set_passes,
)
"""``in_set``: a value is one of `values`."""


def _matches_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text matches. Texts repeat (every row has a run's name): each is matched once."""
    import pyarrow.compute as pc

    del ranges
    values = table.column(check.columns[0])
    distinct = pc.unique(values)
    bad = distinct.filter(pc.invert(pc.match_substring_regex(distinct, rf"\A(?:{check.pattern})\z")))
    return pc.invert(pc.is_in(values, value_set=bad))


MATCHES = CheckKind(
    name="matches",
    wrong=lambda check: f"{columns_text(check)} does not match {check.pattern}",
    needs=(("pattern",),),
    types=frozenset({"string"}),
    rule=lambda check: {"metric": "invalidValues", "mustBe": 0, "arguments": {"pattern": f"^({check.pattern})$"}},
    passes=_matches_passes,
)
"""``matches``: the whole text is of a pattern, a regular expression that Python and RE2 read alike."""


def _length_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text is neither too short nor too long."""
    import pyarrow.compute as pc

    del ranges
    return in_range(pc.utf8_length(table.column(check.columns[0])), check)


LENGTH = CheckKind(
    name="length",
    wrong=lambda check: f"length of {columns_text(check)} outside {range_text(check)}",
    needs=(("min", "max"),),
    types=frozenset({"string"}),
    passes=_length_passes,
)
"""``length``: a text has from `min` to `max` characters, both included; either end may be open."""


def _json_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the text parses. Each distinct text is parsed once."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    column = table.column(check.columns[0])
    plain = column.cast(pa.string()) if pa.types.is_dictionary(column.type) else column
    bad = [text for text in pc.unique(plain).to_pylist() if text is not None and not is_json(text)]
    return pc.invert(pc.is_in(plain, value_set=pa.array(bad, pa.string())))


JSON = CheckKind(
    name="json",
    wrong=lambda check: f"{check.columns[0]} is not JSON",
    written=False,
    types=frozenset({"string"}),
    passes=_json_passes,
)
"""``json``: a text is JSON that can be parsed. It follows from the column's format."""


def _dated_passes(check: Check, table: "pa.Table", ranges: Ranges) -> "pa.ChunkedArray":
    """Return where the first column's UTC date is the second's."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del ranges
    moment, day = (table.column(name) for name in check.columns)
    there = moment.cast(pa.timestamp("us", "UTC")).cast(pa.timestamp("us")).cast(pa.date32(), safe=False)
    return pc.equal(there, day)


DATED = CheckKind(
    name="dated",
    wrong=lambda _: "ts is not of the partition's date",
    written=False,
    types=frozenset({"timestamp", "date"}),
    dimension="consistency",
    passes=_dated_passes,
)
"""``dated``: a captured row lies in the partition of its own UTC date. It follows from the envelope."""


_NO_SECRETS_TEXTS: Final = 1_000
_NO_SECRETS_SHORTEST: Final = 6
_NO_SECRETS_LONGEST: Final = 20_000
_NO_SECRETS_EMAIL: Final = re.compile(
    r"(?<![\w.+/@-])[\w.+-]{1,64}@[a-z0-9-]+(?:\.[a-z0-9-]+)*\.[a-z]{2,24}(?![\w/:@-])", re.IGNORECASE
)


def _no_secrets_part(check: Check, batch: "Batch") -> dict[str, tuple[int, int]]:
    """Return rows looked at, and rows with such a text, of each column."""
    import pyarrow as pa
    import pyarrow.compute as pc

    del check
    counts = {}
    for name in batch.rows.column_names:
        column = batch.rows[name]
        text = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
        if not pa.types.is_string(text) or column.null_count == len(column):
            continue
        words = column
        if pa.types.is_dictionary(column.type):
            words = pa.chunked_array([chunk.dictionary for chunk in column.chunks], text)
        distinct = pc.unique(words).drop_null()
        telling = [word for word in distinct.slice(0, _NO_SECRETS_TEXTS).to_pylist() if _no_secrets_tells(word)]
        plain = column.cast(text) if telling else column
        rows = int(pc.sum(pc.is_in(plain, value_set=pa.array(telling, text))).as_py() or 0) if telling else 0
        counts[name] = (len(column) - column.null_count, rows)
    return counts


def _no_secrets_tells(text: str) -> bool:
    from ranklake.redaction.redact import redact_names

    if len(text) < _NO_SECRETS_SHORTEST or text.isdecimal():
        return False
    text = text[:_NO_SECRETS_LONGEST]
    return redact_names(text) != text or ("@" in text and _NO_SECRETS_EMAIL.search(text) is not None)


def _no_secrets_judge(check: Check, parts: Sequence[dict[str, tuple[int, int]]], about: Surroundings) -> Finding:
    from ranklake.lake.contracts.checks.series import first_of

    del check, about
    rows: dict[str, list[int]] = {}
    for part in parts:
        for name, (looked, telling) in part.items():
            known = rows.setdefault(name, [0, 0])
            rows[name] = [known[0] + looked, known[1] + telling]
    lines = [f"{name}: {telling:,} rows" for name, (_, telling) in rows.items() if telling]
    if not rows:
        return Finding(unknown="there was no text to judge")
    checked, wrong = (max(some[at] for some in rows.values()) for at in (0, 1))
    return Finding(checked, min(wrong, checked), first_of(lines), "no credential and no e-mail address")


NO_SECRETS = CheckKind(
    name="no_secrets",
    wrong=lambda _: "operational text looks like a credential or an e-mail address",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(_no_secrets_part, _no_secrets_judge, reads_text=True),
)
"""``no_secrets``: no operational text holds what looks like a credential or an e-mail address.

What recording redacts (`ranklake.redaction`) is looked for again: rows may come from elsewhere. Of each column up to
1,000 distinct texts of a batch are looked at. Results name columns and counts, never a text.
"""


def _protected_judge(check: Check, parts: Sequence[Any], about: Surroundings) -> Finding:
    del check, parts
    rows = max(about.rows, 1)
    columns = ", ".join(about.classified_statistics)
    return Finding(rows, rows if columns else 0, columns, "no statistics of classified columns")


PROTECTED = CheckKind(
    name="protected",
    wrong=lambda _: "the Delta log holds statistics of classified columns",
    level="watch",
    written=False,
    own_columns=True,
    dimension="conformity",
    watch=Watch(empty_summary, _protected_judge),
)
"""``protected``: the Delta log holds no extremes of classified columns. They would outlive an erasure."""
