"""Values: convert foreign columns to columns of the contract's types, a block of rows at a time.

Each conversion first tries the column as a whole, and converts single values only if that fails. Masks are arrays of
truth values, one for each row; `missing` rows have no value, `invalid` rows one that cannot be converted.
"""

import json
import re
from fractions import Fraction
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from ranklake.capture.common.arrays import Array, numbers, texts, to_array, truths
from ranklake.capture.importers import units
from ranklake.capture.importers.mapping import EPOCHS, Filter, Rule
from ranklake.capture.importers.source import NO_TEXT
from ranklake.capture.importers.units import Conversion, moment_ns, number_text, quantity
from ranklake.capture.sealing.rows import flag_texts, flags
from ranklake.lake.contracts.arrow import ARROW_TYPES

Mask = np.ndarray[Any, np.dtype[np.bool_]]

_NUMBER: Final = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$|^[+-]?(?i:nan|inf|infinity)$"
_HAS_UNIT: Final = r"[A-Za-zµ%°:\[]"
_UNAVAILABLE: Final = re.compile(r"\[[^\]]*\]|N/A")
"""Texts of nvidia-smi for unavailable values: ``[N/A]``, ``[Not Supported]``."""
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_INTEGER: Final = r"^[+-]?[0-9]+$"
_TRUE, _FALSE = frozenset({"true", "1", "yes", "t", "y"}), frozenset({"false", "0", "no", "f", "n"})
_MAX_NS: Final = 2**62
_ROUNDING: Final = 1e-9
_MAX_VALUE: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def column_values(rule: Rule, rows: pa.Table, file: dict[str, str], first_row: int) -> tuple[pa.Array, Mask, str]:
    """Return a rule's values for rows, a mask of the invalid ones, and the reason why they are invalid.

    Parameters
    ----------
    rows
        Foreign columns: text as binary or string, or numbers.
    file
        ``name`` and ``stem`` of the file.
    first_row
        Number of the first row in the file, from 0.
    """
    assert rule.target is not None
    to, count = ARROW_TYPES[rule.target.type], rows.num_rows
    if rule.row:
        return numbers(np.arange(first_row, first_row + count), to), np.zeros(count, bool), ""
    if rule.file is not None:
        return texts([file[rule.file]] * count), np.zeros(count, bool), ""
    if rule.json:
        return _objects(rule, rows), np.zeros(count, bool), ""
    if rule.column is None:
        return _constant(rule, to, count), np.zeros(count, bool), ""
    if rule.values is not None:
        return _mapped_values(rule, rows[rule.column], to)
    return _convert_column(rule, rows[rule.column], to)


