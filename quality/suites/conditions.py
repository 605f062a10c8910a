"""Row conditions of users' suites: the rows that an expectation applies to, as Great Expectations would filter them.

Great Expectations converts a condition to text for pandas' ``query``. There NaN is NULL, and NULL is equal to nothing
and different from everything. A `Condition` masks Arrow rows in the same way. `condition_of` supports columns of
numbers and text, compared with numbers and plain words, and joined by ``and`` and ``or``. Of conditions that are text,
it supports comparisons that Python's grammar parses like pandas does.

pandas evaluates the text as code: ``@`` refers to any variable of the calling function, including modules, and their
attributes reach files and other columns. Suites may come from stores whose code runs only if its digest is configured.
`unsupported_reason` therefore refuses a text that could do more than compare columns.
"""

import ast
import keyword
import math
import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import pyarrow as pa
import pyarrow.compute as pc

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_COMPARED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {
    "==": pc.equal,
    "!=": pc.not_equal,
    "<": pc.less,
    "<=": pc.less_equal,
    ">": pc.greater,
    ">=": pc.greater_equal,
}
ORDERS: Final = ("<", "<=", ">", ">=")
EQUALITIES: Final = ("==", "!=")
SETS: Final = ("IN", "NOT_IN")
NULLS: Final = ("NULL", "NOT NULL")
JOINED: Final[Mapping[str, Callable[[Any, Any], Any]]] = {"and": pc.and_, "or": pc.or_}


@dataclass(frozen=True, slots=True)
class Condition:
    """A condition on single rows: `column` compared with `values`, or several `parts` joined.

    Attributes
    ----------
    operator
        One of `ORDERS`, `EQUALITIES`, `SETS`, `NULLS` or `JOINED`.
    values
        One value, or those of a set: numbers for number columns, text for text columns.
    """

    operator: str
    column: str = ""
    values: tuple[Any, ...] = ()
    parts: "tuple[Condition, ...]" = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns that it reads, each once."""
        return tuple(dict.fromkeys(self._columns()))

    def _columns(self) -> "Iterator[str]":
        if self.column:
            yield self.column
        for part in self.parts:
            yield from part.columns

    def __str__(self) -> str:
        """Return the condition in words, with its values."""
        if self.parts:
            return f"({f' {self.operator} '.join(map(str, self.parts))})"
        if self.operator in NULLS:
            return f"{self.column} is {self.operator}"
        if self.operator in SETS:
            return f"{self.column} {self.operator.lower().replace('_', ' ')} {list(self.values)}"
        return f"{self.column} {self.operator} {self.values[0]!r}"

    def plain(self) -> dict[str, Any]:
        """Return the condition in the JSON form of Great Expectations."""
        if self.parts:
            return {"type": self.operator, "conditions": [part.plain() for part in self.parts]}
        about = {"column": {"name": self.column}}
        if self.operator in NULLS:
            return {"type": "nullity", **about, "is_null": self.operator == "NULL"}
        value = list(self.values) if self.operator in SETS else self.values[0]
        return {"type": "comparison", **about, "operator": self.operator, "parameter": value}

    def mask(self, rows: pa.Table) -> Any:  # noqa: ANN401 - an array or chunked array of booleans
        """Return a mask of the rows that satisfy the condition, without NULL."""
        if self.parts:
            return reduce(JOINED[self.operator], (part.mask(rows) for part in self.parts))
        column = rows[self.column]
        if self.operator in NULLS:
            missing = pc.is_null(column, nan_is_null=pa.types.is_floating(column.type))
            return missing if self.operator == "NULL" else pc.invert(missing)
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        if self.operator not in SETS:
            return _comparison_of(self.operator, column, self.values[0])
        matches = reduce(pc.or_, (_comparison_of("==", column, value) for value in self.values))
        return matches if self.operator == "IN" else pc.invert(matches)


def _comparison_of(operator: str, column: pa.ChunkedArray, value: object) -> Any:  # noqa: ANN401 - as above
    if isinstance(value, float) or pa.types.is_floating(column.type):  # pandas compares 64-bit floats here
        column, value = column.cast(pa.float64(), safe=False), float(value)  # type: ignore[arg-type]
    return pc.fill_null(_COMPARED[operator](column, pa.scalar(value)), fill_value=operator == "!=")


def filter_rows(rows: pa.Table, where: Condition | None) -> pa.Table:
    """Return the rows that satisfy a condition, or all rows without one; dictionaries keep only words that occur."""
    if where is None or not rows.num_rows:
        return rows
    kept = rows.filter(where.mask(rows))
    if kept.num_rows == rows.num_rows:
        return rows
    for index, field in enumerate(kept.schema):
        if pa.types.is_dictionary(field.type):
            words = kept.column(index).cast(field.type.value_type).dictionary_encode().unify_dictionaries()
            kept = kept.set_column(index, field.name, words.cast(field.type))
    return kept


_EXACT: Final = 2**53
_MOST: Final = 100
_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;/+=()-]*")
_OTHER_NAMES: Final = frozenset({"index", "columns", "inf", "Inf", "list", "tuple", "datetime", "Timestamp"})
"""Names that pandas' ``query`` may interpret as something other than a column."""
_OPERATORS: Final[Mapping[type, str]] = {
    ast.Eq: "==",
    ast.NotEq: "!=",
    ast.Lt: "<",
    ast.LtE: "<=",
    ast.Gt: ">",
    ast.GtE: ">=",
    ast.In: "IN",
    ast.NotIn: "NOT_IN",
}


