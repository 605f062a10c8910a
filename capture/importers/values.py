"""Values: foreign columns become columns of the contract's types, a block of rows at a time.

Whole columns are tried first; only where one value spoils that, values are looked at one by one.
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
_BEARS_UNIT: Final = r"[A-Za-zµ%°:\[]"
_UNAVAILABLE: Final = re.compile(r"\[[^\]]*\]|N/A")
"""What nvidia-smi prints where it knows nothing: ``[N/A]``, ``[Not Supported]``."""
_JSON_NUMBER: Final = re.compile(r"-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?")
_WHOLE: Final = r"^[+-]?[0-9]+$"
_TRUE, _FALSE = frozenset({"true", "1", "yes", "t", "y"}), frozenset({"false", "0", "no", "f", "n"})
_LATEST_NS: Final = 2**62
_ROUNDING: Final = 1e-9
_LARGEST: Final = {"int32": 2**31 - 1, "int64": 2**63 - 1}


def column_values(rule: Rule, rows: pa.Table, file: dict[str, str], first_row: int) -> tuple[pa.Array, Mask, str]:
    """Return a rule's values for rows, which of them could not be converted, and why they could not.

    Parameters
    ----------
    rows
        As the file has them: text as binary or string, numbers as they are.
    file
        What ``file:`` may ask for.
    first_row
        Number of the first of the rows in the file, from 0.
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
        return _words(rule, rows[rule.column], to)
    return _convert_column(rule, rows[rule.column], to)