def _convert_column(rule: Rule, column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.Array, Mask, str]:
    """Convert a foreign column to the type and unit of the rule's column."""
    assert rule.target is not None
    kind = rule.target.type
    text, not_utf8 = _text(column, rule.missing)
    if kind == "string":
        return text, not_utf8, "text that is not UTF-8"
    if kind == "bool":
        return _truths(text, not_utf8)
    if kind == "timestamp":
        times, missing, invalid = moments(rule, column)
        return numbers(times // 1000, to, missing | invalid), invalid, "not a time"
    is_whole = kind.startswith("int")
    values, missing, invalid = _numbers(column, _without_units(rule, text), rule.conversion, as_integers=is_whole,
                                  count=rule.is_count, decimal=rule.decimal)  # fmt: skip
    invalid |= not_utf8
    if is_whole:
        invalid |= ~missing & (np.abs(values) > _MAX_VALUE[kind])
    if rule.has_default:
        values, missing = np.where(missing & ~invalid, rule.default, values), missing & invalid
    flaw = "not an integer" if is_whole else "not a number"
    with np.errstate(over="ignore"):  # out of range of float32: infinite, and flagged
        return numbers(np.where(missing | invalid, 0, values), to, missing | invalid), invalid, flaw


def finite(column: pa.Array) -> tuple[pa.Array, list[str | None]]:
    """Return a column of floats with NULL in place of NaN and infinity, and the flag of each such row."""
    codes = flags(column.fill_null(0).to_numpy(zero_copy_only=False))
    if not codes.any():
        return column, [None] * len(column)
    return pc.if_else(truths(codes > 0), pa.scalar(None, column.type), column), flag_texts(codes).to_pylist()


def _without_units(rule: Rule, text: pa.Array) -> pa.Array:
    """Convert values such as ``22.89 W`` to numbers in the rule's unit; texts of unavailable values become NULL.

    If the rule has no unit, all values must have the unit of the first.
    """
    if not pc.any(pc.match_substring_regex(text, _HAS_UNIT)).as_py():
        return text
    return texts([None if word is None else _without_unit(rule, word.strip()) for word in text.to_pylist()])


def _without_unit(rule: Rule, word: str) -> str | None:
    parts = quantity(word)
    if parts is None:
        return None if _UNAVAILABLE.fullmatch(word) else word
    number, unit = parts
    if rule.unit is None and rule.target is not None and str(rule.target.unit).startswith("{"):
        return word  # counts have no other unit
    expected = rule.unit or rule.own_units.setdefault(rule.column or "", unit)
    if unit == expected:
        return number
    try:
        conversion = units.conversion(unit, expected)
        return number_text(Fraction(number.replace(rule.decimal, ".")) * conversion.factor + conversion.offset)
    except ValueError:
        return word  # refused later: not a number


def moments(rule: Rule, column: pa.ChunkedArray) -> tuple[Array, Mask, Mask]:
    """Return times as ns since 1970, and masks of missing and of invalid ones."""
    if pa.types.is_timestamp(column.type) or pa.types.is_date(column.type):
        is_naive = not pa.types.is_timestamp(column.type) or column.type.tz is None
        moment = column.cast(pa.timestamp("us", None if is_naive else "UTC"), safe=False)  # cuts nanoseconds off
        if is_naive and rule.zone != "UTC":
            moment = pc.assume_timezone(moment, rule.zone, ambiguous="earliest", nonexistent="earliest")
        missing = column.is_null().to_numpy()
        return moment.cast(pa.int64()).fill_null(0).to_numpy() * 1000, missing, np.zeros(len(column), bool)
    text, not_utf8 = _text(column, rule.missing)
    if rule.origin_ns is not None or rule.format in EPOCHS:
        values, missing, invalid = _nanoseconds(column, _without_units(rule, text), rule)
        return values + (rule.origin_ns or 0), missing, invalid | not_utf8
    missing = text.is_null().to_numpy(zero_copy_only=False)
    if rule.format == "iso" and rule.zone == "UTC":
        try:
            return text.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy() * 1000, missing, not_utf8
        except pa.ArrowInvalid:
            pass
    words = text.dictionary_encode()
    distinct = [moment_ns(word, rule.format, rule.zone) for word in words.dictionary.to_pylist()] or [None]
    codes = words.indices.fill_null(0).to_numpy()
    invalid = np.array([moment is None for moment in distinct])[codes]
    times = np.array([0 if moment is None else moment for moment in distinct], np.int64)[codes]
    return times, missing, not_utf8 | (invalid & ~missing)


def _nanoseconds(column: pa.ChunkedArray, text: pa.Array, rule: Rule) -> tuple[Array, Mask, Mask]:
    """Convert numbers to ns: integers exactly, others to the µs, which is the precision of a float of today's times."""
    factor, offset = rule.conversion.factor, rule.conversion.offset
    if factor > 0 and factor.denominator == offset.denominator == 1:
        values, missing, invalid = _numbers(column, text, Conversion(), as_integers=True, decimal=rule.decimal)
        if not invalid.any():
            invalid = np.abs(values) > (_MAX_NS - abs(int(offset))) // int(factor)
            return np.where(invalid, 0, values) * int(factor) + int(offset), missing, invalid & ~missing
    to_us = Conversion(factor / 1000, offset / 1000)
    values, missing, invalid = _numbers(column, text, to_us, as_integers=False, decimal=rule.decimal)
    invalid = invalid | ~(np.abs(values) <= _MAX_NS / 1000)
    return np.rint(np.where(invalid, 0, values)).astype(np.int64) * 1000, missing, invalid & ~missing


def passing(item: Filter, rows: pa.Table) -> Mask:
    """Return a mask of the rows that a filter selects. Rows without a value are selected only by ``not_in``."""
    text, _ = _text(rows[item.column], frozenset())
    passes = np.ones(rows.num_rows, bool)
    for words, is_selected in ((item.in_, True), (item.not_in, False)):
        if words is not None:
            is_listed = pc.is_in(text, value_set=texts(sorted(words))).to_numpy(zero_copy_only=False)
            passes &= is_listed == is_selected
    if item.above is not None or item.below is not None:
        values, missing, invalid = _numbers(
            rows[item.column], text, Conversion(), as_integers=False, decimal=item.decimal
        )
        passes &= ~missing & ~invalid & np.isfinite(values)
        passes &= (values > item.above) if item.above is not None else True
        passes &= (values < item.below) if item.below is not None else True
    return passes


def _constant(rule: Rule, to: pa.DataType, count: int) -> pa.Array:
    value = rule.value
    if pa.types.is_timestamp(to):
        times, missing, _ = moments(rule, pa.chunked_array([texts([None if value is None else str(value)])]))
        return numbers(np.repeat(times // 1000, count), to, np.repeat(missing, count))
    if isinstance(value, int | float) and not isinstance(value, bool) and not pa.types.is_string(to):
        exact = Fraction(str(value)) * rule.conversion.factor + rule.conversion.offset
        value = int(exact) if pa.types.is_integer(to) else float(exact)
    elif pa.types.is_string(to) and value is not None:
        value = str(value)
    return to_array([value], to).take(numbers(np.zeros(count, np.int64), pa.int64()))


def _objects(rule: Rule, rows: pa.Table) -> pa.Array:
    """Return foreign columns as one JSON object for each row: numbers and texts; missing values are omitted."""
    parts = []
    for name in rule.json:
        encoded = _text(rows[name], rule.missing)[0].dictionary_encode()
        members = [f"{json.dumps(name)}:{_literal(word)}" for word in encoded.dictionary.to_pylist()]
        parts.append(pa.DictionaryArray.from_arrays(encoded.indices, texts(members)).cast(pa.string()))
    members_text = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", members_text, "}", "")


def _literal(word: str) -> str:
    return word if _JSON_NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False)


def _mapped_values(rule: Rule, column: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.Array, Mask, str]:
    """Replace foreign values by those of ``values:`` in the mapping."""
    assert rule.values is not None
    text, not_utf8 = _text(column, rule.missing)
    encoded = text.dictionary_encode()
    words = encoded.dictionary.to_pylist()
    results = [rule.values.get(word, rule.default) for word in words] or [None]
    is_unmapped = np.array([word not in rule.values and not rule.has_default for word in words] or [False])
    codes = encoded.indices.fill_null(0).to_numpy()
    missing = text.is_null().to_numpy(zero_copy_only=False)
    typed = to_array([str(value) if pa.types.is_string(to) and value is not None else value for value in results], to)
    column = typed.take(numbers(codes, pa.int64(), missing))
    return column, not_utf8 | (is_unmapped[codes] & ~missing), "a value that the mapping does not list"


def _text(column: pa.ChunkedArray, missing: frozenset[str]) -> tuple[pa.Array, Mask]:
    """Return values as text, with NULL in place of `missing` texts, and a mask of the values that are not UTF-8."""
    column = column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    not_utf8 = np.zeros(len(column), bool)
    if pa.types.is_nested(column.type):
        text = texts([None if value is None else json.dumps(value, default=str) for value in column.to_pylist()])
    else:
        try:
            text = column.cast(pa.string())
            text.validate(full=True)
        except pa.ArrowInvalid:
            raw = column.to_pylist()
            decoded = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in raw]
            not_utf8 = np.array(
                [word is not None and word.encode() != value for word, value in zip(decoded, raw, strict=True)]
            )
            text = texts(decoded)
    not_utf8 |= pc.fill_null(pc.match_substring(text, NO_TEXT), fill_value=False).to_numpy(zero_copy_only=False)
    if missing:
        text = pc.if_else(pc.is_in(text, value_set=texts(sorted(missing))), pa.scalar(None, pa.string()), text)
    return text, not_utf8


