"""Fingerprints: keyed hashes of values that must not be stored, and buckets of monitored features. Pure functions.

Equal values have equal hashes. The hash is BLAKE2b with a key (RFC 7693): features cannot be guessed without the key.
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
_MOST_DEPTH: Final = 16


class _UnknownError(Exception):
    """A value without a byte representation."""


def digest(key: bytes, word: str) -> str:
    """Return the keyed hash of a text as 32 hexadecimal digits."""
    return hashlib.blake2b(word.encode("utf-8", "replace"), digest_size=_BYTES, key=key).hexdigest()


def fingerprint(key: bytes, features: Mapping[str, object]) -> str | None:
    """Return the keyed hash of features as 32 hexadecimal digits.

    Features may be None, numbers, texts, bytes, arrays, and lists and mappings of these. The order of names does not
    matter; types do: 1, 1.0 and True differ. Returns None for any other value, and for tensors on a GPU, whose bytes
    are not available without waiting.
    """
    hashed = hashlib.blake2b(digest_size=_BYTES, key=key)
    try:
        _add(hashed, features, 0)
    except Exception:  # noqa: BLE001 - foreign objects; no fingerprint is better than a wrong one
        return None
    return hashed.hexdigest()


def _add(hashed: Any, value: Any, depth: int) -> None:  # noqa: ANN401 - hashlib's object; any value
    """Add a value with its type and length, so that different values never add the same bytes."""
    if depth > _MOST_DEPTH:
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
    device = getattr(value, "device", None)
    if getattr(device, "type", "cpu") != "cpu":
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
_MOST_BUCKETS: Final = 256


@dataclass(frozen=True, slots=True)
class Buckets:
    """Buckets of a feature: ranges of a number, or known words.

    Attributes
    ----------
    edges
        Ascending edges of ranges; None for words.
    names
        Names of the buckets: one more than edges, or the words.
    """

    edges: tuple[float, ...] | None
    names: tuple[str, ...]


def buckets(edges_or_words: object) -> Buckets:
    """Return buckets from ascending edges, such as ``[18, 30, 65]``, or from words, such as ``["cat", "dog"]``.

    Raises `ValueError` for anything else.
    """
    items = (
        list(edges_or_words)
        if isinstance(edges_or_words, Iterable) and not isinstance(edges_or_words, str | bytes)
        else []
    )
    if not 0 < len(items) <= _MOST_BUCKETS:
        raise ValueError(f"give 1 to {_MOST_BUCKETS} edges or words")
    if all(isinstance(item, str) for item in items):
        return Buckets(None, tuple(text(item, 64) for item in items))
    try:
        edges = tuple(number(item) for item in items)
    except (BadValueError, DeviceValueError) as error:
        raise ValueError("edges are numbers, words are texts") from error
    if any(not low < high for low, high in itertools.pairwise(edges)) or edges[0] != edges[0]:
        raise ValueError("edges must be ascending")
    shown = [f"{edge:g}" for edge in edges]
    inner = [f"[{low},{high})" for low, high in itertools.pairwise(shown)]
    return Buckets(edges, (f"<{shown[0]}", *inner, f">={shown[-1]}"))


def bucket_of(value: object, monitor: Buckets) -> str:
    """Return the name of a value's bucket; ``missing`` for None and NaN, ``other`` if no bucket has the value."""
    if value is None:
        return MISSING
    if monitor.edges is None:
        return value if isinstance(value, str) and value in monitor.names else OTHER
    try:
        converted = number(value)
    except (BadValueError, DeviceValueError):
        return OTHER
    return MISSING if converted != converted else monitor.names[bisect.bisect_right(monitor.edges, converted)]  # noqa: PLR0124 - NaN
