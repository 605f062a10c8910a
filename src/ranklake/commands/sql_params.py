"""Values of ``$name`` in a query, as the command line has them: ``NAME[:TYPE]=VALUE``."""

import math
import re
from collections.abc import Callable, Mapping
from datetime import UTC, date, datetime
from types import MappingProxyType
from typing import Any, Final

import pyarrow as pa

from ranklake.errors import RanklakeError, did_you_mean

_DIGITS: Final = re.compile(r"[-+]?\d[\d_]*")
_MOST_DIGITS: Final = 20


def _bool(text: str) -> bool:
    """Return true or false. Raises `ValueError`."""
    return ("false", "true").index(text.lower()) == 1


def _int(text: str) -> int:
    """Return a whole number, whatever its length. Raises `ValueError`, and `OverflowError` beyond 64 bits."""
    if _DIGITS.fullmatch(text.strip()) and len(text) > _MOST_DIGITS:  # Python refuses thousands of them as no number
        raise OverflowError
    return int(text)


def _float(text: str) -> float:
    """Return a number. Raises `ValueError`, and `OverflowError` for one that would become infinite."""
    found = float(text)
    if math.isinf(found) and "inf" not in text.lower():
        raise OverflowError
    return found


def _timestamp(text: str) -> datetime:
    """Return an ISO 8601 time as UTC, which it is where it names no zone. Raises `ValueError`, `OverflowError`."""
    found = datetime.fromisoformat(text)
    return found.replace(tzinfo=UTC) if found.tzinfo is None else found.astimezone(UTC)


TYPES: Final[Mapping[str, Callable[[str], Any]]] = MappingProxyType(
    {"int": _int, "float": _float, "text": str, "bool": _bool, "date": date.fromisoformat, "timestamp": _timestamp}
)


def parameter(item: str) -> tuple[str, pa.Scalar]:
    """Return name and value of ``name=value`` or ``name:type=value``."""
    head, equals, value = item.partition("=")
    name, _, kind = head.partition(":")
    if not name or not equals:
        raise RanklakeError(f"{item!r} is not NAME=VALUE", where="--param", hint="write --param run=demo-1")
    if kind and kind not in TYPES:
        raise RanklakeError(f"unknown type {kind!r}", where=f"--param {name}", hint=did_you_mean(kind, TYPES))
    for candidate in [kind] if kind else ["int", "float", "text"]:
        try:
            return name, pa.scalar(TYPES[candidate](value))
        except OverflowError as error:
            hint = f"write --param {name}:text=… if it is not a {candidate}"
            raise RanklakeError("the value is larger than 64 bits hold", where=f"--param {name}", hint=hint) from error
        except ValueError:
            continue
    raise RanklakeError(f"the value is not a {kind}", where=f"--param {name}", hint=f"write a {kind}, or another type")
