"""Row conditions as Great Expectations writes them, as conditions of the shared scan where both surely agree.

Great Expectations makes a text of a condition and gives it to pandas' ``query``. What is taken here are columns of
numbers and of text, compared with numbers and plain words, joined as its classes allow. It takes conditions as text,
too; of those comparisons are taken that Python's grammar reads like pandas does.
"""

import ast
import keyword
import math
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from ranklake.quality.condition import EQUALITIES, JOINED, ORDERS, SETS, Condition

if TYPE_CHECKING:
    from ranklake.lake.contracts.model import Column, Contract

_EXACT: Final = 2**53
_MOST: Final = 100
_NUMBERS: Final = frozenset({"int32", "int64", "float32", "float64"})
_PLAIN: Final = re.compile(r"[A-Za-z0-9 _.,:;/+=()-]*")
_OTHER_NAMES: Final = frozenset({"index", "columns", "inf", "Inf", "list", "tuple", "datetime", "Timestamp"})
"""What pandas' ``query`` may take for something else than a column."""
_COMPARED: Final[Mapping[type, str]] = {
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
    """Return a row condition; None where it is not sure that the scan keeps the rows which pandas would keep."""
    if isinstance(raw, str):
        return _of_text(raw, contract) if parser == "pandas" else None
    found = _of_object(raw, contract, ("or", "and"))
    return found if found is not None and _leaves(found) <= _MOST else None


def _of_object(raw: object, contract: "Contract", joined: tuple[str, ...]) -> Condition | None:
    """Return what an object of theirs says; `joined` are the words that may join parts of it."""
    if not isinstance(raw, Mapping):
        return None
    kind = raw.get("type")
    if kind in JOINED and raw.keys() == {"type", "conditions"}:
        parts = raw["conditions"]
        if kind not in joined or not isinstance(parts, list) or len(parts) < 2:  # noqa: PLR2004 - else nothing is joined
            return None
        return _joined(str(kind), [_of_object(one, contract, ("and",)) for one in parts])
    named = raw.get("column")
    name = named.get("name") if isinstance(named, Mapping) and named.keys() == {"name"} else None
    if kind == "nullity" and raw.keys() == {"type", "column", "is_null"} and isinstance(raw["is_null"], bool):
        known = _column(name, contract) is not None
        return Condition("NULL" if raw["is_null"] else "NOT NULL", str(name)) if known else None
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
        return _joined(word, [_of_node(one, contract) for one in node.values])
    if not isinstance(node, ast.Compare) or len(node.ops) != 1 or not isinstance(node.left, ast.Name):
        return None
    how = _COMPARED.get(type(node.ops[0]))
    right = node.comparators[0]
    if how in SETS and not isinstance(right, ast.List):
        return None
    try:
        value = ast.literal_eval(right)
    except (ValueError, TypeError):
        return None
    return _comparison(node.left.id, how, value, contract)


def _joined(word: str, parts: list[Condition | None]) -> Condition | None:
    known = tuple(one for one in parts if one is not None)
    return Condition(word, parts=known) if len(known) == len(parts) else None


def _comparison(name: object, how: object, value: object, contract: "Contract") -> Condition | None:
    column = _column(name, contract)
    if column is None:
        return None
    number = column.type in _NUMBERS
    values = value if how in SETS else [value]
    if how not in (*EQUALITIES, *SETS, *(ORDERS if number else ())) or not isinstance(values, list) or not values:
        return None
    if len(values) > _MOST or not all((_is_number if number else _is_word)(one) for one in values):
        return None
    return Condition(str(how), column.name, tuple(values))


def _column(name: object, contract: "Contract") -> "Column | None":
    """Return a column whose rows both tell apart alike; classified ones are left to where they are seen by nobody."""
    if not isinstance(name, str) or name not in contract or keyword.iskeyword(name) or name in _OTHER_NAMES:
        return None
    column = contract.column(name)
    known = column.type in _NUMBERS or column.type == "string"
    return column if known and column.class_ == "operational" else None


def _is_number(value: Any) -> bool:  # noqa: ANN401 - whatever a file holds
    told = isinstance(value, int | float) and not isinstance(value, bool)
    return told and math.isfinite(value) and abs(value) <= _EXACT


def _is_word(value: object) -> bool:
    return isinstance(value, str) and _PLAIN.fullmatch(value) is not None


def _leaves(one: Condition) -> int:
    return sum(map(_leaves, one.parts)) if one.parts else 1
