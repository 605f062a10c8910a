"""Buckets: reduces a value to one of a few buckets, which reveals less than the value. Pure."""

import bisect
import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from ranklake.capture.common.values import BadValueError, DeviceValueError, number, text

MISSING: Final = "missing"
OTHER: Final = "other"
_MOST: Final = 256


@dataclass(frozen=True, slots=True)
class Buckets:
    """Edges of numbers, or the words that a text may be.

    Attributes
    ----------
    edges
        Rising; None for texts.
    names
        Of the buckets, one more than there are edges; the words.
    """

    edges: tuple[float, ...] | None
    names: tuple[str, ...]


def buckets(given: object) -> Buckets:
    """Return buckets from rising edges, such as ``[18, 30, 65]``, or from words, such as ``["cat", "dog"]``.

    Raises `ValueError` for what is neither.
    """
    found = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else []
    if not 0 < len(found) <= _MOST:
        raise ValueError(f"1 to {_MOST} edges or words are wanted")
    if all(isinstance(one, str) for one in found):
        return Buckets(None, tuple(text(one, 64) for one in found))
    try:
        edges = tuple(number(one) for one in found)
    except (BadValueError, DeviceValueError) as error:
        raise ValueError("edges are numbers, words are texts") from error
    if any(not low < high for low, high in itertools.pairwise(edges)) or edges[0] != edges[0]:
        raise ValueError("edges must be ascending")
    shown = [f"{edge:g}" for edge in edges]
    inner = [f"[{low},{high})" for low, high in itertools.pairwise(shown)]
    return Buckets(edges, (f"<{shown[0]}", *inner, f">={shown[-1]}"))


def bucket_of(value: object, into: Buckets) -> str:
    """Return the name of the bucket that a value is in, ``missing`` for None and NaN, ``other`` for what fits none."""
    if value is None:
        return MISSING
    if into.edges is None:
        return value if isinstance(value, str) and value in into.names else OTHER
    try:
        found = number(value)
    except (BadValueError, DeviceValueError):
        return OTHER
    return MISSING if found != found else into.names[bisect.bisect_right(into.edges, found)]  # noqa: PLR0124 - NaN