def _convert_column(rule: Rule, given: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.Array, Mask, str]:
    """Return a foreign column as values of the rule's column."""
    assert rule.target is not None
    kind = rule.target.type
    text, broken = _text(given, rule.missing)
    if kind == "string":
        return text, broken, "text that is not UTF-8"
    if kind == "bool":
        return _truths(text, broken)
    if kind == "timestamp":
        times, absent, bad = moments(rule, given)
        return numbers(times // 1000, to, absent | bad), bad, "a time that is none"
    is_whole = kind.startswith("int")
    values, absent, bad = _numbers(given, _plain(rule, text), rule.conversion, whole=is_whole, count=rule.is_count,
                                  decimal=rule.decimal)  # fmt: skip
    bad |= broken
    if is_whole:
        bad |= ~absent & (np.abs(values) > _LARGEST[kind])
    if rule.has_default:
        values, absent = np.where(absent & ~bad, rule.default, values), absent & bad
    flaw = "a number that is not whole, or none" if is_whole else "a number that is none"
    with np.errstate(over="ignore"):  # beyond float32 is infinite in the column's type, and flagged so
        return numbers(np.where(absent | bad, 0, values), to, absent | bad), bad, flaw


def finite(column: pa.Array) -> tuple[pa.Array, list[str | None]]:
    """Return floats with NULL for those that are not finite, and how each of these is flagged."""
    flagged = flags(column.fill_null(0).to_numpy(zero_copy_only=False))
    if not flagged.any():
        return column, [None] * len(column)
    return pc.if_else(truths(flagged > 0), pa.scalar(None, column.type), column), flag_texts(flagged).to_pylist()


def _plain(rule: Rule, text: pa.Array) -> pa.Array:
    """Return numbers that bear a unit in the rule's, without it; what says that it is not available becomes NULL.

    Where the rule has no unit, its values must bear one and the same: the first that it meets.
    """
    if not pc.any(pc.match_substring_regex(text, _BEARS_UNIT)).as_py():
        return text
    return texts([None if word is None else _without_unit(rule, word.strip()) for word in text.to_pylist()])


def _without_unit(rule: Rule, word: str) -> str | None:
    bearing = quantity(word)
    if bearing is None:
        return None if _UNAVAILABLE.fullmatch(word) else word
    number, unit = bearing
    if rule.unit is None and rule.target is not None and str(rule.target.unit).startswith("{"):
        return word  # a count of things, which have no other unit
    own = rule.unit or rule.own_units.setdefault(rule.column or "", unit)
    if unit == own:
        return number
    try:
        factor = units.conversion(unit, own)
        return number_text(Fraction(number.replace(rule.decimal, ".")) * factor.factor + factor.offset)
    except ValueError:
        return word  # refused as no number


def moments(rule: Rule, given: pa.ChunkedArray) -> tuple[Array, Mask, Mask]:
    """Return times as ns since 1970, where there are none, and which could not be converted."""
    if pa.types.is_timestamp(given.type) or pa.types.is_date(given.type):
        naive = not pa.types.is_timestamp(given.type) or given.type.tz is None
        moment = given.cast(pa.timestamp("us", None if naive else "UTC"), safe=False)  # what is below a µs is cut off
        if naive and rule.zone != "UTC":
            moment = pc.assume_timezone(moment, rule.zone, ambiguous="earliest", nonexistent="earliest")
        absent = given.is_null().to_numpy()
        return moment.cast(pa.int64()).fill_null(0).to_numpy() * 1000, absent, np.zeros(len(given), bool)
    text, broken = _text(given, rule.missing)
    if rule.origin_ns is not None or rule.format in EPOCHS:
        values, absent, bad = _nanoseconds(given, _plain(rule, text), rule)
        return values + (rule.origin_ns or 0), absent, bad | broken
    absent = text.is_null().to_numpy(zero_copy_only=False)
    if rule.format == "iso" and rule.zone == "UTC":
        try:
            return text.cast(pa.timestamp("us")).cast(pa.int64()).fill_null(0).to_numpy() * 1000, absent, broken
        except pa.ArrowInvalid:
            pass
    words = text.dictionary_encode()
    known = [moment_ns(word, rule.format, rule.zone) for word in words.dictionary.to_pylist()] or [None]
    codes = words.indices.fill_null(0).to_numpy()
    unknown = np.array([moment is None for moment in known])[codes]
    times = np.array([0 if moment is None else moment for moment in known], np.int64)[codes]
    return times, absent, broken | (unknown & ~absent)


def _nanoseconds(given: pa.ChunkedArray, text: pa.Array, rule: Rule) -> tuple[Array, Mask, Mask]:
    """Return numbers as ns: whole ones exactly, others to the µs, since a float of our days holds no more."""
    factor, offset = rule.conversion.factor, rule.conversion.offset
    if factor > 0 and factor.denominator == offset.denominator == 1:
        values, absent, bad = _numbers(given, text, Conversion(), whole=True, decimal=rule.decimal)
        if not bad.any():
            bad = np.abs(values) > (_LATEST_NS - abs(int(offset))) // int(factor)
            return np.where(bad, 0, values) * int(factor) + int(offset), absent, bad & ~absent
    to_us = Conversion(factor / 1000, offset / 1000)
    values, absent, bad = _numbers(given, text, to_us, whole=False, decimal=rule.decimal)
    bad = bad | ~(np.abs(values) <= _LATEST_NS / 1000)
    return np.rint(np.where(bad, 0, values)).astype(np.int64) * 1000, absent, bad & ~absent


def passing(item: Filter, rows: pa.Table) -> Mask:
    """Return which rows a filter lets through; those without a value pass none but ``not_in``."""
    text, _ = _text(rows[item.column], frozenset())
    passes = np.ones(rows.num_rows, bool)
    for words, wanted in ((item.in_, True), (item.not_in, False)):
        if words is not None:
            listed = pc.is_in(text, value_set=texts(sorted(words))).to_numpy(zero_copy_only=False)
            passes &= listed == wanted
    if item.above is not None or item.below is not None:
        values, absent, bad = _numbers(rows[item.column], text, Conversion(), whole=False, decimal=item.decimal)
        passes &= ~absent & ~bad & np.isfinite(values)
        passes &= (values > item.above) if item.above is not None else True
        passes &= (values < item.below) if item.below is not None else True
    return passes


def _constant(rule: Rule, to: pa.DataType, count: int) -> pa.Array:
    value = rule.value
    if pa.types.is_timestamp(to):
        times, absent, _ = moments(rule, pa.chunked_array([texts([None if value is None else str(value)])]))
        return numbers(np.repeat(times // 1000, count), to, np.repeat(absent, count))
    if isinstance(value, int | float) and not isinstance(value, bool) and not pa.types.is_string(to):
        exact = Fraction(str(value)) * rule.conversion.factor + rule.conversion.offset
        value = int(exact) if pa.types.is_integer(to) else float(exact)
    elif pa.types.is_string(to) and value is not None:
        value = str(value)
    return to_array([value], to).take(numbers(np.zeros(count, np.int64), pa.int64()))


def _objects(rule: Rule, rows: pa.Table) -> pa.Array:
    """Return foreign columns as JSON objects: numbers as such, the rest as text; what is missing is left out."""
    parts = []
    for name in rule.json:
        encoded = _text(rows[name], rule.missing)[0].dictionary_encode()
        whole = [f"{json.dumps(name)}:{_literal(word)}" for word in encoded.dictionary.to_pylist()]
        parts.append(pa.DictionaryArray.from_arrays(encoded.indices, texts(whole)).cast(pa.string()))
    inside = pc.binary_join_element_wise(*parts, ",", null_handling="skip")
    return pc.binary_join_element_wise("{", inside, "}", "")


def _literal(word: str) -> str:
    return word if _JSON_NUMBER.fullmatch(word) else json.dumps(word, ensure_ascii=False)


def _words(rule: Rule, given: pa.ChunkedArray, to: pa.DataType) -> tuple[pa.Array, Mask, str]:
    """Return what words become."""
    assert rule.values is not None
    text, broken = _text(given, rule.missing)
    encoded = text.dictionary_encode()
    of = encoded.dictionary.to_pylist()
    known = [rule.values.get(word, rule.default) for word in of] or [None]
    bad_words = np.array([word not in rule.values and not rule.has_default for word in of] or [False])
    codes = encoded.indices.fill_null(0).to_numpy()
    absent = text.is_null().to_numpy(zero_copy_only=False)
    meant = to_array([str(word) if pa.types.is_string(to) and word is not None else word for word in known], to)
    column = meant.take(numbers(codes, pa.int64(), absent))
    return column, broken | (bad_words[codes] & ~absent), "a word that the mapping does not know"


def _text(given: pa.ChunkedArray, missing: frozenset[str]) -> tuple[pa.Array, Mask]:
    """Return values as text, NULL where they are missing, and which were not UTF-8."""
    column = given.combine_chunks() if isinstance(given, pa.ChunkedArray) else given
    column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
    broken = np.zeros(len(column), bool)
    if pa.types.is_nested(column.type):
        text = texts([None if value is None else json.dumps(value, default=str) for value in column.to_pylist()])
    else:
        try:
            text = column.cast(pa.string())
            text.validate(full=True)
        except pa.ArrowInvalid:
            raw = column.to_pylist()
            read = [value.decode(errors="replace") if isinstance(value, bytes) else value for value in raw]
            broken = np.array(
                [word is not None and word.encode() != value for word, value in zip(read, raw, strict=True)]
            )
            text = texts(read)
    broken |= pc.fill_null(pc.match_substring(text, NO_TEXT), fill_value=False).to_numpy(zero_copy_only=False)
    if missing:
        text = pc.if_else(pc.is_in(text, value_set=texts(sorted(missing))), pa.scalar(None, pa.string()), text)
    return text, broken


def _truths(text: pa.Array, broken: Mask) -> tuple[pa.Array, Mask, str]:
    read = [None if word is None else word.strip().lower() for word in text.to_pylist()]
    bad = np.array([word is not None and word not in _TRUE and word not in _FALSE for word in read], bool)
    truth_column = truths([None if word is None else word in _TRUE for word in read])
    return truth_column, bad | broken, "neither true nor false"


def _numbers(
    given: pa.ChunkedArray,
    text: pa.Array,
    conversion: Conversion,
    *,
    whole: bool,
    count: bool = False,
    decimal: str = ".",
) -> tuple[Array, Mask, Mask]:
    """Return converted numbers, where there are none, and which could not be converted.

    Whole numbers are rounded to, unless they `count` things: half a GPU is no GPU.
    """
    type_ = given.type
    if pa.types.is_floating(type_) or (pa.types.is_integer(type_) and not pa.types.is_uint64(type_)):
        absent = text.is_null().to_numpy(zero_copy_only=False)
        values = given.cast(pa.int64() if pa.types.is_integer(type_) else pa.float64()).fill_null(0).to_numpy()
        bad = np.zeros(len(values), bool)
    else:
        trimmed = pc.utf8_trim_whitespace(text)
        if decimal != ".":  # what has a dot then, too, is no number
            trimmed = pc.replace_substring(pc.replace_substring(trimmed, ".", "?"), decimal, ".")
        absent = trimmed.is_null().to_numpy(zero_copy_only=False)
        values, bad = _parse_numbers(trimmed, whole=whole and conversion.is_none)
    if whole and not np.issubdtype(values.dtype, np.integer):
        absent = absent | np.isnan(values)  # how pandas writes a whole number that is missing
        bad = bad | ~np.isfinite(values)
        values = np.where(np.isfinite(values), values, 0)
    if not conversion.is_none:
        factor, offset = conversion.factor, float(conversion.offset)
        # divided where that is what a unit means: 57 % are 0.57, and 57 * 0.01 is a little more
        values = values.astype(np.float64) * float(factor.numerator) / float(factor.denominator) + offset
        if whole:
            rounded = np.rint(values)
            bad = bad | (count & (np.abs(values - rounded) > _ROUNDING * np.maximum(np.abs(values), 1)))
            values = rounded
    if whole and not np.issubdtype(values.dtype, np.integer):
        bad = bad | (values != np.rint(values)) | (np.abs(values) >= 2.0**63)
        values = np.where(bad, 0, values).astype(np.int64)
    return values, absent, bad & ~absent


def _parse_numbers(text: pa.Array, *, whole: bool) -> tuple[Array, Mask]:
    """Return texts as numbers, whole ones where that loses nothing, and which are none."""
    for to in (pa.int64(), pa.float64()) if whole else (pa.float64(),):
        try:
            return text.cast(to).fill_null(0).to_numpy(), np.zeros(len(text), bool)
        except pa.ArrowInvalid:
            continue
    fits = pc.fill_null(pc.match_substring_regex(text, _NUMBER), fill_value=True)
    bad = ~fits.to_numpy(zero_copy_only=False)
    if whole and pc.all(pc.match_substring_regex(text.filter(fits), _WHOLE)).as_py():
        kept_ = pc.if_else(fits, text, pa.scalar(None, pa.string()))
        try:
            return kept_.cast(pa.int64()).fill_null(0).to_numpy(), bad
        except pa.ArrowInvalid:
            pass
    return pc.if_else(fits, text, pa.scalar(None, pa.string())).cast(pa.float64()).fill_null(0).to_numpy(), bad
