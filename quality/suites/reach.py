"""What a row condition's text may reach: the columns of the rows, and what some words tell of them.

pandas takes such a text for code: ``@`` names whatever the calling function sees, its modules among it, and attributes
lead on from there, to files and to other columns. Suites come from stores whose code is run by its digest only, so a
text that could do more than compare columns is not put to anybody.
"""

import ast
import re
import unicodedata
from collections.abc import Iterator
from typing import Final

_QUOTED: Final = re.compile(r"`[\w .-]+`")
"""Names in pandas' own quotes, which hide nothing that could be called."""
_SPELT: Final = (
    "abs astype between contains count date day dayofweek days diff dt duplicated endswith eq fillna fullmatch ge gt "
    "hour isalnum isalpha isdigit isin islower isna isnull isnumeric isspace isupper le len lower lstrip lt match max "
    "mean median microsecond min minute month ne notna notnull nunique quantile quarter round rstrip second shift std "
    "startswith str strip sum total_seconds tz_convert tz_localize upper weekday year"
)
_WORDS: Final = frozenset(_SPELT.split())
"""Attributes that look at values, open nothing, and call nothing that they are given."""


def beyond(condition: object) -> str:
    """Return why a row condition is not put to Great Expectations; empty if it reaches columns only."""
    for text in _texts(condition):
        wrong = _beyond(text)
        if wrong:
            return f"its row condition {wrong}, which could be code"
    return ""


def _texts(condition: object) -> Iterator[str]:
    """Yield what pandas is given as it stands: texts, and names of columns that would end their own quotes."""
    if isinstance(condition, str):
        yield condition
    elif isinstance(condition, list):
        for one in condition:
            if not isinstance(one, str):
                yield from _texts(one)
    elif isinstance(condition, dict):
        told = condition.get("pass_through_filter")
        yield from (told,) if isinstance(told, str) else ()
        named = condition.get("column")
        name = named.get("name") if isinstance(named, dict) else None
        yield from (name,) if isinstance(name, str) and "`" in name else ()
        yield from _texts(condition.get("conditions"))


def _beyond(text: str) -> str:
    """Return what in a text is more than columns, values and the known words; empty where nothing is."""
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
