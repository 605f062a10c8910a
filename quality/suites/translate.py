"""Expectations of Great Expectations as checks of the shared scan, where both surely give the same verdict.

Whatever is not sure is left to Great Expectations itself: another parameter, a row condition of what is not judged row
by row, a type that pandas compares in its own way, a regular expression that Python and RE2 read differently.
`tests/quality/test_suites_oracle.py` compares both on generated tables.
"""

import math
import re
import string
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from ranklake.quality.suites.conditions import Condition, condition_of

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_ANY: Final = "(?s:.*)"
_CLASSES: Final = "dsw"


def whole_pattern(regex: str, *, classes: bool = False) -> str | None:
    r"""Return the expression that matches a whole text if `regex` is found in it; None where that is not sure.

    With `classes`, ``\d``, ``\s`` and ``\w`` are taken: RE2 then finds no more than Python does, perhaps less.
    """
    core, begins = (regex[1:], True) if regex.startswith("^") else (regex, False)
    ends = core.endswith("$") and not core.endswith("\\$")
    core = core[:-1] if ends else core
    plain = _plain(core, _CLASSES if classes else "")
    if plain is None or not plain:
        return None
    if (begins or ends) and "|" in core:  # an anchor binds closer than an alternative
        return None
    # to Python, which they search with, a dollar also matches before a newline that ends the text
    return ("" if begins else _ANY) + f"(?:{plain})" + (r"\n?" if ends else _ANY)


def _plain(core: str, classes: str) -> str | None:
    """Return an expression that Python and RE2 read alike except for `classes`; None if it holds what they do not."""
    parts = []
    inside = negated = False
    index = 0
    while index < len(core):
        char, rest = core[index], core[index + 1 :]
        if char == "\\":
            known = rest[:1] in string.punctuation or (rest[:1] in classes and not (inside and negated))
            if not rest or not known:  # \d is any digit to the one, ASCII to the other
                return None
            parts.append(char + rest[0])
            index += 2
            continue
        if (_is_unlike_inside if inside else _is_unlike)(char, rest):
            return None
        if char == "[" and not inside:
            negated = rest[:1] == "^"
        if char == "[" and negated:
            char, index = "[^", index + 1
        inside = char != "]" if inside else char[0] == "["
        parts.append(char)
        index += 1
    return None if inside else "".join(parts)


def _is_unlike_inside(char: str, rest: str) -> bool:
    return char == "[" or char + rest[:1] in {"--", "&&", "||", "~~"}


def _is_unlike(char: str, rest: str) -> bool:
    if char == "[":
        return rest[:1] in {"]", ""} or rest[:2] == "^]"
    return char in "^$" or (char in "({" and rest[:1] in {"?", ","}) or (char in "*+?}" and rest[:1] == "+")


_EXACT: Final = 2**53
_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64"})
_INTEGERS: Final = frozenset({"int32", "int64"})
_BITS: Final = {"int32": 31, "int64": 53}
_NAMES: Final = frozenset({"column", "column_A", "column_B", "column_list"})
_IGNORED: Final = frozenset({"result_format", "catch_exceptions"})
"""Parameters that change what is returned, not the verdict."""


@dataclass(frozen=True, slots=True)
class TranslatedCheck:
    """A check's kind and parameters, the share of judged rows that must pass, and which rows it is about."""

    kind: str
    columns: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mostly: float = 1.0
    where: Condition | None = None


def translate(kind: str, kwargs: Mapping[str, Any], contract: "Contract") -> TranslatedCheck | None:
    """Return an expectation as a check of the shared scan; None where Great Expectations must be asked itself.

    All columns that it names are the contract's.
    """
    rule = _RULES.get(kind)
    given = {name: value for name, value in kwargs.items() if value is not None and name not in _IGNORED}
    condition, parser = given.pop("row_condition", None), given.pop("condition_parser", None)
    where = None if condition is None else condition_of(condition, parser, contract)
    if rule is None or not rule.needs <= given.keys() <= rule.takes:
        return None
    if condition is not None and (where is None or not rule.by_row):
        return None
    mostly = given.pop("mostly", 1)
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 <= mostly <= 1:
        return None
    names = _columns(given)
    columns = [contract.column(name) for name in names or () if name in contract]
    if names is None or len(columns) < len(names) or any(map(_is_odd, columns)):
        return None
    parameters = rule.build(given, columns, contract)
    if parameters is None or (mostly < 1 and not rule.by_row):
        return None
    return TranslatedCheck(rule.kind, tuple(names), parameters, float(mostly), where)


def _is_odd(column: "Column") -> bool:
    """Whether values are distinguished otherwise: NaN is NULL to Great Expectations, not to Arrow's counts."""
    return column.type == "int64_list" or (column.class_ != "operational" and "float" in column.type)


def _columns(given: Mapping[str, Any]) -> list[str] | None:
    if "column_list" in given:
        listed = given["column_list"]
        sound = isinstance(listed, list) and listed and all(isinstance(one, str) for one in listed)
        return list(listed) if sound else None
    names = [given[key] for key in ("column", "column_B", "column_A") if key in given]
    return names if all(isinstance(one, str) for one in names) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _EXACT


