"""Translates expectations of Great Expectations to checks of the shared scan, if both always give the same verdict.

Great Expectations itself evaluates all others: those with other parameters, row conditions on checks of whole
partitions, types that pandas compares differently, and regular expressions that Python and RE2 interpret differently.
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
    r"""Return the expression that matches a whole text if `regex` is found in it; None if that is uncertain.

    With `classes`, ``\d``, ``\s`` and ``\w`` are accepted: RE2 then finds no more than Python does, perhaps less.
    """
    core, begins = (regex[1:], True) if regex.startswith("^") else (regex, False)
    ends = core.endswith("$") and not core.endswith("\\$")
    core = core[:-1] if ends else core
    plain = _plain(core, _CLASSES if classes else "")
    if plain is None or not plain:
        return None
    if (begins or ends) and "|" in core:  # an anchor has precedence over an alternative
        return None
    # in Python, which Great Expectations uses, a dollar also matches before a final newline
    return ("" if begins else _ANY) + f"(?:{plain})" + (r"\n?" if ends else _ANY)


def _plain(core: str, classes: str) -> str | None:
    """Return an expression that Python and RE2 interpret alike except for `classes`; None if there is none."""
    parts = []
    inside = negated = False
    index = 0
    while index < len(core):
        char, rest = core[index], core[index + 1 :]
        if char == "\\":
            is_supported = rest[:1] in string.punctuation or (rest[:1] in classes and not (inside and negated))
            if not rest or not is_supported:  # \d is any digit in Python, an ASCII digit in RE2
                return None
            parts.append(char + rest[0])
            index += 2
            continue
        if (_differs_in_class if inside else _differs)(char, rest):
            return None
        if char == "[" and not inside:
            negated = rest[:1] == "^"
        if char == "[" and negated:
            char, index = "[^", index + 1
        inside = char != "]" if inside else char[0] == "["
        parts.append(char)
        index += 1
    return None if inside else "".join(parts)


def _differs_in_class(char: str, rest: str) -> bool:
    return char == "[" or char + rest[:1] in {"--", "&&", "||", "~~"}


def _differs(char: str, rest: str) -> bool:
    if char == "[":
        return rest[:1] in {"]", ""} or rest[:2] == "^]"
    return char in "^$" or (char in "({" and rest[:1] in {"?", ","}) or (char in "*+?}" and rest[:1] == "+")


_EXACT: Final = 2**53
_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64"})
_INTEGERS: Final = frozenset({"int32", "int64"})
_BITS: Final = {"int32": 31, "int64": 53}
_NAMES: Final = frozenset({"column", "column_A", "column_B", "column_list"})
_IGNORED: Final = frozenset({"result_format", "catch_exceptions"})
"""Parameters that affect the format of the result, not the verdict."""


@dataclass(frozen=True, slots=True)
class TranslatedCheck:
    """Kind and parameters of a check, the share of rows that must pass, and the condition on its rows."""

    kind: str
    columns: tuple[str, ...] = ()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    mostly: float = 1.0
    where: Condition | None = None


def translate(kind: str, kwargs: Mapping[str, Any], contract: "Contract") -> TranslatedCheck | None:
    """Return an expectation as a check of the shared scan; None if Great Expectations must evaluate it.

    All columns that it names must be in the contract.
    """
    rule = _RULES.get(kind)
    arguments = {name: value for name, value in kwargs.items() if value is not None and name not in _IGNORED}
    condition, parser = arguments.pop("row_condition", None), arguments.pop("condition_parser", None)
    where = None if condition is None else condition_of(condition, parser, contract)
    if rule is None or not rule.needs <= arguments.keys() <= rule.takes:
        return None
    if condition is not None and (where is None or not rule.by_row):
        return None
    mostly = arguments.pop("mostly", 1)
    if isinstance(mostly, bool) or not isinstance(mostly, int | float) or not 0 <= mostly <= 1:
        return None
    names = _columns(arguments)
    columns = [contract.column(name) for name in names or () if name in contract]
    if names is None or len(columns) < len(names) or any(map(_compares_differently, columns)):
        return None
    parameters = rule.build(arguments, columns, contract)
    if parameters is None or (mostly < 1 and not rule.by_row):
        return None
    return TranslatedCheck(rule.kind, tuple(names), parameters, float(mostly), where)


def _compares_differently(column: "Column") -> bool:
    """Whether Arrow counts other values than Great Expectations, to which NaN is NULL."""
    return column.type == "int64_list" or (column.class_ != "operational" and "float" in column.type)


def _columns(arguments: Mapping[str, Any]) -> list[str] | None:
    if "column_list" in arguments:
        names_in_list = arguments["column_list"]
        is_valid = (
            isinstance(names_in_list, list) and names_in_list and all(isinstance(name, str) for name in names_in_list)
        )
        return list(names_in_list) if is_valid else None
    names = [arguments[key] for key in ("column", "column_B", "column_A") if key in arguments]
    return names if all(isinstance(name, str) for name in names) else None


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= _EXACT


def _nothing(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del arguments, columns, contract
    return {}


def _range(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    return _inclusive_bounds(arguments, whole=columns[0].type in _INTEGERS) if columns[0].type in _NUMBERS else None


def _inclusive_bounds(arguments: Mapping[str, Any], *, whole: bool) -> dict[str, Any] | None:
    """Return both bounds as inclusive ones; an exclusive bound becomes the next number of the column's type."""
    low, high = arguments.get("min_value"), arguments.get("max_value")
    strict = (arguments.get("strict_min", False), arguments.get("strict_max", False))
    if not all(bound is None or _is_number(bound) for bound in (low, high)):
        return None
    if not all(isinstance(flag, bool) for flag in strict):
        return None
    if (low is None and high is None) or (low is not None and high is not None and low > high):
        return None  # both are errors in Great Expectations, which reports them
    if low is not None and strict[0]:
        low = math.floor(low) + 1 if whole else math.nextafter(low, math.inf)
    if high is not None and strict[1]:
        high = math.ceil(high) - 1 if whole else math.nextafter(high, -math.inf)
    if low is not None and high is not None and low > high:
        return None
    return {name: end for name, end in (("min", low), ("max", high)) if end is not None}