def _truths(text: pa.Array, not_utf8: Mask) -> tuple[pa.Array, Mask, str]:
    words = [None if word is None else word.strip().lower() for word in text.to_pylist()]
    invalid = np.array([word is not None and word not in _TRUE and word not in _FALSE for word in words], bool)
    truth_column = truths([None if word is None else word in _TRUE for word in words])
    return truth_column, invalid | not_utf8, "neither true nor false"


def _numbers(
    column: pa.ChunkedArray,
    text: pa.Array,
    conversion: Conversion,
    *,
    as_integers: bool,
    count: bool = False,
    decimal: str = ".",
) -> tuple[Array, Mask, Mask]:
    """Return converted numbers, and masks of missing and of invalid ones.

    `as_integers`: converted values are rounded, except that a fractional `count` is invalid.
    """
    type_ = column.type
    if pa.types.is_floating(type_) or (pa.types.is_integer(type_) and not pa.types.is_uint64(type_)):
        missing = text.is_null().to_numpy(zero_copy_only=False)
        values = column.cast(pa.int64() if pa.types.is_integer(type_) else pa.float64()).fill_null(0).to_numpy()
        invalid = np.zeros(len(values), bool)
    else:
        trimmed = pc.utf8_trim_whitespace(text)
        if decimal != ".":  # a dot then makes a number invalid
            trimmed = pc.replace_substring(pc.replace_substring(trimmed, ".", "?"), decimal, ".")
        missing = trimmed.is_null().to_numpy(zero_copy_only=False)
        values, invalid = _parse_numbers(trimmed, as_integers=as_integers and conversion.is_none)
    if as_integers and not np.issubdtype(values.dtype, np.integer):
        missing = missing | np.isnan(values)  # pandas writes missing integers as NaN
        invalid = invalid | ~np.isfinite(values)
        values = np.where(np.isfinite(values), values, 0)
    if not conversion.is_none:
        factor, offset = conversion.factor, float(conversion.offset)
        # divide by the denominator: 57 / 100 is 0.57, but 57 * 0.01 is slightly more
        values = values.astype(np.float64) * float(factor.numerator) / float(factor.denominator) + offset
        if as_integers:
            rounded = np.rint(values)
            invalid = invalid | (count & (np.abs(values - rounded) > _ROUNDING * np.maximum(np.abs(values), 1)))
            values = rounded
    if as_integers and not np.issubdtype(values.dtype, np.integer):
        invalid = invalid | (values != np.rint(values)) | (np.abs(values) >= 2.0**63)
        values = np.where(invalid, 0, values).astype(np.int64)
    return values, missing, invalid & ~missing


def _parse_numbers(text: pa.Array, *, as_integers: bool) -> tuple[Array, Mask]:
    """Parse texts as numbers, as integers if `as_integers` and all are, and return a mask of the invalid ones."""
    for to in (pa.int64(), pa.float64()) if as_integers else (pa.float64(),):
        try:
            return text.cast(to).fill_null(0).to_numpy(), np.zeros(len(text), bool)
        except pa.ArrowInvalid:
            continue
    fits = pc.fill_null(pc.match_substring_regex(text, _NUMBER), fill_value=True)
    invalid = ~fits.to_numpy(zero_copy_only=False)
    valid = pc.if_else(fits, text, pa.scalar(None, pa.string()))
    if as_integers and pc.all(pc.match_substring_regex(text.filter(fits), _INTEGER)).as_py():
        try:
            return valid.cast(pa.int64()).fill_null(0).to_numpy(), invalid
        except pa.ArrowInvalid:
            pass
    return valid.cast(pa.float64()).fill_null(0).to_numpy(), invalid
