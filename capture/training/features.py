"""Fingerprints: keyed hashes of values that must not be stored; equal values give equal hashes. Pure.

BLAKE2b with a key (RFC 7693): who has not got it cannot try out what the features may have been.
"""

import bisect
import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from ranklake.capture.common.values import BadValueError, DeviceValueError, number, text

_BYTES: Final = 16
_DEEPEST: Final = 16


class _UnknownError(Exception):
    """Something that has no bytes of its own."""


def digest(key: bytes, word: str) -> str:
    """Return 32 hexadecimal digits of a text."""
    return hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=_BYTES, key=key).hexdigest()


def fingerprint(key: bytes, features: Mapping[str, object]) -> str | None:
    """Return 32 hexadecimal digits of features: None, numbers, texts, bytes, arrays, and lists and mappings of these.

    Order of names does not matter, types do: 1, 1.0 and True differ. None if there is anything else among them, such
    as a tensor on a device, whose bytes would have to be waited for.
    """
    hashed = hashlib.blake2b(digest_size=_BYTES, key=key)
    try:
        _add(hashed, features, 0)
    except Exception:  # noqa: BLE001 - foreign objects; no fingerprint is better than one of something else
        return None
    return hashed.hexdigest()


def _add(hashed: Any, value: Any, depth: int) -> None:  # noqa: ANN401 - hashlib's object; anything
    """Add a value with its kind and length, so that no two differing ones add the same bytes."""
    if depth > _DEEPEST:
        raise _UnknownError
    if value is None or isinstance(value, bool | int | str):
        _put(hashed, type(value).__name__, str(value).encode("utf-8", "surrogatepass"))
    elif isinstance(value, float):
        _put(hashed, "float", struct.pack("<d", value))
    elif isinstance(value, bytes | bytearray | memoryview):
        _put(hashed, "bytes", bytes(value))
    elif isinstance(value, Mapping):
        _put(hashed, "mapping", str(len(value)).encode())
        for name in sorted(value, key=lambda item: (type(item).__name__, str(item))):
            _add(hashed, name, depth + 1)
            _add(hashed, value[name], depth + 1)
    elif isinstance(value, list | tuple):
        _put(hashed, "list", str(len(value)).encode())
        for item in value:
            _add(hashed, item, depth + 1)
    else:
        _add_array(hashed, value)


def _add_array(hashed: Any, value: Any) -> None:  # noqa: ANN401 - as above
    """Add an array, or a tensor in main memory."""
    where = getattr(value, "device", None)
    if getattr(where, "type", "cpu") != "cpu":
        raise _UnknownError
    array = value.detach().numpy() if hasattr(value, "detach") else value
    if array.dtype.kind == "O":
        raise _UnknownError
    _put(hashed, f"{array.dtype.str}{array.shape}", array.tobytes())


def _put(hashed: Any, kind: str, raw: bytes) -> None:  # noqa: ANN401 - as above
    hashed.update(f"{kind}:{len(raw)}:".encode())
    hashed.update(raw)


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
    listed = list(given) if isinstance(given, Iterable) and not isinstance(given, str | bytes) else []
    if not 0 < len(listed) <= _MOST:
        raise ValueError(f"1 to {_MOST} edges or words are wanted")
    if all(isinstance(item, str) for item in listed):
        return Buckets(None, tuple(text(item, 64) for item in listed))
    try:
        edges = tuple(number(item) for item in listed)
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
        converted = number(value)
    except (BadValueError, DeviceValueError):
        return OTHER
    return MISSING if converted != converted else into.names[bisect.bisect_right(into.edges, converted)]  # noqa: PLR0124 - NaN
