"""Units: those of contracts and of the registry, and those that users' metrics may have, by UCUM's codes.

Source: https://ucum.org/ucum; counted things are in braces, such as ``{token}``.
"""

import re
from typing import Final

UNITS: Final = frozenset(
    {"s", "ns", "By", "By/s", "Hz", "W", "J", "Cel", "FLOP", "FLOP/s", "ratio", "1", "metric", "none"}
)
"""Of contracts and of the registry."""

_COUNTED: Final = re.compile(r"\{[a-z_]+\}(/(?:[sh]|kW\.h))?")
_BASE: Final = frozenset({"s", "By", "bit", "Hz", "W", "J", "V", "A", "K", "m", "g", "N", "Pa", "W.h", "FLOP", "FLOPS"})
_PREFIXES: Final = ("", "n", "u", "m", "k", "M", "G", "T", "P", "Ki", "Mi", "Gi", "Ti", "Pi")
_OTHERS: Final = frozenset({"%", "min", "h", "d", "wk", "mo", "a", "Cel", "deg", "rad", "EUR", "USD", "[USD]", "[EUR]"})
_FREE: Final = re.compile(r"\{[^{}\s]{1,80}\}")


def is_known_unit(unit: str) -> bool:
    """Whether a contract may use a unit."""
    return unit in UNITS or bool(_COUNTED.fullmatch(unit))


def is_unit(unit: str) -> bool:
    """Whether a text is a unit that is known here: of a contract, UCUM's with a prefix, or their ratio."""
    return unit in UNITS or all(map(_is_part, unit.split("/")))


def _is_part(part: str) -> bool:
    if part in UNITS or part in _OTHERS or _FREE.fullmatch(part):
        return True
    return any(part.removeprefix(prefix) in _BASE for prefix in _PREFIXES if part.startswith(prefix))