def _whole_ends(arguments: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return both bounds of a count. None for fractions, which Great Expectations truncates."""
    ends = (arguments.get("min_value"), arguments.get("max_value"))
    fractions = any(isinstance(end, float) and not end.is_integer() for end in ends)
    return None if fractions else _inclusive_bounds(arguments, whole=True)


def _lengths(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    return _whole_ends(arguments) if columns[0].type == "string" else None


def _length(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    return _lengths({"min_value": arguments.get("value"), "max_value": arguments.get("value")}, columns, contract)


def _rows(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del columns, contract
    return _whole_ends(arguments)


def _row_count(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    return _rows({"min_value": arguments.get("value"), "max_value": arguments.get("value")}, columns, contract)


def _set(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    values, kind = arguments.get("value_set"), columns[0].type
    if not isinstance(values, list) or not values:
        return None
    tests = {
        "string": lambda value: isinstance(value, str),
        "bool": lambda value: isinstance(value, bool),
        "int32": lambda value: _is_whole(value, "int32"),
        "int64": lambda value: _is_whole(value, "int64"),
        "float64": _is_number,
        "float32": lambda value: _is_number(value) and struct.unpack("f", struct.pack("f", value))[0] == value,
    }.get(kind)
    return {"values": tuple(values)} if tests is not None and all(map(tests, values)) else None


def _is_whole(value: object, kind: str) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2 ** _BITS[kind]


def _regex(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    regex = arguments.get("regex")
    if columns[0].type != "string" or not isinstance(regex, str):
        return None
    # for classified columns RE2 decides; for others Great Expectations, on values that RE2 does not match
    pattern = whole_pattern(regex, classes=columns[0].class_ == "operational")
    if pattern is None:
        return None
    try:
        re.compile(pattern)
        pc.match_substring_regex(pa.array([""]), rf"\A(?:{pattern})\z")
    except (re.error, pa.ArrowInvalid, RecursionError, OverflowError):
        return None
    return {"pattern": pattern}


def _order(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    del contract
    small, large = columns
    has_defaults = arguments.get("ignore_row_if") == "either_value_is_missing" and arguments.get("or_equal") is True
    return (
        {}
        if has_defaults and small.type == large.type and small.type in _NUMBERS and small.name != large.name
        else None
    )


def _key(arguments: Mapping[str, Any], columns: "list[Column]", contract: "Contract") -> dict[str, Any] | None:
    """Return a key of integers and text. Floats have NaN and -0.0, and the partition column is constant."""
    if any(column.type not in {*_INTEGERS, "string"} or column.name in contract.partition for column in columns):
        return None
    if len({column.name for column in columns}) < len(columns):
        return None
    ignored = arguments.get("ignore_row_if", "all_values_are_missing")
    is_full = all(column.required for column in columns)  # a file with NULL in a required column is not read
    equivalent_modes = {"any_value_is_missing", *(("all_values_are_missing", "never") if is_full else ())}
    is_equivalent = len(columns) == 1 or ignored in equivalent_modes
    return {} if is_equivalent and (len(columns) == 1) == ("column" in arguments) else None


@dataclass(frozen=True, slots=True)
class _Rule:
    """Translation of one expectation: the check kind, the supported parameters, and the function that converts them."""

    kind: str
    takes: frozenset[str]
    build: "Callable[[Mapping[str, Any], list[Column], Contract], dict[str, Any] | None]"
    by_row: bool = True

    @property
    def needs(self) -> frozenset[str]:
        """The parameters that name columns; all of them are required."""
        return self.takes & _NAMES


def _parameters(*names: str) -> frozenset[str]:
    return frozenset(names)


_RULES: Final[Mapping[str, _Rule]] = {
    "expect_column_values_to_not_be_null": _Rule("not_null", _parameters("column", "mostly"), _nothing),
    "expect_column_values_to_be_between": _Rule(
        "between", _parameters("column", "mostly", "min_value", "max_value", "strict_min", "strict_max"), _range
    ),
    "expect_column_values_to_be_in_set": _Rule("in_set", _parameters("column", "mostly", "value_set"), _set),
    "expect_column_values_to_match_regex": _Rule("matches", _parameters("column", "mostly", "regex"), _regex),
    "expect_column_value_lengths_to_be_between": _Rule(
        "length",
        _parameters("column", "mostly", "min_value", "max_value", "strict_min", "strict_max"),
        _lengths,
    ),
    "expect_column_value_lengths_to_equal": _Rule("length", _parameters("column", "mostly", "value"), _length),
    "expect_column_pair_values_a_to_be_greater_than_b": _Rule(
        "at_most", _parameters("column_A", "column_B", "or_equal", "ignore_row_if", "mostly"), _order
    ),
    "expect_column_values_to_be_unique": _Rule("unique", _parameters("column", "mostly"), _key, by_row=False),
    "expect_compound_columns_to_be_unique": _Rule(
        "unique", _parameters("column_list", "ignore_row_if", "mostly"), _key, by_row=False
    ),
    "expect_table_row_count_to_be_between": _Rule(
        "row_count", _parameters("min_value", "max_value", "strict_min", "strict_max"), _rows, by_row=False
    ),
    "expect_table_row_count_to_equal": _Rule("row_count", _parameters("value"), _row_count, by_row=False),
}