def _nothing(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del given, columns, contract
    return {}


def _range(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    return _inclusive_bounds(given, whole=columns[0].type in _INTEGERS) if columns[0].type in _NUMBERS else None


def _inclusive_bounds(given: Mapping[str, Any], *, whole: bool) -> dict[str, Any] | None:
    """Return both ends as included ones; an end that is not becomes the next number of the column's type."""
    low, high = given.get("min_value"), given.get("max_value")
    strict = (given.get("strict_min", False), given.get("strict_max", False))
    if not all(one is None or _is_number(one) for one in (low, high)):
        return None
    if not all(isinstance(one, bool) for one in strict):
        return None
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        return None  # both are errors to Great Expectations, in its own words
    if low is not None and strict[0]:
        low = math.floor(low) + 1 if whole else math.nextafter(low, math.inf)
    if high is not None and strict[1]:
        high = math.ceil(high) - 1 if whole else math.nextafter(high, -math.inf)
    if low is not None and high is not None and low > high:
        return None
    return {name: end for name, end in (("min", low), ("max", high)) if end is not None}


def _whole_ends(given: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return both ends of a count, which are whole: of others Great Expectations takes the whole part."""
    ends = (given.get("min_value"), given.get("max_value"))
    fractions = any(isinstance(one, float) and not one.is_integer() for one in ends)
    return None if fractions else _inclusive_bounds(given, whole=True)


def _lengths(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    return _whole_ends(given) if columns[0].type == "string" else None


def _length(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    return _lengths({"min_value": given.get("value"), "max_value": given.get("value")}, columns, contract)


def _rows(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del columns, contract
    return _whole_ends(given)


def _row_count(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    return _rows({"min_value": given.get("value"), "max_value": given.get("value")}, columns, contract)


def _set(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    values, kind = given.get("value_set"), columns[0].type
    if not isinstance(values, list) or not values:
        return None
    fits = {
        "string": lambda value: isinstance(value, str),
        "bool": lambda value: isinstance(value, bool),
        "int32": lambda value: _is_whole(value, "int32"),
        "int64": lambda value: _is_whole(value, "int64"),
        "float64": _is_number,
        "float32": lambda value: _is_number(value) and struct.unpack("f", struct.pack("f", value))[0] == value,
    }.get(kind)
    return {"values": tuple(values)} if fits is not None and all(map(fits, values)) else None


def _is_whole(value: object, kind: str) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2 ** _BITS[kind]


def _regex(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    regex = given.get("regex")
    if columns[0].type != "string" or not isinstance(regex, str):
        return None
    # of classified columns RE2 has the last word, of others Great Expectations, on what RE2 does not clear
    pattern = whole_pattern(regex, classes=columns[0].class_ == "operational")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
        pc.match_substring_regex(pa.array([""]), rf"\A(?:{pattern})\z")
    except (re.error, pa.ArrowInvalid, RecursionError, OverflowError):
        return None
    return {"pattern": pattern}


def _order(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    small, large = columns
    both = given.get("ignore_row_if") == "either_value_is_missing" and given.get("or_equal") is True
    return {} if both and small.type == large.type and small.type in _NUMBERS and small.name != large.name else None


def _key(given: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    """Return a key: floats have NaN and -0.0, a key of several columns may be half NULL, the partition's own is one."""
    if any(one.type not in {*_INTEGERS, "string"} or one.name in contract.partition for one in columns):
        return None
    if len({one.name for one in columns}) < len(columns):
        return None
    ignored = given.get("ignore_row_if", "all_values_are_missing")
    full = all(one.required for one in columns)  # no file with NULL in them is read
    ways = {"any_value_is_missing", *(("all_values_are_missing", "never") if full else ())}
    sure = len(columns) == 1 or ignored in ways
    return {} if sure and (len(columns) == 1) == ("column" in given) else None


@dataclass(frozen=True, slots=True)
class _Rule:
    """The check kind of an expectation, the parameters that it may have, and what makes the check's of them."""

    kind: str
    takes: frozenset[str]
    build: "Callable[[Mapping[str, Any], list[Column], Contract], dict[str, Any] | None]"
    by_row: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """Return the parameters that name its columns, without which it is none."""
        return self.takes & _NAMES


def _translatable_types(*names: str) -> frozenset[str]:
    return frozenset(names)


_RULES: Final[Mapping[str, _Rule]] = {
    "expect_column_values_to_not_be_null": _Rule("not_null", _translatable_types("column", "mostly"), _nothing),
    "expect_column_values_to_be_between": _Rule(
        "between", _translatable_types("column", "mostly", "min_value", "max_value", "strict_min", "strict_max"), _range
    ),
    "expect_column_values_to_be_in_set": _Rule("in_set", _translatable_types("column", "mostly", "value_set"), _set),
    "expect_column_values_to_match_regex": _Rule("matches", _translatable_types("column", "mostly", "regex"), _regex),
    "expect_column_value_lengths_to_be_between": _Rule(
        "length",
        _translatable_types("column", "mostly", "min_value", "max_value", "strict_min", "strict_max"),
        _lengths,
    ),
    "expect_column_value_lengths_to_equal": _Rule("length", _translatable_types("column", "mostly", "value"), _length),
    "expect_column_pair_values_a_to_be_greater_than_b": _Rule(
        "at_most", _translatable_types("column_A", "column_B", "or_equal", "ignore_row_if", "mostly"), _order
    ),
    "expect_column_values_to_be_unique": _Rule("unique", _translatable_types("column", "mostly"), _key, by_row=False),
    "expect_compound_columns_to_be_unique": _Rule(
        "unique", _translatable_types("column_list", "ignore_row_if", "mostly"), _key, by_row=False
    ),
    "expect_table_row_count_to_be_between": _Rule(
        "row_count", _translatable_types("min_value", "max_value", "strict_min", "strict_max"), _rows, by_row=False
    ),
    "expect_table_row_count_to_equal": _Rule("row_count", _translatable_types("value"), _row_count, by_row=False),
}