def condition_of(raw: object, parser: object, contract: "Contract") -> Condition | None:
    """Return a row condition; None if the scan might select other rows than pandas."""
    if isinstance(raw, str):
        return _of_text(raw, contract) if parser == "pandas" else None
    condition = _of_object(raw, contract, ("or", "and"))
    return condition if condition is not None and _leaf_count(condition) <= _MOST else None


def _of_object(raw: object, contract: "Contract", operators: tuple[str, ...]) -> Condition | None:
    """Return a condition in the JSON form of Great Expectations; its parts may be joined by `operators`."""
    if not isinstance(raw, Mapping):
        return None
    kind = raw.get("type")
    if kind in JOINED and raw.keys() == {"type", "conditions"}:
        parts = raw["conditions"]
        if kind not in operators or not isinstance(parts, list) or len(parts) < 2:  # noqa: PLR2004 - a single part is not joined
            return None
        return _combine(str(kind), [_of_object(part, contract, ("and",)) for part in parts])
    reference = raw.get("column")
    name = reference.get("name") if isinstance(reference, Mapping) and reference.keys() == {"name"} else None
    if kind == "nullity" and raw.keys() == {"type", "column", "is_null"} and isinstance(raw["is_null"], bool):
        is_supported = _column(name, contract) is not None
        return Condition("NULL" if raw["is_null"] else "NOT NULL", str(name)) if is_supported else None
    if kind == "comparison" and raw.keys() == {"type", "column", "operator", "parameter"}:
        return _comparison(name, raw["operator"], raw["parameter"], contract)
    return None


def _of_text(text: str, contract: "Contract") -> Condition | None:
    if len(text.splitlines()) > 1:  # pandas refuses it
        return None
    try:
        return _of_node(ast.parse(text.strip(), mode="eval").body, contract)
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _of_node(node: ast.expr, contract: "Contract") -> Condition | None:
    if isinstance(node, ast.BoolOp):
        word = "and" if isinstance(node.op, ast.And) else "or"
        return _combine(word, [_of_node(operand, contract) for operand in node.values])
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.left, ast.Name):
        return None
    operator = _OPERATORS.get(type(node.ops[0]))
    right = node.comparators[0]
    if operator in SETS and not isinstance(right, ast.List):
        return None
    try:
        value = ast.literal_eval(right)
    except (ValueError, TypeError):
        return None
    return _comparison(node.left.id, operator, value, contract)


def _combine(word: str, parts: list[Condition | None]) -> Condition | None:
    known = tuple(part for part in parts if part is not None)
    return Condition(word, parts=known) if len(known) == len(parts) else None


