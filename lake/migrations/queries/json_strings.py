"""Strings of a JSON text where they stand, so that they can be edited and the rest stays, byte for byte."""

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from ranklake.lake.migrations.queries.findings import UnreadableError
from ranklake.lake.migrations.queries.layers import Layer

Path = tuple[str | int, ...]
"""Keys and places from the root to a value."""

_WORD: Final = re.compile(r'"(?:[^"\\]|\\.)*"|[{}\[\]:,]|[^\s{}\[\]:,"]+', re.DOTALL)
_CHARACTER: Final = re.compile(r"\\u[dD][89abAB]\w\w\\u[dD][c-fC-F]\w\w|\\u\w{4}|\\.|[^\\]", re.DOTALL)


def document(text: str) -> Any:  # noqa: ANN401 - whatever JSON gives
    """Return what a JSON text says. Raises `UnreadableError`."""
    try:
        return json.loads(text)
    except ValueError as error:
        line = getattr(error, "lineno", 1)
        raise UnreadableError(f"it is no JSON (line {line})") from None


def strings(text: str) -> Iterator[tuple[Path, int, int]]:
    """Yield each string that is a value, with its way from the root, and where it stands, quotes included.

    The text must be JSON.
    """
    ways: list[list[Any]] = []  # whether it is an object, and its key or place; None before a key
    for found in _WORD.finditer(text):
        word = found[0]
        if word in {"{", "["}:
            ways.append([word == "{", None if word == "{" else 0])
        elif word in {"}", "]"}:
            ways.pop()
        elif word == ",":
            is_object, key = ways[-1]
            ways[-1][1] = None if is_object else key + 1
        elif word.startswith('"'):
            if ways and ways[-1] == [True, None]:
                ways[-1][1] = json.loads(word)
            else:
                yield tuple(key for _, key in ways), found.start(), found.end()


def layer(text: str, begin: int, end: int) -> Layer:
    """Return what a string says, whose quotes stand at the ends."""
    parts, spans = [], []
    for found in _CHARACTER.finditer(text, begin + 1, end - 1):
        character = json.loads(f'"{found[0]}"') if found[0].startswith("\\") else found[0]
        parts.append(character)
        spans += [found.span()] * len(character)
    said = "".join(parts)
    return Layer(said, spans, [0] * len(said), [lambda new: json.dumps(new, ensure_ascii=False)[1:-1]])