def _comparison(name: object, operator: object, value: object, contract: "Contract") -> Condition | None:
    column = _column(name, contract)
    if column is None:
        return None
    is_numeric = column.type in _NUMBERS
    values = value if operator in SETS else [value]
    if (
        operator not in (*EQUALITIES, *SETS, *(ORDERS if is_numeric else ()))
        or not isinstance(values, list)
        or not values
    ):
        return None
    if len(values) > _MOST or not all((_is_number if is_numeric else _is_word)(item) for item in values):
        return None
    return Condition(str(operator), column.name, tuple(values))


def _column(name: object, contract: "Contract") -> "Column | None":
    """Return a column whose values pandas and Arrow compare alike; None for others and for classified columns."""
    if not isinstance(name, str) or name not in contract or keyword.iskeyword(name) or name in _OTHER_NAMES:
        return None
    column = contract.column(name)
    is_comparable = column.type in _NUMBERS or column.type == "string"
    return column if is_comparable and column.class_ == "operational" else None


def _is_number(value: Any) -> bool:  # noqa: ANN401 - any JSON value
    is_numeric = isinstance(value, int | float) and not isinstance(value, bool)
    return is_numeric and math.isfinite(value) and abs(value) <= _EXACT


def _is_word(value: object) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _leaf_count(condition: Condition) -> int:
    return sum(map(_leaf_count, condition.parts)) if condition.parts else 1


_QUOTED: Final = re.compile(r"`[\w .-]+`")
"""Names in pandas' backticks, which cannot contain a call."""
_ATTRIBUTE_LIST: Final = (
    "abs astype between contains count date day dayofweek days diff dt duplicated endswith eq fillna fullmatch ge gt "
    "hour isalnum isalpha isdigit isin islower isna isnull isnumeric isspace isupper le len lower lstrip lt match max "
    "mean median microsecond min minute month ne notna notnull nunique quantile quarter round rstrip second shift std "
    "startswith str strip sum total_seconds tz_convert tz_localize upper weekday year"
)
_WORDS: Final = frozenset(_ATTRIBUTE_LIST.split())
"""Attributes that only compute from values: they open no files and call no function that they are given."""


def unsupported_reason(condition: object) -> str:
    """Return why a row condition is not passed to Great Expectations; empty if it only compares columns."""
    for text in _texts(condition):
        fault = _unsupported_words(text)
        if fault:
            return f"its row condition {fault}, which could be code"
    return ""


def _texts(condition: object) -> Iterator[str]:
    """Yield the texts that pandas gets unquoted: conditions, and column names that contain a backtick."""
    if isinstance(condition, str):
        yield condition
    elif isinstance(condition, list):
        for part in condition:
            if not isinstance(part, str):
                yield from _texts(part)
    elif isinstance(condition, dict):
        passed_through = condition.get("pass_through_filter")
        yield from (passed_through,) if isinstance(passed_through, str) else ()
        reference = condition.get("column")
        name = reference.get("name") if isinstance(reference, dict) else None
        yield from (name,) if isinstance(name, str) and "`" in name else ()
        yield from _texts(condition.get("conditions"))


def _unsupported_words(text: str) -> str:
    """Return the part of a text that is no column, value or known attribute; empty if there is none."""
    plain = _QUOTED.sub("quoted", unicodedata.normalize("NFKC", text))  # as Python reads names
    try:
        nodes = list(ast.walk(ast.parse(f"({plain}\n)", mode="eval"))) if plain.strip() else []
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return "is not understood"
    for node in nodes:
        if isinstance(node, ast.Attribute) and node.attr not in _WORDS:
            return f"uses .{node.attr[:40]}" if node.attr.isascii() else "uses an attribute"
        if isinstance(node, ast.Name) and node.id.startswith("__"):
            return "uses a name of Python's own"
        if isinstance(node, ast.MatMult | ast.Lambda | ast.NamedExpr | ast.JoinedStr | ast.comprehension):
            return "uses more than comparisons"
    return ""
